"""What is done between epochs: callbacks and logs, histories, folds and sweeps."""

import csv
import json
import math
import os
import signal
import sys
import time

import numpy as np
import psutil
import pytensor
import pytensor.tensor as pt
import pytest
from own_ops import OfFunction
from reference import PY

import synk
from synk.callbacks import (
    Callback,
    CSVLog,
    JSONLog,
    LearningRate,
    Patience,
    Plateau,
    Target,
    TensorBoard,
    cosine,
    step_decay,
    warm_up,
)
from synk.rules import EASGD, Gossip, LocalSGD

NAN = math.nan

# -- callbacks, on lists of numbers


def epochs_until_it_stops(callback, values):
    """Return after how many epochs training ends, or None."""
    for k, value in enumerate(values):
        if callback.after_epoch(None, {"epoch": k + 1, "loss": value}):
            return k + 1
    return None


LESS, MORE = {"epochs": 2}, {"epochs": 2, "better": "more"}


@pytest.mark.parametrize(
    ("callback", "values", "end"),
    [
        (Patience("loss"), [5, 4, 3, 2, 1], None),
        (Patience("loss", epochs=3), [5, 4, 4, 4, 4], 5),
        (Patience("loss", epochs=3), [5, 4, 6, 6, 3, 4, 4, 4], 8),
        (Patience("loss", **LESS), [1, 2, 3], 3),
        (Patience("loss", **MORE), [1, 2, 3], None),
        (Patience("loss", **MORE), [3, 2, 1], 3),
        (Patience("loss", epochs=3), [1, NAN, NAN, NAN], 4),
        (Patience("loss", **LESS), [NAN, NAN], 2),
        (Patience("loss", **LESS), [NAN, 3, 2, 1], None),
        # Noisy, but falling: means of two and two.
        (Patience("loss", **LESS, smooth=True), [5, 4, 6, 2, 4, 1, 3, 0], None),
        (Patience("loss", **LESS, smooth=True), [5, 4, 3, 2, 3, 2, 3, 2], 6),
        (Target("loss", 2), [3, 2, 1], 2),
        (Target("loss", 0.5), [3, 2, 1], None),
        (Target("loss", 0.95, "more"), [0.1, 0.9, 0.97], 3),
        (Target("loss", 2), [NAN, 1], 2),
    ],
)
def test_patience_and_targets_end_training(callback, values, end):
    assert epochs_until_it_stops(callback, values) == end


def test_a_name_that_is_not_there_is_an_error():
    with pytest.raises(KeyError, match=r"'acc': epoch, loss"):
        epochs_until_it_stops(Patience("acc"), [1])
    with pytest.raises(ValueError, match="'less' or 'more', got 'min'"):
        Patience("loss", better="min")


def test_schedules():
    stepped = [step_decay(1.0, [2, 4])(epoch) for epoch in range(6)]
    np.testing.assert_allclose(stepped, [1, 1, 0.1, 0.1, 0.01, 0.01])
    falling = [cosine(2.0, 4, last=1.0)(epoch) for epoch in range(6)]
    half = math.sqrt(0.5)
    np.testing.assert_allclose(falling, [2, 1.5 + half / 2, 1.5, 1.5 - half / 2, 1, 1])
    warm = [warm_up(lambda epoch: 1.0, 3)(epoch) for epoch in range(5)]
    np.testing.assert_allclose(warm, [0.25, 0.5, 0.75, 1, 1])


def test_a_rate_is_lowered_on_a_plateau():
    rate = pytensor.shared(np.float32(1), "rate")
    plateau = Plateau(rate, "loss", factor=0.5, epochs=2, least=0.2)
    rates = []
    for value in [3, 2, 2, 2, 2, 2, 1, 2, 2, 2, 2]:
        plateau.after_epoch(None, {"loss": value})
        rates.append(float(rate.get_value()))
    expected = [1, 1, 1, 0.5, 0.5, 0.25, 0.25, 0.25, 0.2, 0.2, 0.2]
    np.testing.assert_allclose(rates, expected, rtol=1e-6)
    assert rate.get_value().dtype == "float32"


def trained(callbacks, rule=None, **options):
    """Train on eight rows, five epochs or fewer, with a learning rate that is read."""
    x, w = pt.vector("x"), pytensor.shared(0.0, "w")
    rate = pytensor.shared(0.1, "rate")
    loss = ((x - w) ** 2).mean()
    updates = {w: w - rate * pytensor.grad(loss, w)}
    step = synk.function([x], loss, updates=updates, mode=PY, local=rule is not None)
    trainer = synk.Trainer(step, [w], rule)
    how = {"batch_size": 4, "epochs": 5, "progress": False} | options
    trainer.fit(np.ones(8), callbacks=callbacks(rate), **how)
    return trainer, float(w.get_value())


@pytest.mark.parametrize("rule", [None, LocalSGD(1)], ids=repr)
def test_rates_reach_all_ranks_and_training_ends_when_one_says_so(rule, two_ranks):
    asked = []

    class Asked(Callback):
        def after_epoch(self, trainer, numbers):
            asked.append(numbers["epoch"])

    def callbacks(rate):
        return [
            LearningRate(rate, lambda epoch: 0.1 / (epoch + 1)),
            lambda trainer, numbers: numbers["epoch"] == 3,
            Asked(),
        ]

    trainer, w = trained(callbacks, rule)
    rest = 1.0
    for epoch in range(3):
        rest *= (1 - 0.2 / (epoch + 1)) ** 2
    assert w == pytest.approx(1 - rest, rel=1e-12)
    assert asked == [1, 2, 3]
    assert len(trainer.history) == 3


def test_logs_have_a_line_for_each_epoch(tmp_path, two_ranks):
    commas, lines = tmp_path / "log.csv", tmp_path / "log.jsonl"
    lines.write_text("of an earlier run\n")
    accuracies = [0.5, NAN, 0.25]
    found = iter(accuracies)
    trainer, _ = trained(
        lambda rate: [CSVLog(commas), JSONLog(lines)],
        validation=lambda: {"acc": next(found)},
        epochs=3,
    )
    with commas.open() as file:
        of_commas = list(csv.DictReader(file))
    of_json = [json.loads(line) for line in lines.read_text().splitlines()]
    for log in (of_commas, of_json):
        assert [int(line["epoch"]) for line in log] == [1, 2, 3]
        assert [float(line["loss"]) for line in log] == trainer.history["loss"]
    assert [line["val_acc"] for line in of_commas] == ["0.5", "nan", "0.25"]
    assert [line["val_acc"] for line in of_json] == [0.5, None, 0.25]


def test_tensorboard(tmp_path, two_ranks):
    pytest.importorskip("tensorboardX")
    trained(lambda rate: [TensorBoard(tmp_path / "runs")], epochs=1)
    assert list((tmp_path / "runs").iterdir())


# -- histories


class Slow(OfFunction):
    """Passes rows on, after as many seconds as their first number says."""

    def compute(self, x):
        time.sleep(float(x[0]))
        return np.array(x)

    def pullback(self, inputs, outputs, gradients):
        return [gradients[0]]


synk.register_sharding(Slow, "rowwise")


@pytest.mark.parametrize("rule", [None, EASGD(1), EASGD(1, order="free")], ids=repr)
def test_the_time_of_an_epoch_is_divided(rule, two_ranks):
    """Of two ranks one sleeps 20 ms in each of 5 steps: so the other one waits."""
    x, w = pt.vector("x"), pytensor.shared(0.0, "w")
    loss = (Slow()(x) * 0 + (w - 1) ** 2).mean()
    updates = {w: w - 0.1 * pytensor.grad(loss, w, disconnected_inputs="ignore")}
    step = synk.function([x], loss, updates=updates, local=rule is not None, mode=PY)
    trainer = synk.Trainer(step, [w], rule, shuffle=False)
    trainer.fit(np.zeros(10), batch_size=2, progress=False)  # which compiles
    history = trainer.fit(np.array([0.02, 0] * 5), batch_size=2, progress=False)
    epoch = history.epochs[-1]
    spent = [epoch[name] for name in ("compute", "rows", "exchange", "wait")]
    assert min(spent) >= 0
    assert 0.1 <= sum(spent) <= epoch["seconds"]
    # Means of two ranks: half of 100 ms each, if the other one is not late itself.
    assert epoch["compute"] >= 0.05
    assert epoch["wait"] >= 0.025
    # Rank 0 sleeps in all of them.
    assert len(history.step_seconds) == len(history.losses) == 10
    assert min(history.step_seconds[5:]) >= 0.02
    assert sum(history.step_seconds[5:]) <= epoch["seconds"]
    assert history.step_rows == [2] * 10
    if rule is None:
        assert history["staleness"] == [0, 0]


TIMES = {"compute": 0.5, "rows": 0.1, "exchange": 0.2, "wait": 0.1}


def made_history(epochs=3):
    history = synk.History()
    for epoch in range(epochs):
        numbers = {"seconds": 1.0, **TIMES, "staleness": 0.5}
        if epoch:
            numbers["val_loss"] = 2.0 / epoch
        losses = np.array([4.0, 1.0]) / (epoch + 1)
        history.add_epoch(losses, [8, 4], [0.5, 0.25], numbers)
    return history


def test_a_history_is_read_from_its_file(tmp_path):
    history, path = made_history(), tmp_path / "history.json"
    history.add_epoch(np.array([math.inf, 1 / 3]), [8, 4], [0.1, 0.2], {"seconds": 1})
    history.save(path)
    assert vars(synk.History.load(path)) == vars(history)
    path.write_text('{"epochs": []}')
    with pytest.raises(ValueError, match=r"history\.json is no file of a history"):
        synk.History.load(path)


def test_frames_are_of_epochs_and_of_steps():
    pytest.importorskip("pandas")
    history = made_history()
    epochs, steps = history.to_frame(), history.to_frame("steps")
    assert epochs["step"].tolist() == [2, 4, 6]
    assert epochs["loss"].tolist() == [3.0, 1.5, 1.0]  # weighted by rows
    assert steps["step"].tolist() == [1, 2, 3, 4, 5, 6]
    assert steps["epoch"].tolist() == [1, 1, 2, 2, 3, 3]
    assert steps["loss"].tolist()[:2] == [4.0, 1.0]
    assert steps["rows"].tolist() == [8, 4] * 3
    assert steps["seconds"].tolist() == [0.5, 0.25] * 3
    with pytest.raises(ValueError, match="'epochs' or 'steps', got 'rows'"):
        history.to_frame("rows")


def test_a_history_is_drawn(tmp_path):
    figures = pytest.importorskip("matplotlib.figure")
    history, path = made_history(), tmp_path / "history.png"
    figure = history.plot(path)
    assert path.read_bytes()[:4] == b"\x89PNG"
    of_steps, of_epochs, of_time = figure.axes
    each, mean = of_steps.lines
    np.testing.assert_array_equal(each.get_ydata(), history.losses)
    np.testing.assert_array_equal(mean.get_xdata(), [2, 4, 6])
    np.testing.assert_array_equal(mean.get_ydata(), history["loss"])
    (line,) = of_epochs.lines
    assert line.get_label() == "val_loss"
    np.testing.assert_array_equal(line.get_ydata(), [np.nan, 2.0, 1.0])
    heights = {bars.get_label(): bars[0].get_height() for bars in of_time.containers}
    assert heights == pytest.approx(TIMES | {"compile, start": 0.1})
    assert of_time.containers[-1][0].get_y() == pytest.approx(0.9)  # stacked
    # Where the script says, and without validation.
    figure = figures.Figure()
    axes = figure.subplots(3)
    assert made_history(1).plot(axes=axes) is figure
    assert [len(panel.lines) for panel in axes[:2]] == [2, 1]
    assert axes[1].lines[0].get_label() == "loss"
    # A first epoch that compiles does not hide the others.
    history.epochs[0]["seconds"] = 100.0
    panel = history.plot().axes[2]
    assert panel.get_ylim() == (0, 1.5)
    assert "100 s" in panel.get_title()
    with pytest.raises(ValueError, match="no epoch was made yet"):
        synk.History().plot()


@pytest.mark.parametrize("name", ["matplotlib", "pandas"])
def test_what_is_missing_is_named(name, monkeypatch):
    for module in [name, "matplotlib.figure"]:
        monkeypatch.setitem(sys.modules, module, None)
    call = {"matplotlib": made_history().plot, "pandas": made_history().to_frame}[name]
    with pytest.raises(ImportError, match="pip install"):
        call()


# -- folds and sweeps

RANDOM = np.random.default_rng(1)
X = RANDOM.normal(size=(31, 2))
Y = X @ [1.5, -0.5] + 0.3 * RANDOM.normal(size=31)
START = np.array([0.5, 0.25])
FOLDS = [(np.arange(10, 31), np.arange(10)), (slice(0, 20), np.arange(31) >= 20)]
TURNS, GOSSIP = EASGD(2, order="turns"), Gossip(0.5, order="turns")
QUIET = {"batch_size": 8, "progress": False}


class Made:
    """A trainer of least squares whose velocities and random stream move along."""

    def __init__(self, rule=None):
        x, y = pt.matrix("x"), pt.vector("y")
        self.w = w = pytensor.shared(START.copy(), "w")
        self.rate = pytensor.shared(0.05, "rate")
        self.decay = pytensor.shared(0.0, "decay")
        loss = ((x @ w - y) ** 2).mean()
        grad = synk.grad if rule is None else pytensor.grad
        updates = synk.updates.momentum(grad(loss, [w]), [w], self.rate)
        stream = pytensor.shared(np.random.default_rng(5), "stream")
        after, drawn = pt.random.normal(size=2, rng=stream).owner.outputs
        updates[w] += 0.01 * drawn - self.decay * w
        updates[stream] = after
        how = {"local": rule is not None, "mode": PY}
        self.step = synk.function([x, y], loss, updates=updates, **how)
        self.error = synk.function([x, y], ((x @ w - y) ** 2).mean(), mode=PY)
        self.trainer = synk.Trainer(self.step, [w], rule, seed=2)

    def fit(self, fold, **how):
        """Train three epochs for a fold; what follows from the numbers alone."""
        rows, held_back = fold
        how |= {"rows": rows, "epochs": 3, **QUIET}
        how["validation"] = lambda: self.error(X, Y, batch=held_back)
        return told(self.trainer.fit(X, Y, **how))

    def validate(self, **how):
        """Cross-validate; by the step's own error, if nothing else is said."""
        given = {"validation": (self.error, X, Y), **QUIET, **how}
        return synk.cross_validate(self.trainer, X, Y, **given)

    def lowered(self):
        """Return callbacks that change the rate as training goes on."""
        return [LearningRate(self.rate, lambda epoch: 0.05 / (1 + epoch))]


def told(history):
    """Return what follows from the numbers alone, and not from the time."""
    names = ("epoch", "step", "loss", "val_loss")
    epochs = [[epoch[n] for n in names if n in epoch] for epoch in history.epochs]
    return history.losses, history.step_rows, epochs


@pytest.mark.parametrize("ranks", [3], indirect=True)
def test_of_least_squares_it_is_that_of_numpy(ranks):
    """By Newton's steps, of all rows at once: the first one is the solution."""
    x, y = pt.matrix("x"), pt.vector("y")
    w = pytensor.shared(START.copy(), "w")
    away = x @ w - y
    step = w - pt.linalg.solve(x.T @ x, x.T @ away)
    train = synk.function([x, y], (away**2).mean(), updates={w: step}, mode=PY)
    error = synk.function([x, y], (away**2).mean(), mode=PY)
    # As scikit-learn's KFold(4).split(X) gives them.
    held_back = np.array_split(np.arange(31), 4)
    splits = [(np.setdiff1d(np.arange(31), rows), rows) for rows in held_back]
    data = synk.data(X), synk.data(Y)
    how = {"folds": iter(splits), "epochs": 2, "validation": (error, *data)}
    trainer = synk.Trainer(train, [w])
    found = synk.cross_validate(trainer, *data, **how, batch_size=31, progress=False)
    errors = []
    for rest, rows in splits:
        w, *_ = np.linalg.lstsq(X[rest], Y[rest])
        errors.append(np.mean((X[rows] @ w - Y[rows]) ** 2))
    np.testing.assert_allclose(found.values["val_loss"], errors, rtol=1e-9)
    assert found.mean["val_loss"] == pytest.approx(np.mean(errors), rel=1e-9)
    assert found.std["val_loss"] == pytest.approx(np.std(errors), rel=1e-8)
    assert [len(fold.train) for fold in found.folds] == [23, 23, 23, 24]
    assert "4 folds: val_loss" in repr(found)


@pytest.mark.parametrize("rule", [None, TURNS, GOSSIP], ids=repr)
def test_a_fold_has_the_very_bits_of_a_training_by_itself(rule, two_ranks):
    expected = []
    for fold in FOLDS:
        made = Made(rule)
        expected.append(made.fit(fold, callbacks=made.lowered()))
    made = Made(rule)
    found = made.validate(
        folds=FOLDS,
        epochs=3,
        validation=lambda rows: made.error(X, Y, batch=rows),
        callbacks=made.lowered,
    )
    assert [told(fold.history) for fold in found.folds] == expected
    assert expected[0] != expected[1]
    assert not len(made.trainer.history)
    for rank in range(2):
        assert synk.get_value(rank, made.w).tolist() == START.tolist()
    assert made.rate.get_value() == 0.05


@pytest.mark.parametrize("rule", [TURNS, GOSSIP], ids=repr)
def test_a_trainer_goes_on_as_if_there_had_been_no_cross_validation(rule, two_ranks):
    ends = []
    for validates in (False, True):
        made = Made(rule)
        made.trainer.fit(X, Y, **QUIET)
        if validates:
            found = made.validate(folds=[FOLDS[0]] * 2)
            first, second = (told(fold.history) for fold in found.folds)
            assert first == second  # from where the trainer is
        made.trainer.fit(X, Y, **QUIET)
        ends.append((told(made.trainer.history), made.w.get_value().tobytes()))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("rule", [None, TURNS], ids=repr)
def test_a_sweep_has_the_very_bits_of_trainings_by_themselves(rule, two_ranks):
    values = [(0.05, 0.0), (0.05, 0.1), (0.02, 0.0), (0.02, 0.1)]
    ends = []
    for rate, decay in (values[0], values[-1]):
        made = Made(rule)
        made.rate.set_value(rate), made.decay.set_value(decay)
        ends.append(made.fit(FOLDS[0]))
    made = Made(rule)

    def run(trainer):
        made.trainer = trainer
        return made.fit(FOLDS[0])

    settings = {made.rate: [0.05, 0.02], made.decay: [0.0, 0.1]}
    swept = made.trainer
    found = synk.sweep(swept, settings, run)
    assert [(s[made.rate], s[made.decay]) for s, _ in found] == values
    assert len({str(of_one) for _, of_one in found}) == 4
    assert [found[0][1], found[-1][1]] == ends
    one_by_one = [{made.decay: 0.1, made.rate: 0.02}, {made.rate: 0.05}]
    found = synk.sweep(swept, iter(one_by_one), run)
    assert [of_one for _, of_one in found] == ends[::-1]
    assert made.rate.get_value() == 0.05
    assert made.decay.get_value() == 0.0


@pytest.mark.parametrize("rule", [None, TURNS], ids=repr)
def test_a_sweep_over_folds_compiles_nothing(rule, tmp_path, two_ranks):
    """Neither in the script nor on a rank, as a timeline of it shows."""

    def compiled(name):
        events = json.loads((tmp_path / name).read_text())["traceEvents"]
        return sum(event["name"] == "compile" for event in events)

    made, data = Made(rule), (synk.data(X), synk.data(Y))
    validation = {"validation": (made.error, *data), **QUIET}
    with synk.trace(tmp_path / "one.json"):
        made.trainer.fit(*data, **validation)
    with synk.trace(tmp_path / "all.json"):
        found = synk.sweep(
            synk.Trainer(made.step, [made.w], rule, seed=2),
            {made.rate: [0.05, 0.01]},
            lambda swept: synk.cross_validate(swept, *data, folds=3, **validation),
        )
    assert [len(each.folds) for _, each in found] == [3, 3]
    assert compiled("one.json") == 4  # the step and the error, on two ranks
    assert compiled("all.json") == 0


def test_folds_by_number_hold_each_row_back_once_in_an_order_of_the_seed(two_ranks):
    made, held_back = Made(), []
    for seed in (2, 2, 3):
        made.trainer = synk.Trainer(made.step, [made.w], seed=seed)
        folds = made.validate().folds
        for train, others, _ in folds:
            assert sorted([*train, *others]) == list(range(31))
        assert [len(fold.validation) for fold in folds] == [7, 6, 6, 6, 6]
        held_back.append(np.concatenate([fold.validation for fold in folds]).tolist())
    assert sorted(held_back[0]) == list(range(31))
    assert held_back[0] == held_back[1] != held_back[2]


def test_a_fold_has_callbacks_of_its_own(two_ranks):
    """Each stops after three epochs: patience that went on would stop the next one."""
    found = Made().validate(
        folds=3,
        epochs=10,
        validation=lambda rows: {"constant": 1.0, "rows": len(rows)},
        callbacks=lambda: [Patience("val_constant", epochs=2)],
    )
    assert [len(fold.history) for fold in found.folds] == [3, 3, 3]
    assert found.values["val_rows"].tolist() == [11, 10, 10]


def test_folds_and_sweeps_that_cannot_be_are_refused(two_ranks):
    made, other = Made(), pytensor.shared(0.1, "other")
    for how, error, why in (
        ({"folds": 1}, ValueError, "31 rows can be cut into 2 to 31 folds, not 1"),
        ({"folds": 32}, ValueError, "not 32"),
        ({"folds": [(range(31), [])]}, ValueError, "fold 0 has no rows to validate on"),
        ({"folds": [([], [1])]}, ValueError, "fold 0 has no rows to train on"),
        ({"folds": [([0], [1]), ([0, 31], [1])]}, IndexError, "row 31"),
        ({"epochs": 0}, ValueError, "at least 1, got 0"),
    ):
        with pytest.raises(error, match=why):
            made.validate(**how, validation=lambda rows: 0.0)
    for key, error, why in (
        ("rate", TypeError, "'rate' is none: numbers in a graph are compiled in"),
        (pt.scalar("s"), TypeError, "pytensor.shared"),
        (other, ValueError, "does not read other"),
    ):
        with pytest.raises(error, match=why):
            synk.sweep(made.trainer, {key: [0.1]}, pytest.fail)


def test_an_error_or_a_death_leaves_the_starting_values():
    made = Made(TURNS)

    def fails(trainer):
        trainer.fit(X, Y, **QUIET)
        raise KeyError("mine")

    def kills(rows):
        for process in psutil.Process().children(recursive=True):
            if process.ppid() != os.getpid():  # a rank, forked by our child
                os.kill(process.pid, signal.SIGKILL)
        return 0.0

    def check_values():
        assert made.rate.get_value() == 0.05
        for rank in range(2):
            assert synk.get_value(rank, made.w).tolist() == START.tolist()

    with synk.session(2):
        with pytest.raises(KeyError, match="mine"):
            synk.sweep(made.trainer, {made.rate: [0.1]}, fails)
        check_values()
        with pytest.raises(synk.WorkerDied):
            made.validate(epochs=1000, validation=kills)
        assert made.w.get_value().tolist() == START.tolist()
        synk.recover()
        check_values()


def test_folds_and_settings_side_by_side_have_the_numbers_of_one_after_the_other(
    two_ranks,
):
    """Each on a rank of its own; what they leave in the script is as it was."""
    made = Made()
    given = {"epochs": 3, "callbacks": made.lowered}
    expected, found = (made.validate(**given, groups=g).folds for g in (None, 2))
    assert len(found) == 5
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one.train, other.train)
        np.testing.assert_allclose(one.history.losses, other.history.losses, rtol=1e-12)
        assert told(one.history)[1] == told(other.history)[1]
    settings = {made.rate: [0.05, 0.02, 0.01]}

    def run(trainer):
        history = trainer.fit(X, Y, **QUIET)
        return history["loss"], made.w.get_value(), os.getpid()

    one_by_one, at_once = (
        synk.sweep(made.trainer, settings, run, groups=g) for g in (None, 2)
    )
    for (setting, expected), (other, found) in zip(one_by_one, at_once, strict=True):
        assert setting == other
        assert expected[2] == os.getpid() != found[2]
        np.testing.assert_allclose(found[0], expected[0], rtol=1e-12)
        np.testing.assert_allclose(found[1], expected[1], rtol=1e-12)
    assert len({found[2] for _, found in at_once}) == 2
    assert made.w.get_value().tolist() == START.tolist()
    assert made.rate.get_value() == 0.05
    with pytest.raises(KeyError, match="mine"):
        synk.sweep(made.trainer, settings, lambda _: {}["mine"], groups=2)
    for groups in (0, 3):
        with pytest.raises(ValueError, match=f"2 ranks cannot be {groups} groups"):
            made.validate(groups=groups)
    with pytest.raises(synk.StateError, match="leads a group itself"):
        synk.sweep(made.trainer, settings, lambda _: made.validate(groups=1), groups=2)


def test_a_group_of_as_many_ranks_has_the_very_bits_of_these(two_ranks):
    """Of a rule, whose numbers depend on how many there are."""
    made = Made(TURNS)
    some, others = (made.validate(groups=groups, folds=2).folds for groups in (None, 1))
    assert [told(f.history) for f in some] == [told(f.history) for f in others]
