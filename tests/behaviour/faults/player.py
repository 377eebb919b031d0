"""Trials seen from outside: their masters are processes, and what came of them.

::

    the tests, or soak.py
      +-- a master              forks a session, meets faults, comes back after each
            +-- zygote, ranks

A master says by a pipe what has happened, if it lives; one is enough for all rows that
do not change it for good. What dies with it is seen from outside: the tests' process
takes its orphans over.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import psutil
from processes import children, note, reset, since_death, stamp
from trial import (
    ARMED,
    RANKS,
    Late,
    Leak,
    Master,
    Row,
    Trial,
    Work,
    Wrong,
)

import synk

LIMIT = 40.0
"""Seconds after which a trial hangs."""

GRACE = 5.0
"""Seconds that the ranks of a master that was killed may live on."""

_PR_SET_CHILD_SUBREAPER = 36


@dataclass
class Outcome:
    """What came of a trial."""

    verdict: str
    """ "survived", "hang", "leak", "wrong", "late" or "unexpected"."""
    detail: str = ""
    measured: dict[str, Any] = field(default_factory=dict)
    """Seconds by what they are of, and the class of the error."""


class Player:
    """Plays rows of a table, each in a master of its own or in one for many."""

    def __init__(self, table: Sequence[Row]) -> None:
        self._table, self._work = table, Work()
        with synk.session(2):
            self._work.check()  # all is loaded that sessions need
        self._work.let_go()
        self._for_many: _Child | None = None
        self._played: list[str] = []
        _adopt_orphans(True)

    def play(self, row: Row, seed: str) -> Outcome:
        """Play a row; whatever comes of it, leave no process behind."""
        reset()
        for rank in range(RANKS):
            note(ARMED + rank, 0)
        stamp()
        if row.alone:
            child = _Child(self._work, self._table)
            outcome = child.end(child.play(row, seed))
        else:
            self._for_many = self._for_many or _Child(self._work, self._table)
            outcome = self._for_many.play(row, seed)
            if outcome.verdict != "survived":
                outcome = self._end_many(outcome)
            self._played.append(f"{row.name} ({seed})")
        outcome.detail = f"{row.name} ({seed}): {outcome.detail}"
        return outcome

    def close(self) -> Outcome:
        """End the master for many rows; return whether it leaves what it should."""
        outcome = self._end_many(Outcome("survived"))
        _adopt_orphans(False)
        return outcome

    def _end_many(self, outcome: Outcome) -> Outcome:
        child, self._for_many = self._for_many, None
        if child is not None:
            outcome = child.end(outcome)
            outcome.detail += f"\nafter {self._played}"
        self._played = []
        return outcome


class _Child:
    """A master, from outside."""

    def __init__(self, work: Work, table: Sequence[Row]) -> None:
        self._others = set(children(os.getpid()))
        asks, self._asks = os.pipe()
        self._says, says = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of threads of the tests' process
            self._pid = os.fork()
        if not self._pid:
            os.close(self._asks)
            os.close(self._says)
            _be_master(work, table, asks, says)
        os.close(asks)
        os.close(says)
        self._status: int | None = None

    def play(self, row: Row, seed: str) -> Outcome:
        """Have a row played; return what came of it."""
        os.write(self._asks, json.dumps([row.name, seed]).encode() + b"\n")
        said = self._listen()
        if self._status is not None:
            if row.status and self._status == row.status:
                return Outcome("survived", measured={"ended": since_death()})
            return Outcome("unexpected", f"exit status {self._status}; {said!r}")
        if not said:
            return Outcome("hang", f"after {LIMIT} s; {_where(self._pid)}")
        outcome = Outcome(**json.loads(said))
        if row.status and outcome.verdict == "survived":
            return Outcome("unexpected", "the master lives")
        return outcome

    def _listen(self) -> bytes:
        """Return a line that the master says; nothing if it ends, or hangs."""
        said, deadline = b"", time.monotonic() + LIMIT
        poll = select.poll()
        poll.register(self._says, select.POLLIN)
        while time.monotonic() < deadline and self._status is None:
            if poll.poll(2):
                said += os.read(self._says, 1 << 16)
                if said.endswith(b"\n"):
                    return said
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if pid else None
        return b""

    def end(self, outcome: Outcome) -> Outcome:
        """End the master; return what it has left, or else what came of the row."""
        os.close(self._asks)
        if outcome.verdict != "hang" and (said := self._listen()):
            ended = Outcome(**json.loads(said))
            if outcome.verdict == "survived" != ended.verdict:
                outcome = ended
        if self._status is None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._says)
        left = _bury(self._others, GRACE)
        outcome.measured["gone"] = since_death()
        if outcome.verdict == "survived" and left:
            return Outcome("leak", f"processes {left}")
        return outcome


def _be_master(work: Work, table: Sequence[Row], asks: int, says: int) -> NoReturn:
    """Play what is asked for and say what comes of it, until nobody asks; and end."""
    # That of pytest keeps the objects in whose finalizers an interrupt came.
    sys.unraisablehook = sys.__unraisablehook__
    gc.freeze()  # collections would copy all pages of what the tests have imported
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    rows = {row.name: row for row in table}
    try:
        master = Master(work)
        with open(asks) as questions:
            for line in questions:
                name, seed = json.loads(line)
                _say(says, Trial(rows[name], master, seed).run)
            _say(says, master.end)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _say(says: int, act: Callable[[], dict[str, Any] | None]) -> None:
    """Do something, and say what comes of it."""
    verdict, detail, measured = "survived", "", None
    try:
        measured = act()
    except BaseException as error:
        kinds = {Leak: "leak", Wrong: "wrong", Late: "late"}
        verdict = kinds.get(type(error), "unexpected")
        detail = _shown(error)[-20_000:]
    said = {"verdict": verdict, "detail": detail, "measured": measured or {}}
    data = json.dumps(said).encode() + b"\n"
    while data:
        data = data[os.write(says, data) :]


def _shown(error: BaseException) -> str:
    """Return a traceback; of an exception that cannot be shown, where it came."""
    try:
        return "".join(traceback.format_exception(error))
    except Exception:
        return "".join(traceback.format_tb(error.__traceback__))


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


# -- processes whose parent has died


def _adopt_orphans(adopts: bool) -> None:
    """Have orphans among this process's descendants become its children, or not."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(adopts))


def _bury(others: set[int], patience: float) -> list[str]:
    """Wait for the end of all children but `others`; say which had to be killed."""
    deadline = time.monotonic() + patience
    while left := set(children(os.getpid())) - others:
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > deadline:
            return [_kill(pid) for pid in left]
        time.sleep(0.002)
    return []


def _kill(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        said = f"{pid} {process.status()} {process.cmdline()[:3]}"
        process.kill()
        os.waitpid(pid, 0)
    except (psutil.NoSuchProcess, ChildProcessError):
        return f"{pid} (it has just ended)"
    return said
