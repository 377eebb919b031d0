"""What a session computes in a trial, beside the same by plain PyTensor.

The script of a trial trains a small model. It knows how many steps have returned, so
that after any fault its weights must be those of the serial run after so many steps,
or after one more: where an interrupt comes as a step ends, that step was made.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
from processes import PY, summing

import synk

ACTIVITIES = ("step", "scores", "collective", "new_function", "save")
"""What a script does in trials: methods of `Work`."""

STEPS = 300
"""Then the weights begin anew."""

X = np.random.default_rng(1).normal(size=(14, 3))
Y = np.sign(np.random.default_rng(2).normal(size=14))


class Wrong(AssertionError):
    """A number is not that of the serial run."""


class Work:
    """Functions and variables of a script, and what they must give."""

    def __init__(self) -> None:
        self.weights = pytensor.shared(np.zeros(3), name="weights")
        self.ones = pytensor.shared(np.ones(5), name="ones")
        self.step_ = _training(self.weights, synk.function)
        x = pt.matrix("x", dtype="float64")
        self.scores_ = synk.function([x], x @ self.weights, mode=PY, name="scores")
        self.sum_ = summing()
        self.made = 0
        serial = pytensor.shared(np.zeros(3))
        step = _training(serial, pytensor.function)
        self.expected = [serial.get_value()]
        self.losses = []
        for _ in range(STEPS + 1):
            self.losses.append(float(step(X, Y)))
            self.expected.append(serial.get_value())

    # -- what the script does, again and again

    def step(self) -> None:
        """Make a step: a call whose ranks meet, and that updates a variable."""
        if self.made == STEPS:
            self.weights.set_value(np.zeros(3))
            self.made = 0
        loss = self.step_(X, Y)
        self.made += 1
        compare(loss, self.losses[self.made - 1], "the loss")

    def scores(self) -> None:
        """Gather an output of which every rank has rows."""
        compare(self.scores_(X), X @ self.weights.get_value(), "the scores")

    def total(self) -> None:
        """Call a function in which no ranks meet."""
        compare(self.sum_(X), X.sum(), "the sum")

    def collective(self) -> None:
        """Set a variable on all ranks, and add up what they have."""
        synk.broadcast(self.ones, np.ones(5))
        synk.all_reduce(self.ones, "sum")
        compare(self.ones.get_value(), np.full(5, synk.size()), "the reduced ones")

    def new_function(self) -> None:
        """Make a function, which ranks get and compile, and drop it."""
        compare(summing()(X), X.sum(), "a new function's sum")

    def save(self) -> None:
        """Write a checkpoint, and read it."""
        path = Path(self.folder) / "weights.npz"
        synk.save(path, self.weights)
        synk.load(path, self.weights)
        self.settle()

    folder = "."

    # -- what must hold

    def settle(self) -> None:
        """Raise unless the weights are as after the steps made, or one more."""
        value = self.weights.get_value()
        for made in (self.made, self.made + 1):
            if np.allclose(value, self.expected[made], rtol=1e-12, atol=1e-14):
                self.made = made
                return
        raise Wrong(f"{value} after {self.made} steps, not {self.expected[self.made]}")

    def let_go(self) -> None:
        """Have no variable's value lie in shared memory: it stays there after close."""
        self.ones.set_value(np.ones(5))

    def check(self) -> None:
        """Raise unless the running session computes what plain PyTensor does."""
        self.settle()
        for act in (self.step, self.scores, self.total, self.collective, self.step):
            act()
        for rank in range(synk.size()):
            value = synk.get_value(rank, self.weights)
            compare(value, self.expected[self.made], f"the weights on rank {rank}")


def _training(weights, make):
    x, y = pt.matrix("x", dtype="float64"), pt.vector("y", dtype="float64")
    loss = pt.log1p(pt.exp(-y * (x @ weights))).mean()
    new = weights - 0.1 * pt.grad(loss, weights)
    return make([x, y], loss, updates=[(weights, new)], mode=PY, name="step")


def compare(got, right, what: str) -> None:
    """Raise Wrong unless a number, or an array, is that of plain PyTensor."""
    if not np.allclose(got, right, rtol=1e-12, atol=1e-14):
        raise Wrong(f"{what}: {got}, and {right} by plain PyTensor")
