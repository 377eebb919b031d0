"""A trial: one row of the table, played in a process of its own, and judged.

::

    the tests, or soak.py
      +-- a trial's master      forks a session, meets the fault, comes back
            +-- zygote, ranks

The master says by a pipe what has happened, if it lives. What dies with it is seen
from outside: the tests' process takes its orphans over.
"""

from __future__ import annotations

import gc
import json
import os
import random
import re
import resource
import select
import signal
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psutil
import pytest
from processes import note, reset, since_death, stamp
from work import Work, Wrong
from world import Leak, World, adopting_orphans, bury, children, names_of_the_dead

import synk
from synk.ranks.session import SESSION
from synk.workers.zygote import open_pidfd

BROKEN, GOES_ON, GONE, EITHER = "broken", "going on", "gone", "any of these"
"""What becomes of the session, where the master lives."""

ARMED, RANKS = 100, 8
"""Where on the board that all processes share it says which ranks are to act."""

LIMIT = 40.0
"""Seconds after which a trial hangs."""


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
    repeats: int = 3
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
        if seconds > row.seconds:
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
        """Have a session again, as a script does after a fault."""
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


# -- seen from outside


def begin() -> Work:
    """Return what trials compute, with all loaded that their sessions need."""
    work = Work()
    with synk.session(2):
        work.check()
    work.let_go()
    return work


@dataclass
class Outcome:
    """What came of a trial.

    Attributes
    ----------
    verdict : str
        "survived", "hang", "leak", "wrong" or "unexpected".
    detail : str
    measured : dict
        "detected", "recovered": seconds; "error": class; "gone": seconds from the
        master's death to that of the last rank.
    """

    verdict: str
    detail: str = ""
    measured: dict[str, Any] = field(default_factory=dict)


def play(row: Row, work: Work, seed: str) -> Outcome:
    """Play a row in a child; whatever comes of it, leave no process behind."""
    reset()
    for rank in range(RANKS):
        note(ARMED + rank, 0)
    stamp()
    others, names = children(os.getpid()), names_of_the_dead()
    reads, writes = os.pipe()
    with adopting_orphans():
        child = os.fork()
        if child == 0:
            os.close(reads)
            _be_master(row, work, seed, writes)
        os.close(writes)
        status, said = _follow(child, reads)
        if status is None:
            where = _where(child)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            bury(others, 2)
            return Outcome("hang", f"{row.name} ({seed}): after {LIMIT} s; {where}")
        ended = since_death()
        left = bury(others, 2)
        gone = since_death()
    outcome = _judge(row, status, said)
    if status:
        outcome.measured |= {"gone": gone, "ended": ended}
    outcome.detail = f"{row.name} ({seed}): {outcome.detail}"
    if outcome.verdict == "survived":
        if left:
            return Outcome("leak", f"{row.name} ({seed}): processes {left}")
        if status and (new := names_of_the_dead() - names):
            return Outcome("leak", f"{row.name} ({seed}): {new} in /dev/shm")
    return outcome


def _judge(row: Row, status: int, said: bytes) -> Outcome:
    if status != row.status:
        return Outcome("unexpected", f"exit status {status}; {said.decode()}")
    if row.status:
        return Outcome("survived")
    found = json.loads(said)
    return Outcome(found["verdict"], found["detail"], found["measured"])


def _follow(child: int, reads: int) -> tuple[int | None, bytes]:
    """Return a child's exit status, None if it does not end, and what it said."""
    said, deadline = b"", time.monotonic() + LIMIT
    poll = select.poll()
    poll.register(reads, select.POLLIN)
    pidfd = open_pidfd(child)
    poll.register(pidfd, select.POLLIN)
    try:
        while (left := deadline - time.monotonic()) > 0:
            events = dict(poll.poll(1000 * left))
            if reads in events and (piece := os.read(reads, 1 << 16)):
                said += piece
            elif pidfd in events:
                return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said
        return None, said
    finally:
        os.close(reads)
        os.close(pidfd)


def _where(pid: int) -> str:
    """Say what the processes of a trial that hangs are waiting for."""
    found = []
    try:
        process = psutil.Process(pid)
        for one in [process, *process.children(recursive=True)]:
            with open(f"/proc/{one.pid}/wchan") as wchan:
                found.append(f"{one.pid} {one.status()} {wchan.read()}")
    except (psutil.NoSuchProcess, OSError):
        pass
    return ", ".join(found)


def _be_master(row: Row, work: Work, seed: str, writes: int) -> None:
    """Run a trial, say what came of it, and end."""
    gc.freeze()  # collections would copy all pages of what the tests have imported
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    said = {"verdict": "survived", "detail": "", "measured": {}}
    try:
        said["measured"] = Trial(row, work, seed).run()
    except BaseException as error:
        kinds = {Leak: "leak", Wrong: "wrong"}
        said["verdict"] = kinds.get(type(error), "unexpected")
        said["detail"] = traceback.format_exc()[-20_000:]
    try:
        data = json.dumps(said).encode()
        while data:
            data = data[os.write(writes, data) :]
    finally:
        os._exit(0)
