"""Groups of ranks, each of which has a process that the script forks for its leader.

A process that is forked from the script has its functions, and its `synk.Data`, which
lie in memory once, and may fork ranks of its own. So a group is the session of such a
process on its share of the cores. A rank that dies breaks that session alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import multiprocessing
import operator
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

import cloudpickle

from ..errors import StateError, SynkError
from ..workers import affinity
from ..workers.failure import Failure
from ..workers.forks import forget_handlers, forking_quietly
from ..workers.zygote_source import why_no_fork
from .session import SESSION

RESTARTS = 1000
"""How often the ranks of a group come back: a rank that dies ends no other's work."""

_FORK = multiprocessing.get_context("fork")


def why_no_groups() -> str | None:
    """Return why there can be no groups in place of the ranks, or None."""
    if multiprocessing.current_process().daemon:
        return "this process leads a group itself"
    if SESSION.nodes > 1:
        return "ranks are on several nodes"
    if any(place.device.is_gpu for place in SESSION.asked.places):
        return "ranks compute on GPUs"
    return why_no_fork()


class RankGroups:
    """Groups, of so many ranks each, on the cores of the ranks that there are."""

    def __init__(self, number: int, ranks: int) -> None:
        self.is_led = False  # whether this process is the leader of one
        cores = SESSION.cores
        self._cores = [affinity.share(cores, i, number) for i in range(number)]
        self._ranks, self._timeout = ranks, SESSION.asked.timeout
        place = SESSION.asked.places[0]
        is_told = place.threads != len(place.cores)
        self._threads = place.threads if is_told else None
        # The leader of a group has a lock on its byte, which ends with the process.
        self._leaders, path = tempfile.mkstemp("synk-groups")
        os.unlink(path)

    def __len__(self) -> int:
        return len(self._cores)

    def lead(self) -> None:
        """Be the leader of a group that has none, in a process forked from the script.

        If all have one, this waits for the end of one.
        """
        cores = self._cores[self._free()]
        if affinity.why_not_pinned() is None:
            os.sched_setaffinity(0, cores)
        # Ranks that die come back with the next call.
        how = self._threads, self._timeout, "report", RESTARTS
        SESSION.fork(self._ranks, "cpu", *how)
        self.is_led = True

    def _free(self) -> int:
        for number in range(len(self)):
            with contextlib.suppress(BlockingIOError):
                how = fcntl.LOCK_EX | fcntl.LOCK_NB
                fcntl.lockf(self._leaders, how, 1, number)
                return number
        fcntl.lockf(self._leaders, fcntl.LOCK_EX, 1, 0)
        return 0

    def close(self) -> None:
        """Forget who leads a group."""
        os.close(self._leaders)


class Leaders:
    """The leaders of groups, who compute for threads of the script.

    A leader calls `work`, as the master of its group's ranks.
    """

    def __init__(self, groups: RankGroups, work: Callable[..., Any]) -> None:
        self._calls = itertools.count()
        self._free: SimpleQueue[Connection] = SimpleQueue()
        self._all: list[Connection] = []
        self._processes: list[Any] = []
        try:
            for _ in range(len(groups)):
                here, there = _FORK.Pipe()
                self._all.append(here)
                # All ends of the script's so far, which the leader is to close.
                given = groups, work, there, tuple(self._all)
                leader = _FORK.Process(target=_lead, args=given, daemon=True)
                with forking_quietly():
                    leader.start()
                there.close()
                self._processes.append(leader)
                self._free.put(here)
        except BaseException:
            self.close()
            raise

    def __call__(self, *args: Any) -> Any:
        """Have a leader that is free compute; wait until one is."""
        leader, call = self._free.get(), next(self._calls)
        try:
            # One call at a time has this connection: it is in `_free` otherwise.
            leader.send((call, args))
            answered = -1
            while answered != call:  # an interrupt may have left another's answer
                answered, found = leader.recv()
        except (EOFError, OSError) as error:
            raise SynkError("the leader of a group of ranks has died") from error
        finally:
            self._free.put(leader)
        if isinstance(found, Failure):
            raise found.rebuild()
        return found

    def __enter__(self) -> Leaders:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def kill(self) -> None:
        """End the leaders, whatever they compute, and their ranks."""
        for leader in self._processes:
            leader.kill()

    def close(self) -> None:
        """End the leaders as soon as they have computed, and their ranks."""
        for connection in self._all:
            connection.close()
        for leader in self._processes:
            leader.join()
        self._all.clear()
        self._processes.clear()


def _lead(
    groups: RankGroups,
    work: Callable[..., Any],
    script: Connection,
    others: Sequence[Connection],
) -> None:
    """Compute what threads of the script ask for, until it closes the connection."""
    forget_handlers()
    # A connection ends when its last copy is closed, and a fork has copied those of the
    # leaders before: as long as this one had them, those would not see its end.
    for other in others:
        other.close()
    groups.lead()
    while True:
        try:
            call, args = script.recv()
        except EOFError:
            break
        try:
            answer = cloudpickle.dumps((call, work(*args)))
        except BaseException as error:
            answer = cloudpickle.dumps((call, Failure(error, "", 0)))
        with contextlib.suppress(BrokenPipeError):
            script.send_bytes(answer)
    SESSION.close()


def side_by_side(
    groups: int | None, work: Callable[[int], Any], tasks: int
) -> Iterator[Any]:
    """Yield what some tasks return, in their order."""
    # `work` is called with their numbers, from 0 on, in processes that are forked from
    # the script here, each with one of so many groups of the ranks; or, if that is
    # None, for one after the other by all ranks. Raises StateError if ranks cannot go
    # in groups, and TypeError or ValueError if not in so many.
    if groups is None:
        yield from map(work, range(tasks))
        return
    SESSION.enter()
    if not 1 <= operator.index(groups) <= SESSION.size:
        raise ValueError(f"{SESSION.size} ranks cannot be {groups} groups")
    if why := why_no_groups():
        raise StateError(f"there can be no groups of ranks: {why}")
    made = RankGroups(groups, SESSION.size // groups)
    with (
        contextlib.closing(made),
        Leaders(made, work) as leaders,
        ThreadPoolExecutor(groups) as threads,
    ):
        try:
            yield from threads.map(leaders, range(tasks))
        except BaseException:
            leaders.kill()
            raise
