"""Trials seen from outside: each in a process of its own, and what came of it.

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
import resource
import select
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field
from typing import Any

import psutil
from processes import note, reset, since_death, stamp
from trial import ARMED, RANKS, Row, Trial
from work import Work, Wrong
from world import Leak, adopting_orphans, bury, children, names_of_the_dead

import synk
from synk.workers.forks import fork_quietly, open_pidfd

LIMIT = 40.0
"""Seconds after which a trial hangs."""

GRACE = 5.0
"""Seconds that the ranks of a master that was killed may live on."""


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
        child = fork_quietly()
        if child == 0:
            os.close(reads)
            _be_master(row, work, seed, writes)
        os.close(writes)
        status, said = _follow(child, reads)
        if status is None:
            where = _where(child)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            bury(others, GRACE)
            return Outcome("hang", f"{row.name} ({seed}): after {LIMIT} s; {where}")
        ended = since_death()
        left = bury(others, GRACE)
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


def _shown(error: BaseException) -> str:
    """Return a traceback; of an exception that cannot be shown, where it came."""
    try:
        return "".join(traceback.format_exception(error))
    except Exception:
        return "".join(traceback.format_tb(error.__traceback__))


def _be_master(row: Row, work: Work, seed: str, writes: int) -> None:
    """Run a trial, say what came of it, and end."""
    # That of pytest keeps the objects in whose finalizers an interrupt came.
    sys.unraisablehook = sys.__unraisablehook__
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
        said["detail"] = _shown(error)[-20_000:]
    try:
        data = json.dumps(said).encode()
        while data:
            data = data[os.write(writes, data) :]
    finally:
        os._exit(0)
