"""Trials seen from outside: their masters are processes, and what came of them.

::

    the tests, or soak.py
      +-- a master              forks a session, meets faults, comes back after each
            +-- zygote, ranks

A master says by a pipe what has happened, if it lives; one is enough for all rows that
do not change it for good. What dies with it is seen from outside: the tests' process
takes its orphans over.
"""

import contextlib
import ctypes
import gc
import os
import resource
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import psutil
from processes import children, note, reset, since_death, stamp
from trial import ARMED, RANKS, Late, Leak, Master, Row, Trial, Work, Wrong

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
        self._line, theirs = Pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of threads of the tests' process
            self._pid = os.fork()
        if not self._pid:
            self._line.close()
            _be_master(work, table, theirs)
        theirs.close()

    def play(self, row: Row, seed: str) -> Outcome:
        """Have a row played; return what came of it."""
        self._line.send((row.name, seed))
        outcome = self._listen()
        if not row.status or outcome.verdict == "hang":
            return outcome
        if self._pid:
            return Outcome("unexpected", "the master lives")
        ended = outcome.detail == f"exit status {row.status}"
        return Outcome("survived") if ended else outcome

    def _listen(self) -> Outcome:
        """Return what the master says, or how it ended, or that it hangs."""
        if not self._line.poll(LIMIT):
            return Outcome("hang", f"after {LIMIT} s; {_where(self._pid)}")
        try:
            return self._line.recv()
        except (EOFError, OSError):  # its ranks, which have the pipe, have ended too
            status = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
            self._pid = 0
            return Outcome("unexpected", f"exit status {status}")

    def end(self, outcome: Outcome) -> Outcome:
        """End the master; return what it has left, or else what came of the row."""
        if self._pid and outcome.verdict != "hang":
            self._line.send(None)
            ended = self._listen()
            if outcome.verdict == "survived":
                outcome = replace(ended, measured=outcome.measured)
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
        self._line.close()
        left = _bury(self._others, GRACE)
        outcome.measured["gone"] = since_death()
        if outcome.verdict == "survived" and left:
            return Outcome("leak", f"processes {left}")
        return outcome


def _be_master(work: Work, table: Sequence[Row], line: Connection) -> NoReturn:
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
        while asked := line.recv():
            name, seed = asked
            line.send(_outcome_of(Trial(rows[name], master, seed).run))
        line.send(_outcome_of(master.end))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _outcome_of(act: Callable[[], dict[str, Any] | None]) -> Outcome:
    try:
        return Outcome("survived", measured=act() or {})
    except BaseException as error:
        kinds = {Leak: "leak", Wrong: "wrong", Late: "late"}
        verdict = kinds.get(type(error), "unexpected")
        return Outcome(verdict, _shown(error)[-20_000:])


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
