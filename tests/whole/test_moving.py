"""The scripts of the page 'Moving a script over': old ones, and what became of them.

Each pair of files in ``docs/moving`` is run: ``x.py`` serially, ``x_synk.py`` on ranks.
Old scripts for several GPUs need systems that are not there: they are compiled, and
Theano-MPI's model class is trained by ``synk.compat``.
"""

import functools
import importlib
import re
import runpy
import warnings

import numpy as np
import pytensor
import pytest
import theano
import theano.tensor as T
from children import run_python
from places import DOCS
from theano.tensor.shared_randomstreams import RandomStreams

import synk
from synk import compat

SCRIPTS = DOCS / "moving"
NAMES = ("logistic", "mlp", "lenet", "dA", "rbm", "lstm")
EXACT = {
    "mlp": {"n_epochs": 2},
    "lenet": {"n_epochs": 2},
    "lstm": {"dim": 4, "n_epochs": 2, "use_dropout": False},
    # Persistent chains are drawn for no row: all ranks draw the same.
    "rbm": {"n_epochs": 2, "n_hidden": 16, "k": 1, "persistent": True},
}
OPTIONS = EXACT | {"dA": {"n_epochs": 2}}
SYSTEMS = {
    "theano_mpi_synk": ["theano_mpi"],
    "platoon_synk": ["platoon_controller", "platoon_worker"],
    "mpilearn_synk": ["mpilearn"],
}
"""Scripts for systems of several GPUs, by what became of them."""

pytestmark = [
    pytest.mark.filterwarnings("error::synk.SplitWarning"),
    pytest.mark.usefixtures("scans_in_python"),
]


@pytest.fixture(autouse=True)
def folder(import_from, monkeypatch, tmp_path):
    """Make the scripts importable, and write to a folder of ours."""
    import_from(SCRIPTS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def train(script, options):
    return np.array(importlib.import_module(script).train(**options))


@pytest.fixture
def short(monkeypatch):
    """Leave the LSTM's sequences three words, and an epoch two batches."""
    for name in "lstm", "lstm_synk":
        script = importlib.import_module(name)
        whole = script.prepare_data

        def prepare_data(sequences, labels, whole=whole):
            return whole([words[:3] for words in sequences], labels)

        monkeypatch.setattr(script, "prepare_data", prepare_data)
        two = lambda *all_of_them: list(range(*all_of_them))[:2]  # noqa: E731
        monkeypatch.setattr(script, "range", two, raising=False)


@functools.cache
def serial(name):
    """Return the serial script's history, and what it has saved."""
    history = train(name, OPTIONS[name])
    return history, dict(np.load("lstm.npz")) if name == "lstm" else {}


@pytest.mark.parametrize("name", EXACT)
def test_losses_and_errors_are_those_of_the_serial_script(name, short):
    expected, saved = serial(name)
    first, *_, last = expected.reshape(len(expected), -1)[:, 0]
    assert last > first + 5 if name == "rbm" else last < first, "nothing was learnt"
    with synk.session(3 if name == "mlp" else 2):
        history = train(f"{name}_synk", EXACT[name])
    np.testing.assert_allclose(history, expected, rtol=1e-9)
    for key, value in saved.items():
        np.testing.assert_allclose(np.load("lstm.npz")[key], value, rtol=1e-7)


# The models of the others are in test_moving_parallel.
@pytest.mark.parametrize("name", NAMES[2:])
def test_scripts_run_on_ranks_as_they_are(name, short):
    with synk.parallel_functions(2, every=True) as parallel, warnings.catch_warnings():
        # The LSTM's inputs have time first, of which every rank needs all.
        warnings.simplefilter("ignore", synk.SplitWarning)
        history = train(name, OPTIONS[name] | {"n_epochs": 1})
    synk.close()
    np.testing.assert_allclose(history, serial(name)[0][:1], rtol=1e-9, atol=1e-12)
    assert not str(parallel).startswith("0 "), parallel.explain()


def test_streams_are_the_serial_ones_and_rows_are_where_they_were_scattered():
    """On two ranks a batch has other rows: some of each rank's."""
    expected, _ = serial("dA")
    for ranks in 1, 2:
        with synk.session(ranks):
            history = train("dA_synk", OPTIONS["dA"])
        if ranks == 1:
            np.testing.assert_allclose(history, expected, rtol=1e-9)
    # Serial runs with other seeds ended within 0.07 of their mean.
    assert abs(history[-1] - expected[-1]) < 0.4
    assert abs(history[-1] - history[0]) > 3.0


def test_an_old_script_runs_as_it_is_and_the_moved_one_prints_the_same(capfd):
    flags = {"THEANO_FLAGS": "mode=FAST_COMPILE,cxx=,device=cpu"}
    serially = run_python("-m", "synk", SCRIPTS / "logistic.py", **flags).stdout
    assert "epoch 10: cost 0.26" in serially
    try:
        runpy.run_path(str(SCRIPTS / "logistic_synk.py"), run_name="__main__")
    finally:
        synk.close()
    assert capfd.readouterr().out == serially


def test_the_page_shows_every_script_and_moved_ones_fork_first():
    page = (DOCS / "moving.rst").read_text()
    there = {path.stem for path in SCRIPTS.glob("*.py")}
    for name in NAMES:
        shown = "literalinclude:: /moving/{0}_synk.py\n   :diff: /moving/{0}.py\n"
        assert shown.format(name) in page, name
    of_systems = {*SYSTEMS, *(old for olds in SYSTEMS.values() for old in olds)}
    assert there == {*NAMES, *(f"{name}_synk" for name in NAMES), *of_systems}
    for name in there:
        text = (SCRIPTS / f"{name}.py").read_text()
        assert f"/moving/{name}.py" in page, name
        compile(text, name, "exec")
        if not name.endswith("_synk"):
            assert "synk" not in text, name
            continue
        assert re.search(r"^import synk\nimport theano\b", text, re.M), name
        assert text.endswith('__main__":\n    synk.fork()\n    train()\n'), name
        assert "theano.function" not in text, name


def test_the_gradient_of_contrastive_divergence_is_shown_to_be_an_average():
    import rbm_synk

    x = T.matrix("x")
    machine = rbm_synk.RBM(x, 6, 4, np.random.RandomState(0), RandomStreams(1))
    _, start = machine.sample_h_given_v(x)
    samples, updates = theano.scan(
        machine.gibbs_hvh, outputs_info=[None, None, None, start], n_steps=2
    )
    end = samples[1][-1]
    cost = T.mean(machine.free_energy(x)) - T.mean(machine.free_energy(end))
    parts = synk.grad(cost, machine.params, consider_constant=[end])
    plain = T.grad(cost, machine.params, consider_constant=[end])
    # By numba, of which a toss takes one number whatever its odds are.
    how = {"strict": True, "mode": "NUMBA"}
    f = synk.function([x], [cost, *plain], updates=updates, **how)
    assert f.output_modes == ["avg"] * 4
    updates = dict(updates) | dict(zip(machine.params, parts, strict=True))
    with pytest.warns(synk.SplitWarning, match="Scan"):
        step = synk.function([x], plain[0], updates=updates)
    with synk.session(1):
        expected = step(np.ones((5, 6)))
    np.testing.assert_allclose(machine.W.get_value(), expected, rtol=1e-12)


def test_arguments_of_pytensors_function_are_taken(two_ranks):
    x, n = T.matrix("x"), T.lscalar("n")
    w = theano.shared(1.0, "w")
    options = dict.fromkeys(["no_default_updates", "allow_input_downcast"], True)
    options |= dict.fromkeys(["accept_inplace", "trust_input", "profile"], False)
    f = synk.function(
        [pytensor.In(x, borrow=True)],
        [pytensor.Out((x * w).sum(), borrow=True), (x.max(), "max")],
        updates=[(w, w + 1)],
        givens={},
        bcast_inputs=[n],
        name="f",
        on_unused_input="ignore",
        rebuild_strict=True,
        **options,
    )
    assert [float(value) for value in f([[1, 2], [3, 4], [5, 6]], 3)] == [21, 6]
    assert w.get_value() == 2
    f = synk.function([x], None, updates=[(w, x.sum())])
    assert f(np.ones((2, 2))) in (None, [])
    assert w.get_value() == 4


# -- systems for several GPUs


@pytest.mark.parametrize("name", SYSTEMS)
def test_scripts_for_several_gpus_learn_on_ranks(name, two_ranks):
    history = train(name, {"n_epochs": 10})
    assert history[-1, 0] < 0.5 * history[0, 0]
    assert history[-1, 1] < 0.2


def test_a_model_class_of_theano_mpi_learns_as_it_is():
    rule = compat.EASGD()
    rule.verbose = False
    rule.init(["cpu"] * 2, "theano_mpi", "MLP")
    record = rule.wait()
    errors = [error for _, _, error, _ in record.val_info]
    # After the first epoch it is 0.28 to 0.55: who exchanges with whom is chance.
    assert errors[-1] < 0.6 * errors[0]
    assert errors[-1] < 0.2
    np.testing.assert_allclose([rate for _, rate in record.lr], [0.2] * 8 + [0.02] * 2)
