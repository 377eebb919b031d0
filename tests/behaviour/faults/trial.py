"""A trial: one row of the fault table, played by a master, and judged.

The script of a trial trains a small model. It knows how many steps have returned, so
that after any fault its weights must be those of the serial run after so many steps,
or after one more: where an interrupt comes as a step ends, that step was made.
"""

import gc
import os
import random
import re
import signal
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from processes import PY, children, links, since_death, stamp, summing

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


# -- what a session must leave as it was

PATIENCE = 5.0
"""Seconds that the kernel may take to end the ranks of a zygote that was killed."""


class Leak(AssertionError):
    """Something was left behind."""


def look() -> dict[str, object]:
    """Return what must be the same before a session and after it."""
    gc.collect()
    return {
        "children": set(children(os.getpid())),
        "descriptors": Counter(map(_kind, links("self"))),
        "held-back signals": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "handlers": [signal.getsignal(number) for number in _HANDLED],
        "cores": os.sched_getaffinity(0),
    }


_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)


def _kind(link: str) -> str:
    """Return what a descriptor refers to, without the numbers of it."""
    link = link.partition(":")[0] if re.match(r"\w+:\[", link) else link
    return re.sub("synk-[-0-9]+", "synk", link)


# -- trials

BROKEN, GOES_ON, GONE, EITHER = "broken", "going on", "gone", "any of these"
"""What becomes of the session, where the master lives."""

ARMED, RANKS = 100, 8
"""Where on the board that all processes share it says which ranks are to act."""

Play = Callable[["Trial"], Iterator[None]]
"""Prepares, yields, and then does what meets the fault."""


def playing(act: Callable[..., Iterator[None]]) -> Callable[..., Play]:
    """Return what takes all arguments but the trial, and returns a row's `play`."""
    return lambda *args, **options: lambda trial: act(trial, *args, **options)


@dataclass(frozen=True)
class Row:
    """A fault at a moment, and what is to come of it."""

    name: str
    play: Play
    error: Any
    """The class that the call raises; None is for nothing, a tuple for any of these."""
    text: str = ""
    """A regular expression for the message."""
    session: str = BROKEN
    seconds: float = 1.0
    """From the fault to the exception, at the most."""
    status: int = 0
    """How the master's process ends."""
    alone: bool = False
    """Whether the row has a master of its own, as it changes that for good."""
    varies: bool = False
    """Whether its moment is drawn, so that playing it again may meet something else."""
    needs: Callable[[], str] = str
    """Returns why the row cannot be played here, or nothing."""

    @property
    def errors(self) -> tuple:
        return self.error if isinstance(self.error, tuple) else (self.error,)


class Unexpected(AssertionError):
    """Another exception than the row has, or another message."""


class Late(AssertionError):
    """The right exception, but later than the row says."""


class Master:
    """What trials of one process have in common: what it was, and its session."""

    def __init__(self, work: Work) -> None:
        self.work = work
        warnings.simplefilter("ignore", synk.OversubscriptionWarning)
        with synk.session(1):
            pass  # what a session leaves until the next one is of this process now
        self.world = look()
        self.forked: tuple = ()

    def fork(self, n: int, **options: Any) -> None:
        """Have a session; the one that runs, if it was forked in the same way."""
        if synk.is_forked() and self.forked != (n, options):
            self.end()
        if not synk.is_forked():
            synk.fork(n, **options)
            self.forked = n, options

    def end(self) -> None:
        """Close, and raise Leak unless all is as it was; wait a moment for it."""
        synk.close()
        self.work.let_go()
        deadline = time.monotonic() + PATIENCE
        while (now := look()) != self.world and time.monotonic() < deadline:
            time.sleep(0.005)
        changed = {key: (old, now[key]) for key, old in self.world.items()}
        if changed := {key: two for key, two in changed.items() if two[0] != two[1]}:
            raise Leak(f"left behind (before, after): {changed}")


class Trial:
    """What a row may use: draws, the script's work, and patches that are undone."""

    def __init__(self, row: Row, master: Master, seed: str) -> None:
        self.row, self.master, self.work = row, master, master.work
        self.rng = random.Random(seed)
        self.patch = pytest.MonkeyPatch()

    def fork(self, n: int = 3, activity: str = "step", **options: Any) -> None:
        """Have a session, and do once what is to be done, so that all is compiled."""
        self.master.fork(n, **options)
        getattr(self.work, activity)()

    def repeating(self, activity: str, **options: Any) -> Callable[[], object]:
        """Return a method of `Work`; of "fork", what has a session of one step."""
        if activity == "fork":
            self.master.end()
            return self._fork_step_and_close
        self.fork(activity=activity, **options)
        return getattr(self.work, activity)

    def _fork_step_and_close(self) -> None:
        with synk.session(3):
            self.work.step()

    def run(self) -> dict[str, Any]:
        """Play the row and judge it; return what was measured."""
        with tempfile.TemporaryDirectory(prefix="synk-fault-") as folder:
            self.work.folder = folder
            play = self.row.play(self)
            next(play)
            caught, measured = _meet(play)
            self._check_error(caught, measured["detected"])
            del caught, play
            self.patch.undo()
            self._check_session()
            start = time.monotonic()
            self._come_back()
            self.work.check()
            measured["recovered"] = time.monotonic() - start
        return measured

    def _check_error(self, caught: BaseException | None, seconds: float) -> None:
        row = self.row
        if isinstance(caught, (Wrong, Leak)):
            raise caught
        kinds = tuple(kind for kind in row.errors if kind is not None)
        if not (None in row.errors if caught is None else isinstance(caught, kinds)):
            raise Unexpected(f"{caught!r:.1000}, not {row.error}") from caught
        if caught is not None and not re.search(row.text, _said(caught), re.S):
            raise Unexpected(f"the message has no {row.text!r}") from caught
        if caught is not None and seconds > row.seconds:
            raise Late(f"after {seconds:.2f} s, not {row.seconds} s") from caught

    def _check_session(self) -> None:
        if not synk.is_forked():
            state = GONE
        else:
            state = GOES_ON if self._can_step() else BROKEN
        if self.row.session not in (state, EITHER):
            raise Unexpected(f"the session is {state}, not {self.row.session}")
        if state == BROKEN:
            start = time.monotonic()
            if self._can_step(self.work.collective):
                raise Unexpected("a call was made with a dead rank")
            if time.monotonic() - start > 1:
                raise Late("calls of a broken session take long to say so")

    def _can_step(self, call: Callable[[], object] | None = None) -> bool:
        self.work.settle()
        try:
            (call or self.work.step)()
        except synk.WorkerDied:
            return False
        return True

    def _come_back(self) -> None:
        """Have a session again, as a script does after a fault: in one of two ways."""
        if not synk.is_forked() or self.rng.random() < 0.3:
            self.master.end()
            self.master.fork(3)
        else:
            synk.recover()  # which does nothing where none has died


def _meet(play: Iterator[None]) -> tuple[BaseException | None, dict[str, Any]]:
    caught = None
    stamp()  # in case that the fault does not
    try:
        next(play, None)
    except BaseException as error:
        caught = error
    seconds = since_death()
    kind = type(caught).__name__ if caught is not None else ""
    return caught, {"detected": seconds, "error": kind}


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""
