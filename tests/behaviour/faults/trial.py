"""A trial: one row of the fault table, played by a master, and judged."""

from __future__ import annotations

import random
import re
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from processes import since_death, stamp
from work import Work, Wrong
from world import Leak, World

import synk
from synk.ranks.session import SESSION

BROKEN, GOES_ON, GONE, EITHER = "broken", "going on", "gone", "any of these"
"""What becomes of the session, where the master lives."""

ARMED, RANKS = 100, 8
"""Where on the board that all processes share it says which ranks are to act."""


@dataclass(frozen=True)
class Row:
    """A fault at a moment, and what is to come of it.

    Attributes
    ----------
    name : str
    play : callable
        ``play(trial)`` prepares, and returns what is then called.
    error : class, None, or tuple of these
        What the call raises; None is for nothing.
    text : str
        A regular expression for the message.
    seconds : float
        From the fault to the exception, at the most.
    session : str
        What becomes of it.
    status : int
        How the master's process ends.
    repeats : int
        How often the tests play it.
    needs : callable, optional
        Returns why the row cannot be played here, or "".
    """

    name: str
    play: Callable[[Trial], Callable[[], object]]
    error: Any
    text: str = ""
    seconds: float = 1.0
    session: str = BROKEN
    status: int = 0
    repeats: int = 1
    needs: Callable[[], str] = field(default=lambda: "")

    @property
    def errors(self) -> tuple:
        return self.error if isinstance(self.error, tuple) else (self.error,)


class Unexpected(AssertionError):
    """Another exception than the row has, or another message, or too late."""


class Trial:
    """What a row may use.

    Attributes
    ----------
    rng : random.Random
        For moments that are drawn.
    work : Work
    patch : pytest.MonkeyPatch
        Undone before the session comes back.
    """

    def __init__(self, row: Row, work: Work, seed: str) -> None:
        self.row, self.work, self.seed = row, work, seed
        self.rng = random.Random(seed)
        self.patch = pytest.MonkeyPatch()
        self.ranks = 3

    def fork(self, n: int = 3, activity: str = "step", **options: Any) -> None:
        """Fork, and do once what is to be done, so that all is compiled."""
        self.ranks = n
        synk.fork(n, **options)
        getattr(self.work, activity)()

    def run(self) -> dict[str, Any]:
        """Play the row and judge it; return what was measured."""
        warnings.simplefilter("ignore", synk.OversubscriptionWarning)
        with synk.session(1):
            pass  # what a session leaves until the next one is of this process now
        world = World()
        with tempfile.TemporaryDirectory(prefix="synk-fault-") as folder:
            self.work.folder = folder
            call = self.row.play(self)
            caught, measured = self._meet(call)
            self._check_error(caught, measured["detected"])
            del caught, call
            self.patch.undo()
            self._check_session()
            start = time.monotonic()
            self.come_back(world)
            self.work.check()
            measured["recovered"] = time.monotonic() - start
            self.end(world)
        return measured

    def _meet(self, call: Callable) -> tuple[BaseException | None, dict]:
        caught = None
        stamp()  # in case that the fault does not
        try:
            call()
        except BaseException as error:
            caught = error
        seconds = since_death()
        kind = type(caught).__name__ if caught is not None else ""
        return caught, {"detected": seconds, "error": kind}

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
            raise Unexpected(f"after {seconds:.2f} s, not {row.seconds} s") from caught

    def _check_session(self) -> None:
        state = GONE
        if synk.is_forked():
            state = GOES_ON if _is_running() else BROKEN
        if self.row.session not in (state, EITHER):
            raise Unexpected(f"the session is {state}, not {self.row.session}")
        if state == GOES_ON:
            self.work.check()
        elif state == BROKEN:
            self._check_broken()

    def _check_broken(self) -> None:
        """Raise unless further calls say soon that a rank is dead."""
        start = time.monotonic()
        for call in (self.work.step, self.work.collective):
            try:
                call()
            except synk.WorkerDied:
                continue
            raise Unexpected("a call was made with a dead rank")
        if time.monotonic() - start > 1:
            raise Unexpected("calls of a broken session take long to say so")

    def come_back(self, world: World) -> None:
        """Have a session again, as a script does after a fault: in one of two ways."""
        if synk.is_forked() and self.rng.random() < 0.5:
            synk.recover()
        else:
            self.end(world)
            synk.fork(self.ranks)

    def end(self, world: World) -> None:
        """Close, and look at what is left."""
        synk.close()
        self.work.let_go()
        world.check()


def _is_running() -> bool:
    try:
        SESSION.check_running()
    except synk.WorkerDied:
        return False
    return True


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return ""
