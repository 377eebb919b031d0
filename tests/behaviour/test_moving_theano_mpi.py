"""Theano-MPI's model classes on synk's ranks, beside training in numpy.

Names such as T11 are those of faults of Theano-MPI and its ancestor: a test that has
one fails where synk has that fault, too.
"""

import json
import os
import signal

import compat_models as models
import numpy as np
import pytensor
import pytest
from compat_models import (
    START,
    Momentum,
    cost_of,
    gradient,
    logged,
    serial,
    told,
    train,
    vector,
)
from processes import running

import synk
from synk.compat import BSP, EASGD, GOSGD, Recorder


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """Compile quickly, and write to a folder of ours."""
    monkeypatch.chdir(tmp_path)
    with pytensor.config.change_flags(mode="FAST_COMPILE", cxx=""):
        yield tmp_path


# -- BSP


@pytest.mark.parametrize(
    ("sync_type", "n", "model"),
    [("cdd", 2, models.Regression), ("avg", 3, models.InParts)],
)
def test_bsp_is_the_serial_step_on_the_mean_gradient(sync_type, n, model):
    rule = train(BSP, model, n, sync_type=sync_type)
    expected = serial(n, model.n_subb)
    np.testing.assert_allclose(vector(rule), expected[-1], rtol=1e-11)
    # T1: what is validated has every gradient of the epoch. T2: parameters whose names
    # are gamma and beta are exchanged.
    costs = [cost for _, cost, *_ in rule.recorder.val_info]
    np.testing.assert_allclose(costs, list(map(cost_of, expected)), rtol=1e-11)


def test_bsp_with_uneven_batches_ends_and_leaves_none_out():
    rule = train(BSP, models.Regression, 4, print_freq=1)
    # Six batches of four ranks: the last two have none in the second round. Their
    # velocities stay, so the closed form is of each rank.
    steps, theta = [Momentum() for _ in range(4)], START
    for numbers in [range(4), range(4, 6)] * 2:
        moved = [
            step(theta, gradient(theta, models.rows_of(k)))
            for step, k in zip(steps, numbers, strict=False)
        ]
        theta = np.mean(moved, axis=0)
    np.testing.assert_allclose(vector(rule), theta, rtol=1e-11)
    trained = [number for w in range(4) for _, number, _ in logged(w, "train")]
    assert sorted(trained) == sorted([*range(6)] * 2)
    assert [count for count, *_ in rule.recorder.train_info] == [4, 6, 10, 12]


def test_bsp_calls_the_members_in_their_order_on_all_ranks():
    train(BSP, models.WithAll, verbose=False)
    for worker in range(2):
        calls = [entry[0] for entry in told(worker)["log"]]
        epoch = ["train"] * 3 + ["reset"] + ["val"] * 2 + ["reset"]
        epoch += ["adjust", "current_info"] + ["print_info"] * (worker == 0)
        assert calls == ["compile", *epoch * 2, "cleanup"]
        assert logged(worker, "reset") == [["train"], ["val"]] * 2
        assert logged(worker, "adjust") == [[0], [1]]
        config = told(worker)["config"]
        assert (config["rank"], config["size"]) == (worker, 2)
    (first,), (second,) = logged(0, "current_info")
    assert (first[0], second[0]) == (6, 12)
    assert first == logged(1, "current_info")[0][0]
    assert logged(0, "print_info") == [[1, False], [2, False]]


@pytest.mark.parametrize("sync_type", ["swap", "sum"])
def test_t5_what_bsp_cannot_exchange_is_refused_before_anything_starts(sync_type):
    with pytest.raises(ValueError, match=f"'cdd' or 'avg', got '{sync_type}'"):
        train(BSP, models.Regression, sync_type=sync_type)
    with pytest.raises(ValueError, match="'asa16' rounds to 16 bits"):
        train(BSP, models.Regression, exch_strategy="asa16")


# -- EASGD and GOSGD


def test_easgd_of_one_worker_is_its_closed_form_and_validates_the_centre():
    rule = train(EASGD, models.Regression, 1, every=4, beta=0.3)
    step, w, c, costs = Momentum(), START, START, []
    for k in range(12):
        w = step(w, gradient(w, models.rows_of(k % 6)))
        if k % 4 == 3:
            d = 0.3 * (w - c)
            w, c = w - d, c + d
        if k % 6 == 5:
            costs.append(cost_of(c))
    np.testing.assert_allclose(vector(rule), c, rtol=1e-11)
    # P1: that of the centre, and not of the worker; which goes on with its own.
    found = [cost for _, cost, *_ in rule.recorder.val_info]
    np.testing.assert_allclose(found, costs, rtol=1e-11)


@pytest.mark.parametrize(
    ("rule", "settings"), [(EASGD, {"every": 2}), (GOSGD, {"p": 0.3})]
)
def test_t7_asynchronous_workers_end_and_learn(rule, settings):
    rule = train(rule, models.Long, **settings)
    assert cost_of(vector(rule)) < 0.01 * cost_of(START)
    # Epochs are of all workers together, and each begins with the data's first batch.
    counts = [count for w in range(2) for *_, count in logged(w, "train")]
    assert sorted(counts) == list(range(30 * 12))
    for worker in range(2):
        numbers = [number for _, number, _ in logged(worker, "train")]
        assert numbers == [k % 12 for k in range(len(numbers))]
        config = told(worker)["config"]
        assert (config["rank"], config["size"], config["worker"]) == (0, 1, worker)
    assert logged(1, "val") == []  # rank 0 does that
    assert rule.recorder.val_info[-1][0] == 360


def test_t16_workers_of_easgd_draw_their_own_numbers_and_t17_those_of_bsp_the_same():
    np.random.seed(5)
    for rule in EASGD, BSP:
        train(rule, models.Draws)
        mine, other = ([x for (x,) in logged(w, "draw")] for w in range(2))
        assert mine
        assert other
        assert mine == other if rule is BSP else not set(mine) & set(other)
    assert len(set(mine)) == 20 * 3


# -- the contract


@pytest.mark.parametrize(
    ("rule", "model", "told_it"),
    [
        (EASGD, models.NoArgument, "nothing"),
        (GOSGD, models.AnyName, "avg"),
        (BSP, models.AnyKeywords, "avg"),
    ],
)
def test_t13_every_signature_of_compile_iter_fns_is_called(rule, model, told_it):
    train(rule, model, 1)
    assert logged(0, "compile") == [[told_it]]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (models.NoReset, r"compat_models.NoReset has no reset_iter\(\)"),
        (models.NoRate, "compat_models.NoRate has no data.n_batch_val, shared_lr"),
        (models.NoParams, "NoParams.params must be a list of shared variables"),
        (models.NoEpochs, "n_subb must be an integer from 1 on, got 0"),
        (models.NoData, "n_batch_train is 0: there is no data"),
        (models.OtherSize, "differ in n_epochs: 2 on rank 0, 3 on rank 1"),
        (models.GivesCosts, r"'stop', got .*0\.\d"),
        # T11: it leaves its move to the exchanger.
        (models.TwoSteps, "has changed vels and no parameter"),
    ],
)
def test_what_is_missing_or_wrong_is_named(model, message):
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        train(BSP, model, 2 if model is models.OtherSize else 1)
    if model is models.NoRate:  # whose cleanup needs it, too
        assert "and then, in cleanup: AttributeError" in caught.value.__notes__[-1]


def test_a_class_or_a_module_that_is_not_there_is_named():
    rule = BSP()
    with pytest.raises(RuntimeError, match="call init"):
        rule.wait()
    with pytest.raises(ModuleNotFoundError, match="no module 'no_such_models'"):
        rule.init(["cpu"], "no_such_models", "MLP")
    rule.init(["cpu"], "compat_models", "Perceptron")
    with pytest.raises(AttributeError, match="compat_models has no class 'Perceptron'"):
        rule.wait()


# -- how training ends


@pytest.mark.parametrize("rule", [BSP, EASGD])
def test_t6_stop_of_one_worker_ends_all_at_the_same_epoch(rule):
    assert len(train(rule, models.Stops).recorder.val_info) == 3
    for worker in range(2):
        assert logged(worker, "adjust") == [[0], [1], [2]]
        assert told(worker)["log"][-1] == ["cleanup"]


def test_validation_goes_on_with_the_batch_that_val_iter_returns():
    rule = train(BSP, models.Skips)
    assert len(logged(0, "val")) == len(logged(1, "val")) == 2  # of 4
    assert len(rule.recorder.val_info) == 2


@pytest.mark.parametrize("rule", [BSP, EASGD])
def test_what_one_worker_raises_ends_all_of_them(rule):
    with pytest.raises(ArithmeticError, match="of one worker"):
        train(rule, models.Fails)
    assert told(0)["log"][-1] == told(1)["log"][-1] == ["cleanup"]
    assert not synk.is_forked()


def test_a_worker_that_dies_ends_training_with_the_centre_in_the_model():
    rule = EASGD()
    rule.verbose, rule.every = False, 1
    rule.init(["cpu", "cpu"], "compat_models", "Dies")
    with pytest.raises(synk.WorkerDied):
        rule.wait()
    assert told(0)["log"][-1] == ["cleanup"]
    assert 0 < cost_of(vector(rule)) < cost_of(START)


SCRIPT = """
from synk.compat import EASGD
rule = EASGD()
rule.init(["cpu0", "cpu0"], "compat_models", "Endless")
try:
    rule.wait()
except KeyboardInterrupt:
    print("interrupted", synk.is_forked())
"""


def test_t10_ctrl_c_ends_all_workers_and_cleans_up(folder):
    flags = {"PYTENSOR_FLAGS": "mode=FAST_COMPILE,cxx="}
    with running(SCRIPT, folder, **flags) as script:
        script.expect("it trains", 60)
        os.killpg(script.pid, signal.SIGINT)
        assert script.expect("interrupted", 30) == "False"
        assert script.wait() == 0
    assert told(0)["log"][-1] == told(1)["log"][-1] == ["cleanup"]


# -- records and files


def test_t8_rates_stay_what_the_model_sets_and_nothing_is_saved_unasked(folder):
    rule = train(BSP, models.WithAll)
    assert told(0)["lr"] == told(1)["lr"] == np.float32(models.RATE / 10)
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["inforec", "worker0.json", "worker1.json"]
    # The rates of the records are those that the epochs were trained with.
    expected = [float(np.float32(rate)) for rate in (models.RATE, models.RATE / 10)]
    assert [rate for _, rate in rule.recorder.lr] == expected


def test_records_are_those_of_the_steps_and_lie_in_a_file_of_json(folder):
    rule = train(BSP, models.Regression, 1, print_freq=4)
    found = json.loads((folder / "inforec" / "inforec.json").read_text())
    assert sorted(found) == ["all_time", "epoch_time", "lr", "train_info", "val_info"]
    step, theta, costs = Momentum(), START, []
    for k in range(12):
        rows = models.rows_of(k % 6)
        costs.append(cost_of(theta, rows))
        theta = step(theta, gradient(theta, rows))
    # After every fourth batch, and where an epoch ends.
    parts = [(4, costs[:4]), (6, costs[4:6]), (8, costs[6:8]), (12, costs[8:])]
    expected = [[count, np.mean(some), np.mean(some) / 2] for count, some in parts]
    np.testing.assert_allclose(found["train_info"], expected, rtol=1e-10)
    assert [count for count, *_ in found["all_time"]] == [4, 6, 8, 12]
    for _, total, *parts in found["all_time"]:
        assert total == pytest.approx(sum(parts))
        calc, sync, comm, wait = parts
        assert min(calc, comm, wait) > 0 <= sync
    last = cost_of(theta)
    expected = [12, last, last / 2, last / 4]
    np.testing.assert_allclose(found["val_info"][-1], expected, rtol=1e-10)
    assert [count for count, _ in found["lr"]] == [6, 12]
    assert [count for count, _ in found["epoch_time"]] == [6, 12]
    again = Recorder()
    again.load()
    assert again.val_info == rule.recorder.val_info


def test_a_recorder_prints_and_refuses_what_it_does_not_measure(capsys):
    recorder = Recorder(2, verbose=True)
    with pytest.raises(ValueError, match="calc, sync, comm, wait, got 'sleep'"):
        recorder.end("sleep")
    for count, cost in enumerate((1.0, 2.0)):
        assert capsys.readouterr().out == ""
        recorder.train_error(count, cost, 0.5)
        recorder.print_train_info(count + 1)
    assert capsys.readouterr().out.startswith("2 1.5000 0.5000\n")
    assert recorder.train_info == [[2, 1.5, 0.5]]
    assert recorder.print_val_info(2, []) is None  # no division by zero


def test_snapshots_are_the_models_own_or_files_that_synk_loads(folder):
    for model in models.WithAll, models.Regression:
        rule = train(BSP, model, 1, snapshot_freq=2, record_dir=None)
    assert not (folder / "inforec").exists()
    mine, path = sorted((folder / "snapshots").iterdir())
    assert (mine.name, mine.read_text()) == ("regression_1", "mine")
    assert path.name == "regression_1.npz"
    loaded = [pytensor.shared(np.ones(3)), pytensor.shared(np.float64(1.0))]
    synk.load(path, {"0": loaded[0], "1": loaded[1]})
    values = [np.ravel(var.get_value()) for var in loaded]
    np.testing.assert_array_equal(np.concatenate(values), vector(rule))


# -- devices


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ("cpu0", "a list of names"),
        ([0, 1], "a list of names"),
        ([], "is empty"),
        (["node1:cuda0"], "names a host"),
        (["cpu0", "tpu0"], "got 'tpu0'"),
        (["cpu0", "cuda0"], "either cores or GPUs"),
        (["cpu0", "cpu"], "all with numbers or none"),
    ],
)
def test_names_that_are_no_places_are_refused(names, message):
    with pytest.raises((TypeError, ValueError), match=message):
        BSP().init(names, "compat_models", "Regression")
