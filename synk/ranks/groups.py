"""Groups of ranks, each of which has a process that the script forks for its leader.

A process that is forked from the script has its functions, and its `synk.Data`, which
lie in memory once, and may fork ranks of its own. So a group is the session of such a
process on its share of the cores. A rank that dies breaks that session alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import itertools
import multiprocessing
import operator
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any
from weakref import WeakValueDictionary

import cloudpickle
from pytensor.compile import SharedVariable

from ..errors import StateError, SynkError
from ..memory.descriptors import new_memory
from ..user_frames import entry
from ..workers import affinity, by_value
from ..workers.failure import Failure
from ..workers.forks import forget_handlers, forking_quietly
from ..workers.zygote_source import why_no_fork
from .graphs import is_by_value
from .session import SESSION

RESTARTS = 1000
"""How often the ranks of a group come back: a rank that dies ends no other's work."""

_FORK = multiprocessing.get_context("fork")

OF_SCRIPT: list[type] = [SharedVariable]
"""What is not pickled for a leader, which has it from the fork. Modules that define
other kinds add them. (Nor are the script's classes, either way.)"""

_FORKING = threading.Lock()
_ENDS: set[Connection] = set()
"""The script's ends of all leaders' connections. A connection ends when its last copy
is closed, and a fork copies the ends of leaders before: if a leader kept these, those
would not see that the script has closed them. So leaders are forked one at a time."""


def why_no_groups() -> str | None:
    """Return why there can be no groups in place of the ranks, or None."""
    if multiprocessing.current_process().daemon:
        return "this process leads a group itself"
    if SESSION.nodes > 1:
        return "ranks are on several nodes"
    if any(place.device.is_gpu for place in SESSION.asked.places):
        return "ranks compute on GPUs"
    return why_no_fork()


def check_can_be_groups() -> None:
    """Raise StateError if there can be no groups."""
    if why := why_no_groups():
        raise StateError(f"there can be no groups of ranks: {why}")


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
        self._leaders = new_memory("leaders-of-groups")

    def __len__(self) -> int:
        return len(self._cores)

    def lead(self, group: int | None = None) -> None:
        """Be the leader of a group in a process forked from the script.

        If none is named, it is one that has no leader; if all have one, this waits for
        the end of one.
        """
        cores = self._cores[self._free() if group is None else group]
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


class Leader:
    """A process that leads a group, and calls `work` for threads of the script."""

    def __init__(
        self,
        groups: RankGroups,
        work: Callable[..., Any],
        known: WeakValueDictionary[int, Any],
        group: int | None = None,
    ) -> None:
        self._calls, self._turn = itertools.count(), threading.Lock()
        self._known = known  # from before the fork; see `_by_address`
        with _FORKING, forking_quietly():
            self._script, there = _FORK.Pipe()
            _ENDS.add(self._script)
            given = groups, group, work, there, self._known
            self._process = _FORK.Process(target=_lead, args=given, daemon=True)
            try:
                self._process.start()
            except BaseException:
                _ENDS.discard(self._script)
                raise
            finally:
                there.close()

    def __call__(self, *args: Any) -> Any:
        """Have the leader call `work`, as the master of its group's ranks."""
        with self._turn:
            call = next(self._calls)
            try:
                told = _pickled((call, args), self._known, OF_SCRIPT)
                self._script.send_bytes(told)
                answered = -1
                while answered != call:  # an interrupt may have left another's answer
                    said = self._script.recv_bytes()
                    answered, found = _Unpickler(said, self._known).load()
            except (EOFError, OSError) as error:
                raise SynkError("the leader of a group of ranks has died") from error
        if isinstance(found, Failure):
            raise found.rebuild()
        return found

    def kill(self) -> None:
        """End the leader, whatever it computes, and its ranks."""
        self._process.kill()

    def close(self) -> None:
        """End the leader as soon as it has computed, and its ranks."""
        self._script.close()
        _ENDS.discard(self._script)
        self._process.join()


def _by_address() -> WeakValueDictionary[int, Any]:
    """Return what leaders have from the fork; they have a copy of this table, too."""
    kinds, found = tuple(OF_SCRIPT), WeakValueDictionary[int, Any]()
    for each in gc.get_objects():
        # By `type`: to ask a proxy for its class is to ask what it stands for.
        is_class = issubclass(type(each), type) and is_by_value(each)
        if is_class or issubclass(type(each), kinds):
            found[id(each)] = each
    return found


class _Pickler(cloudpickle.Pickler):
    """Pickles for a leader or for its script, and refers to what both have.

    `kinds` are those of which all must be known.
    """

    def __init__(
        self, file: BytesIO, known: WeakValueDictionary[int, Any], kinds: Sequence[type]
    ) -> None:
        super().__init__(file)
        self._known, self._kinds = known, tuple(kinds)

    def persistent_id(self, obj: Any) -> int | None:
        """Return the address of what the other process has, too."""
        is_needed = issubclass(type(obj), self._kinds)
        if not is_needed and not issubclass(type(obj), type):
            return None
        if self._known.get(id(obj)) is obj:
            return id(obj)
        if is_needed:
            raise StateError(
                f"{obj} was made after the group's leader was forked: make it before,"
                " or in the group"
            )
        return None


def _pickled(
    value: Any, known: WeakValueDictionary[int, Any], kinds: Sequence[type] = ()
) -> bytes:
    file = BytesIO()
    _Pickler(file, known, kinds).dump(value)
    return file.getvalue()


class _Unpickler(by_value.Unpickler):
    """Finds what `_Pickler` refers to."""

    def __init__(self, value: bytes, known: WeakValueDictionary[int, Any]) -> None:
        super().__init__(BytesIO(value))
        self._known = known

    def persistent_load(self, pid: int) -> Any:
        """Return what stands at an address."""
        return self._known[pid]


def _lead(
    groups: RankGroups,
    group: int | None,
    work: Callable[..., Any],
    script: Connection,
    known: WeakValueDictionary[int, Any],
) -> None:
    """Compute what threads of the script ask for, until it closes the connection."""
    forget_handlers()
    _FORKING.release()  # which the script holds while it forks
    for end in _ENDS:
        end.close()
    groups.lead(group)
    while True:
        try:
            call, args = _Unpickler(script.recv_bytes(), known).load()
        except EOFError:
            break
        try:
            answer = _pickled((call, work(*args)), known)
        except BaseException as error:
            answer = _pickled((call, Failure(error, "", 0)), known)
        with contextlib.suppress(BrokenPipeError):
            script.send_bytes(answer)
    SESSION.close()


class Leaders:
    """A leader for each group, of which any that is free computes."""

    def __init__(self, groups: RankGroups, work: Callable[..., Any]) -> None:
        self._free: SimpleQueue[Leader] = SimpleQueue()
        self._all: list[Leader] = []
        known = _by_address()
        try:
            for _ in range(len(groups)):
                self._all.append(Leader(groups, work, known))
                self._free.put(self._all[-1])
        except BaseException:
            self.close()
            raise

    def __call__(self, *args: Any) -> Any:
        """Have a leader that is free compute; wait until one is."""
        leader = self._free.get()
        try:
            return leader(*args)
        finally:
            self._free.put(leader)

    def __enter__(self) -> Leaders:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def kill(self) -> None:
        """End the leaders, whatever they compute, and their ranks."""
        for leader in self._all:
            leader.kill()

    def close(self) -> None:
        """End the leaders as soon as they have computed, and their ranks."""
        for leader in self._all:
            leader.close()
        self._all.clear()


class Group:
    """Some of the ranks, as :func:`synk.groups` returns them.

    A group computes for one caller at a time, and groups for different threads of the
    script side by side. The process that leads it is forked from the script, and forks
    as many ranks as the group has. So it begins with the script's functions and the
    present values of its variables, and shares its :class:`~synk.Data`. What is called
    there makes calls by these ranks alone. Variables that it changes are the group's,
    and are gone with the leader.

    Attributes
    ----------
    number : int
        Which group it is, from 0 on.
    ranks : range
        Those of the session in whose place it computes, on their cores.
    """

    def __init__(self, number: int, ranks: range, of: RankGroups) -> None:
        self.number, self.ranks = number, ranks
        self._of, self._turn = of, threading.Lock()

    def __repr__(self) -> str:
        first, last = self.ranks[0], self.ranks[-1]
        of = f"rank {first}" if first == last else f"ranks {first} to {last}"
        return f"<synk.Group {self.number}: {of}>"

    @entry
    def run(self, work: Callable[..., Any], *args: Any) -> Any:
        """Call a function once, in a leader of its own.

        Parameters
        ----------
        work : callable
            A :class:`synk.Function`, or a function that makes and calls some. It is
            not pickled.
        *args
            Arguments for it, which are pickled.

        Returns
        -------
        object
            What it has returned, pickled.

        Raises
        ------
        StateError
            If ranks cannot go in groups: within a group, on GPUs, or in a process that
            has computed by JAX; or if the session was closed.
        WorkerDied
            If a rank of the group dies. Others go on, and the next call has new ranks.
        SynkError
            If the leader dies.

        Examples
        --------
        >>> import synk
        >>> with synk.session(2, groups=2):
        ...     [group.run(pow, 2, 1 + group.number) for group in synk.groups()]
        [2, 4]
        """
        with self.leader(work) as call:
            return call(*args)

    @contextlib.contextmanager
    def leader(self, work: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
        """Have a leader in a ``with`` block, for many calls of a function.

        Parameters
        ----------
        work : callable
            As for `run`.

        Yields
        ------
        callable
            Has the leader call `work` with what it is given. Variables keep from call
            to call what it makes of them. Several threads may call it, in turn.

        Raises
        ------
        StateError, WorkerDied, SynkError
            As for `run`.
        """
        with self._turn:
            SESSION.check_running()
            if self not in SESSION.pool.groups:
                raise StateError("this group is of a session that was closed")
            check_can_be_groups()
            made = Leader(self._of, work, _by_address(), self.number)
            try:
                yield made
            except BaseException:
                made.kill()  # it may compute for as long as it likes
                raise
            finally:
                made.close()


def groups() -> tuple[Group, ...]:
    """Return the groups of ranks that :func:`synk.fork` was asked for.

    Returns
    -------
    tuple of Group
        One of all ranks, unless ``fork`` or ``session`` was given ``groups=``.

    Raises
    ------
    StateError
        If not forked.

    Examples
    --------
    >>> import synk
    >>> with synk.session(4, groups=2):
    ...     synk.groups()
    (<synk.Group 0: ranks 0 to 1>, <synk.Group 1: ranks 2 to 3>)
    """
    SESSION.enter()
    pool, number = SESSION.pool, SESSION.asked.groups
    with _FORKING:  # of several threads one makes them
        if not pool.groups:
            each = pool.size // number
            of = RankGroups(number, each)
            ranks = [range(i * each, (i + 1) * each) for i in range(number)]
            pool.groups = tuple(Group(i, some, of) for i, some in enumerate(ranks))
    return pool.groups


def side_by_side(
    groups: int | None, work: Callable[[int], Any], tasks: int
) -> Iterator[Any]:
    """Yield what some tasks return, in their order."""
    # `work` is called with their numbers, from 0 on, in processes that are forked from
    # the script here, each with one of so many groups of the ranks; or, if that is
    # None and there are none, for one after the other by all ranks. Raises StateError
    # if ranks cannot go in groups, and TypeError or ValueError if not in so many.
    SESSION.enter()
    if groups is None and SESSION.asked.groups == 1:
        yield from map(work, range(tasks))
        return
    groups = SESSION.asked.groups if groups is None else groups
    if not 1 <= operator.index(groups) <= SESSION.size:
        raise ValueError(f"{SESSION.size} ranks cannot be {groups} groups")
    check_can_be_groups()
    made = RankGroups(groups, SESSION.size // groups)
    with Leaders(made, work) as leaders, ThreadPoolExecutor(groups) as threads:
        try:
            yield from threads.map(leaders, range(tasks))
        except BaseException:
            leaders.kill()
            raise
