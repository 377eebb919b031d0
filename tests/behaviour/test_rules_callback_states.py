"""Training that goes on from a file, with callbacks that keep something."""

import csv
import functools
import json
import tempfile
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from on_ranks import three_ranks
from reference import PY

import synk
from synk.callbacks import (
    Callback,
    Checkpoint,
    CSVLog,
    JSONLog,
    LearningRate,
    Patience,
    Plateau,
    Target,
)

RANDOM = np.random.default_rng(4)
X = RANDOM.normal(size=(12, 3))
Y = X @ [1.0, -2.0, 0.5] + RANDOM.normal(size=12)
# The best is the fifth; from the ninth on nothing is better.
VALUES = [5.0, 4.0, 4.5, 3.0, 1.0, 2.0, 2.5, 1.5, 1.2, 3.0, 0.9, 2.0, 2, 2, 2, 2]


class Averaged(Callback):
    """Means of the parameters, as stochastic weight averaging keeps them."""

    def __init__(self, w) -> None:
        self.w, self.mean, self.seen = w, np.zeros(3), [("none", 0)]
        self.random = np.random.default_rng(3)

    def after_epoch(self, trainer, numbers):
        n = numbers["epoch"]
        self.mean = self.mean + (self.w.get_value() - self.mean) / n
        self.mean += self.random.normal(size=3)
        self.seen.append(("epoch", np.float32(n) / 3))

    def state_dict(self):
        return {"mean": self.mean, "seen": self.seen, 3: self.random}

    def load_state_dict(self, state):
        self.mean, self.seen, self.random = state["mean"], state["seen"], state[3]


class Halved:
    """No subclass: any object that can be called, with the two methods."""

    def __init__(self, variable) -> None:
        self.variable, self.calls = variable, 0

    def __call__(self, trainer, numbers):
        self.calls += 1
        if self.calls % 3 == 0:
            self.variable.set_value(self.variable.get_value() / 2)

    def state_dict(self):
        return {"calls": self.calls}

    def load_state_dict(self, state):
        self.calls = state["calls"]


class Run:
    """A script: it makes everything anew, and trains."""

    def __init__(self, folder, rule=None, callbacks=None) -> None:
        x, y = pt.matrix("x"), pt.vector("y")
        self.w = pytensor.shared(np.zeros(3), "w")
        starts = {"rate": 0.1, "other rate": 1.0, "decay": 0.5, "factor": 1.0}
        self.read = [pytensor.shared(value, name) for name, value in starts.items()]
        rate, other, decay, factor = self.read
        loss = ((x @ self.w - y) ** 2).mean() + decay * (self.w**2).sum()
        moved = self.w - rate * other * factor * pytensor.grad(loss, self.w)
        options = {"mode": PY, "local": rule is not None}
        step = synk.function([x, y], loss, updates={self.w: moved}, **options)
        self.trainer = synk.Trainer(step, [self.w], rule, seed=1)
        self.folder = folder
        self.own, self.halved = Averaged(self.w), Halved(factor)

        def decays(trainer, numbers):
            decay.set_value(decay.get_value() * 0.9)

        warm = LearningRate(other, lambda epoch: 1 / (1 + epoch))
        self.callbacks = [
            Patience("val_loss", epochs=5),
            Checkpoint(folder / "last.npz"),
            # What comes after one that saves has not heard of the epoch yet.
            Plateau(rate, factor=0.5, epochs=2),
            Checkpoint(folder / "best.npz", best="val_loss"),
            Patience("loss", epochs=12, smooth=True),
            Target("val_loss", -1),
            *(warm, decays, self.own, self.halved),
            CSVLog(folder / "log.csv"),
            JSONLog(folder / "log.jsonl"),
        ]
        if callbacks is not None:
            self.callbacks = callbacks(self)

    def fit(self, epochs):
        how = {"epochs": epochs, "batch_size": 5, "progress": False}
        how["validation"] = lambda: VALUES[len(self.trainer.history)]
        self.trainer.fit(X, Y, callbacks=self.callbacks, **how)

    def saved(self, epochs, name="saved.npz"):
        self.fit(epochs)
        self.trainer.save(self.folder / name)
        return self

    def load(self, name="saved.npz"):
        self.trainer.load(self.folder / name)
        return self

    def end(self):
        """Return all that is to be the same, to the bit."""
        history = self.trainer.history
        with (self.folder / "log.csv").open() as file:
            lines = [{n: r[n] for n in ("epoch", "loss")} for r in csv.DictReader(file)]
        text = (self.folder / "log.jsonl").read_text().splitlines()
        with np.load(self.folder / "best.npz") as best:
            told = json.loads(best["trainer"].tobytes())
            of_best = [best[n].tobytes() for n in best if n.startswith("variable")]
        return {
            "w": self.w.get_value().tobytes(),
            "read": [float(var.get_value()) for var in self.read],
            "own": (self.own.mean.tobytes(), self.own.seen, self.own.random.random()),
            "calls": self.halved.calls,
            "losses": history.losses,
            "epochs": [(e["epoch"], e["step"], e["loss"]) for e in history.epochs],
            "log": lines,
            "json": [json.loads(line)["epoch"] for line in text],
            "best": (len(told["history"]["epochs"]), of_best),
        }


@functools.cache
def uninterrupted(n, rule=None):
    """Return how the run ends that never stopped; there is a session of n ranks."""
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), rule)
        run.fit(16)
        return run.end()


EASGD = synk.rules.EASGD(2)


@pytest.mark.parametrize(("n", "rule"), [(3, None), (2, EASGD)], ids=repr)
def test_eight_and_eight_epochs_are_sixteen(tmp_path, n, rule):
    with synk.session(n):
        expected = uninterrupted(n, rule)
        # Patience of five epochs: the tenth is one too many after the fifth.
        assert len(expected["epochs"]) == 10
        first = Run(tmp_path, rule).saved(8, "by script.safetensors")
        first.fit(1)  # the file does not have this one, and the log does
    with synk.session(n):
        second = Run(tmp_path, rule).load("by script.safetensors")
        second.trainer.save(tmp_path / "again.npz")
        third = Run(tmp_path, rule).load("again.npz")
        third.fit(8)
        assert third.end() == expected


@three_ranks
@pytest.mark.parametrize("after", [1, 7])
def test_a_run_that_dies_goes_on_from_what_a_callback_saved(ranks, tmp_path, after):
    first = Run(tmp_path)
    first.fit(after - 1)

    def dies(trainer, numbers):
        raise MemoryError

    first.callbacks.insert(2, dies)  # right behind the first one that saves
    with pytest.raises(MemoryError):
        first.fit(1)
    second = Run(tmp_path).load("last.npz")
    second.fit(16 - after)
    assert second.end() == uninterrupted(ranks)


@three_ranks
def test_a_run_that_its_callbacks_ended_is_at_its_end(ranks, tmp_path):
    Run(tmp_path).fit(16)
    again = Run(tmp_path).load("last.npz")
    again.fit(16)
    assert again.end() == uninterrupted(ranks)
    # Without that callback it trains on: it was not asked.
    again.callbacks = []
    again.fit(2)
    assert len(again.trainer.history) == 12


@three_ranks
def test_callbacks_are_known_by_what_they_look_at(ranks, tmp_path):
    def three(run):
        rate, other, *_ = run.read
        return [
            Plateau(rate, epochs=2, factor=0.5),
            Plateau(other, epochs=3, factor=0.1),
            Plateau(rate, "loss", epochs=1),
        ]

    first = Run(tmp_path, callbacks=three).saved(4)
    second = Run(tmp_path, callbacks=lambda run: three(run)[::-1]).load()
    second.fit(0)
    for mine, other in zip(first.callbacks, second.callbacks[::-1], strict=True):
        assert mine.state_dict() == other.state_dict()
    others = lambda run: [Patience("loss"), Plateau(run.read[0], "val_acc")]  # noqa: E731
    third = Run(tmp_path, callbacks=others).load()
    with pytest.warns(UserWarning, match=r"Plateau\(val_acc, .* begins anew.*loss"):
        third.fit(0)


@three_ranks
def test_what_the_script_sets_before_it_goes_on_holds(ranks, tmp_path):
    """A variable that nobody changed while training is the script's."""
    first = Run(tmp_path, callbacks=lambda run: [Plateau(run.read[0], epochs=1)])
    first.read[1].set_value(0.5)  # before the first fit
    first.saved(4)
    second = Run(tmp_path)
    second.read[1].set_value(0.25)
    second.load()
    assert [float(var.get_value()) for var in second.read[:2]] == [0.1 * 0.1, 0.25]


@three_ranks
def test_a_callback_that_loads_leaves_the_others_as_they_are(ranks, tmp_path):
    """To go back to the best parameters does not undo the rate that was lowered."""
    run = Run(tmp_path)
    rate = run.read[0]

    def goes_back(trainer, numbers):
        if len(trainer.history) == 7:
            trainer.load(tmp_path / "best.npz")

    plateau = Plateau(rate, factor=0.5, epochs=2)
    best = Checkpoint(tmp_path / "best.npz", best="val_loss")
    run.callbacks = [best, plateau, goes_back]
    run.fit(7)
    assert len(run.trainer.history) == 5
    assert float(rate.get_value()) == 0.05
    run.fit(1)
    assert plateau.state_dict()["waited"] == 1
    assert float(rate.get_value()) == 0.05


@three_ranks
def test_what_a_file_cannot_hold_is_named(ranks, tmp_path):
    class Bad(Callback):
        def state_dict(self):
            return {"models": [1, object()]}

    with pytest.raises(TypeError, match=r"Bad\['models'\]\[1\] cannot be written"):
        Run(tmp_path, callbacks=lambda run: [Bad()]).saved(1)
