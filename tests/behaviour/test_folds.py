"""Cross-validation and sweeps: trainings that begin alike, by one compiled step."""

from __future__ import annotations

import json
import os
import signal

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from synk.callbacks import LearningRate, Patience
from synk.ranks.session import SESSION
from synk.rules import EASGD, Gossip

FAST = "FAST_COMPILE"
RANDOM = np.random.default_rng(1)
X = RANDOM.normal(size=(31, 2))
Y = X @ [1.5, -0.5] + 0.3 * RANDOM.normal(size=31)
START = np.array([0.5, 0.25])
FOLDS = [(np.arange(10, 31), np.arange(10)), (slice(0, 20), np.arange(31) >= 20)]
RULES = [None, EASGD(2, order="turns"), Gossip(0.5, order="turns")]
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
        how = {"local": rule is not None, "mode": FAST}
        self.step = synk.function([x, y], loss, updates=updates, **how)
        self.error = synk.function([x, y], ((x @ w - y) ** 2).mean(), mode=FAST)
        self.trainer = synk.Trainer(self.step, [w], rule, seed=2)


def lowered(made):
    """Return callbacks that change the rate as training goes on."""
    return [LearningRate(made.rate, lambda epoch: 0.05 / (1 + epoch))]


def told(history):
    """Return what follows from the numbers alone, and not from the time."""
    names = ("epoch", "step", "loss", "val_loss")
    epochs = [[epoch[n] for n in names if n in epoch] for epoch in history.epochs]
    return history.losses, history.step_rows, epochs


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_of_least_squares_it_is_that_of_numpy(ranks):
    """By Newton's steps, of all rows at once: the first one is the solution."""
    x, y = pt.matrix("x"), pt.vector("y")
    w = pytensor.shared(START.copy(), "w")
    away = x @ w - y
    step = w - pt.linalg.solve(x.T @ x, x.T @ away)
    train = synk.function([x, y], (away**2).mean(), updates={w: step}, mode=FAST)
    error = synk.function([x, y], (away**2).mean(), mode=FAST)
    splits = pytest.importorskip("sklearn.model_selection").KFold(4).split(X)
    with synk.session(ranks):
        data = synk.data(X), synk.data(Y)
        found = synk.cross_validate(
            synk.Trainer(train, [w]),
            *data,
            folds=splits,
            epochs=2,
            validation=(error, *data),
            batch_size=31,
            progress=False,
        )
    errors = []
    for low in range(0, 32, 8):
        held_back = np.arange(low, min(low + 8, 31))
        rest = np.setdiff1d(np.arange(31), held_back)
        w, *_ = np.linalg.lstsq(X[rest], Y[rest])
        errors.append(np.mean((X[held_back] @ w - Y[held_back]) ** 2))
    np.testing.assert_allclose(found.values["val_loss"], errors, rtol=1e-9)
    assert found.mean["val_loss"] == pytest.approx(np.mean(errors), rel=1e-9)
    assert found.std["val_loss"] == pytest.approx(np.std(errors), rel=1e-8)
    assert [len(fold.train) for fold in found.folds] == [23, 23, 23, 24]
    assert "4 folds: val_loss" in repr(found)


def alone(rule, fold, settings=()):
    """Train for one fold in a session of its own; return its history."""
    made = Made(rule)
    for name, value in settings:
        getattr(made, name).set_value(value)
    train, held_back = fold
    with synk.session(2):
        return made.trainer.fit(
            X,
            Y,
            **QUIET,
            epochs=3,
            rows=train,
            validation=lambda: made.error(X, Y, batch=held_back),
            callbacks=() if settings else lowered(made),
        )


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_fold_has_the_very_bits_of_a_training_by_itself(rule):
    """Velocities, random streams and rates begin anew; also on rows that are cut."""
    expected = [told(alone(rule, fold)) for fold in FOLDS]
    made = Made(rule)
    with synk.session(2):
        found = synk.cross_validate(
            made.trainer,
            X,
            Y,
            **QUIET,
            folds=FOLDS,
            epochs=3,
            validation=lambda rows: made.error(X, Y, batch=rows),
            callbacks=lambda: lowered(made),
        )
        assert [told(fold.history) for fold in found.folds] == expected
        assert not len(made.trainer.history)
        assert (made.w.get_value() == START).all()
        assert synk.get_value(1, made.w).tolist() == START.tolist()
        assert made.rate.get_value() == 0.05
    assert expected[0] != expected[1]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_a_trainer_goes_on_as_if_there_had_been_no_cross_validation(rule):
    ends = []
    for validates in (False, True):
        made = Made(rule)
        with synk.session(2):
            made.trainer.fit(X, Y, **QUIET)
            if validates:
                how = {"folds": [FOLDS[0]] * 2, "validation": (made.error, X, Y)}
                found = synk.cross_validate(made.trainer, X, Y, **QUIET, **how)
                first, second = (told(fold.history) for fold in found.folds)
                assert first == second  # from where the trainer is
            made.trainer.fit(X, Y, **QUIET)
            ends.append((told(made.trainer.history), made.w.get_value().tobytes()))
    assert ends[0] == ends[1]


@pytest.mark.parametrize("rule", RULES[:2], ids=repr)
def test_a_sweep_has_the_very_bits_of_trainings_by_themselves(rule):
    values = [(0.05, 0.0), (0.05, 0.1), (0.02, 0.0), (0.02, 0.1)]
    names = "rate", "decay"
    first, last = (
        told(alone(rule, FOLDS[0], zip(names, some, strict=True)))
        for some in (values[0], values[-1])
    )
    made = Made(rule)
    train, held_back = FOLDS[0]

    def run(trainer):
        return trainer.fit(
            X,
            Y,
            **QUIET,
            epochs=3,
            rows=train,
            validation=lambda: made.error(X, Y, batch=held_back),
        )

    with synk.session(2):
        settings = {made.rate: [0.05, 0.02], made.decay: [0.0, 0.1]}
        found = synk.sweep(made.trainer, settings, run)
        assert [(s[made.rate], s[made.decay]) for s, _ in found] == values
        assert len({str(told(history)) for _, history in found}) == 4
        assert told(found[0][1]) == first
        assert told(found[-1][1]) == last
        one_by_one = [{made.decay: 0.1, made.rate: 0.02}, {made.rate: 0.05}]
        found = synk.sweep(made.trainer, iter(one_by_one), run)
        assert [told(history) for _, history in found] == [last, first]
        assert made.rate.get_value() == 0.05
        assert made.decay.get_value() == 0.0


@pytest.mark.parametrize("rule", RULES[:2], ids=repr)
def test_a_sweep_over_folds_compiles_once(rule, tmp_path):
    made = Made(rule)

    def new_in(path):
        """Return what is new in a trace, by rank: compiled, or made for a rule."""
        events = json.loads(path.read_text())["traceEvents"]
        names = "compile", "compile ahead", "replicate function", "open"
        return [
            [e["name"] for e in events if e["tid"] == rank and e["name"] in names]
            for rank in range(2)
        ]

    def validated(trainer):
        data = synk.data(X), synk.data(Y)
        validation = (made.error, *data)
        return synk.cross_validate(
            trainer, *data, **QUIET, folds=3, validation=validation
        )

    with synk.session(2):
        with synk.trace(tmp_path / "one.json"):
            made.trainer.fit(X, Y, **QUIET, validation=(made.error, X, Y))
        made.trainer = synk.Trainer(made.step, [made.w], rule, seed=2)
        with synk.trace(tmp_path / "all.json"):
            found = synk.sweep(made.trainer, {made.rate: [0.05, 0.01]}, validated)
        left_out = made.step.explain().to_dict()["calls"]["left_out"]
    assert [len(each.folds) for _, each in found] == [3, 3]
    assert left_out == 1  # the very first
    for of_rank in new_in(tmp_path / "one.json"):  # of the step and of the error
        assert of_rank.count("compile") == of_rank.count("replicate function") == 2
    # By a rule another trainer has other workers, one time for all.
    workers = [] if rule is None else ["open"]
    assert new_in(tmp_path / "all.json") == [workers, workers]


def test_folds_by_number_hold_each_row_back_once_in_an_order_of_the_seed():
    made = Made()
    held_back = {}
    with synk.session(2):
        for seed in (2, 2, 3):
            trainer = synk.Trainer(made.step, [made.w], seed=seed)
            validation = (made.error, X, Y)
            found = synk.cross_validate(trainer, X, Y, **QUIET, validation=validation)
            held_back.setdefault(seed, []).append([f.validation for f in found.folds])
            for train, others, _ in found.folds:
                assert sorted([*train, *others]) == list(range(31))
            assert [len(fold.validation) for fold in found.folds] == [7, 6, 6, 6, 6]
    again, other = held_back[2], held_back[3][0]
    for rows, same in zip(*again, strict=True):
        np.testing.assert_array_equal(rows, same)
    assert sorted(np.concatenate(again[0])) == list(range(31))
    assert again[0][0].tolist() != other[0].tolist()


def test_a_fold_has_callbacks_of_its_own():
    """Each stops after three epochs: patience that went on would stop the next one."""
    made = Made()
    with synk.session(2):
        found = synk.cross_validate(
            made.trainer,
            X,
            Y,
            **QUIET,
            folds=3,
            epochs=10,
            validation=lambda rows: {"constant": 1.0, "rows": len(rows)},
            callbacks=lambda: [Patience("val_constant", epochs=2)],
        )
    assert [len(fold.history) for fold in found.folds] == [3, 3, 3]
    assert found.values["val_rows"].tolist() == [11, 10, 10]


@pytest.mark.parametrize(
    ("folds", "error", "why"),
    [
        (1, ValueError, "31 rows can be cut into 2 to 31 folds, not 1"),
        (32, ValueError, "not 32"),
        ([(range(31), [])], ValueError, "fold 0 has no rows to validate on"),
        ([([], [1])], ValueError, "fold 0 has no rows to train on"),
        ([([0], [1]), ([0, 31], [1])], IndexError, "row 31"),
    ],
)
def test_folds_that_cannot_be_are_refused(folds, error, why):
    made = Made()
    with synk.session(1), pytest.raises(error, match=why):
        synk.cross_validate(
            made.trainer, X, Y, **QUIET, folds=folds, validation=lambda rows: 0.0
        )


def test_a_fold_needs_an_epoch():
    with synk.session(1), pytest.raises(ValueError, match="at least 1, got 0"):
        synk.cross_validate(
            Made().trainer, X, Y, **QUIET, epochs=0, validation=lambda rows: 0.0
        )


def test_a_sweep_over_what_is_compiled_in_is_refused():
    made, other = Made(), pytensor.shared(0.1, "other")
    with synk.session(1):
        for key, error, why in (
            ("rate", TypeError, "'rate' is none: numbers in a graph are compiled in"),
            (pt.scalar("s"), TypeError, "pytensor.shared"),
            (other, ValueError, "does not read other"),
        ):
            with pytest.raises(error, match=why):
                synk.sweep(made.trainer, {key: [0.1]}, pytest.fail)


def test_an_error_leaves_the_starting_values():
    made = Made(EASGD(2, order="turns"))

    def fails(trainer):
        trainer.fit(X, Y, **QUIET)
        raise KeyError("mine")

    with synk.session(2):
        with pytest.raises(KeyError, match="mine"):
            synk.sweep(made.trainer, {made.rate: [0.1]}, fails)
        assert made.rate.get_value() == 0.05
        for rank in range(2):
            assert synk.get_value(rank, made.w).tolist() == START.tolist()


def test_a_rank_that_dies_leaves_the_script_its_starting_values():
    made = Made()

    def fails(rows):
        os.kill(SESSION.run(worker_pid)[1], signal.SIGKILL)
        return 0.0

    with synk.session(2):
        with pytest.raises(synk.WorkerDied):
            synk.cross_validate(
                made.trainer, X, Y, **QUIET, epochs=1000, validation=fails
            )
        assert made.w.get_value().tolist() == START.tolist()
        synk.recover()
        assert synk.get_value(1, made.w).tolist() == START.tolist()


def worker_pid(context):
    return os.getpid()
