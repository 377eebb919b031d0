"""Groups of ranks. Each group has a *leader*, a process that is forked from the script.

The leader inherits the script's functions, and shares its `synk.Data`. It forks ranks
of its own on the group's share of the cores: a group is a session whose master is the
leader. If a rank dies, only that session is broken.
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
"""How often a group's ranks are started again after deaths."""

_FORK = multiprocessing.get_context("fork")

INHERITED: list[type] = [SharedVariable]
"""Classes whose objects are not pickled for a leader, which has inherited them. Modules
that define such classes add them. (Classes of the script are not pickled either.)"""

_FORKING = threading.Lock()
_ENDS: set[Connection] = set()
"""The script's ends of all leaders' connections. A fork copies the ends of earlier
leaders. A leader must close its copies, as a connection ends only when all copies of
the script's end are closed. So leaders are forked one at a time."""


def why_no_groups() -> str | None:
    """Return why groups cannot take the place of the ranks, or None if they can."""
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
    """`number` groups of `ranks` ranks each, on the cores of the session's ranks."""

    def __init__(self, number: int, ranks: int) -> None:
        self.is_leader = False  # whether this process is the leader of a group
        cores = SESSION.cores
        self._cores = [affinity.share(cores, i, number) for i in range(number)]
        self._ranks, self._timeout = ranks, SESSION.asked.timeout
        place = SESSION.asked.places[0]
        is_chosen = place.threads != len(place.cores)
        self._threads = place.threads if is_chosen else None
        # `_free` locks the byte of the leader's group; the lock ends with the process.
        self._leaders = new_memory("leaders-of-groups")

    def __len__(self) -> int:
        return len(self._cores)

    def lead(self, group: int | None = None) -> None:
        """Make this process, forked from the script, the leader of `group`.

        None is for a group that has no leader. If all have one, this waits until the
        leader of group 0 has ended.
        """
        cores = self._cores[self._free() if group is None else group]
        if affinity.why_not_pinned() is None:
            os.sched_setaffinity(0, cores)
        # The next call starts ranks that have died again.
        how = self._threads, self._timeout, "report", RESTARTS
        SESSION.fork(self._ranks, "cpu", *how)
        self.is_leader = True

    def _free(self) -> int:
        """Return a group that no other process has locked, or else wait for group 0."""
        for number in range(len(self)):
            with contextlib.suppress(BlockingIOError):
                how = fcntl.LOCK_EX | fcntl.LOCK_NB
                fcntl.lockf(self._leaders, how, 1, number)
                return number
        fcntl.lockf(self._leaders, fcntl.LOCK_EX, 1, 0)
        return 0


class Leader:
    """A group's leader, as the script has it; to call it has the leader call `work`."""

    def __init__(
        self,
        groups: RankGroups,
        work: Callable[..., Any],
        known: WeakValueDictionary[int, Any],
        group: int | None = None,
    ) -> None:
        self._calls, self._turn = itertools.count(), threading.Lock()
        self._known = known  # made before the fork; see `_by_address`
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
                sent = _pickled((call, args), self._known, INHERITED)
                self._script.send_bytes(sent)
                answered = -1
                while answered != call:  # an interrupted call's answer may come first
                    said = self._script.recv_bytes()
                    answered, found = _Unpickler(said, self._known).load()
            except (EOFError, OSError) as error:
                raise SynkError("the leader of a group of ranks has died") from error
        if isinstance(found, Failure):
            raise found.rebuild()
        return found

    def __enter__(self) -> Leader:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """End the leader and its ranks: after its present call or, if failed, now."""
        if kind is not None:
            self._process.kill()
        self._script.close()
        _ENDS.discard(self._script)
        self._process.join()


def _by_address() -> WeakValueDictionary[int, Any]:
    """Return the objects that leaders inherit, by address; they inherit this, too."""
    kinds, found = tuple(INHERITED), WeakValueDictionary[int, Any]()
    for each in gc.get_objects():
        # By `type`, as a proxy's ``__class__`` is that of the object it stands for.
        is_class = issubclass(type(each), type) and is_by_value(each)
        if is_class or issubclass(type(each), kinds):
            found[id(each)] = each
    return found


class _Pickler(cloudpickle.Pickler):
    """Pickles for a leader or its script, with addresses of objects that both have.

    Objects of `kinds` must be such objects.
    """

    def __init__(
        self, file: BytesIO, known: WeakValueDictionary[int, Any], kinds: Sequence[type]
    ) -> None:
        super().__init__(file)
        self._known, self._kinds = known, tuple(kinds)

    def persistent_id(self, obj: Any) -> int | None:
        """Return the address of an object that the other process has, else None."""
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
    """Unpickles data of `_Pickler`, with this process's objects of the table."""

    def __init__(self, value: bytes, known: WeakValueDictionary[int, Any]) -> None:
        super().__init__(BytesIO(value))
        self._known = known

    def persistent_load(self, pid: int) -> Any:
        """Return the object of an address."""
        return self._known[pid]


def _lead(
    groups: RankGroups,
    group: int | None,
    work: Callable[..., Any],
    script: Connection,
    known: WeakValueDictionary[int, Any],
) -> None:
    """Run a leader's process: calls of the script, until it closes the connection."""
    forget_handlers()
    _FORKING.release()  # a copy of the lock that the script holds while it forks
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
    """A leader for each group; a call goes to any leader that is free."""

    def __init__(self, groups: RankGroups, work: Callable[..., Any]) -> None:
        self._free: SimpleQueue[Leader] = SimpleQueue()
        known = _by_address()
        with contextlib.ExitStack() as leaders:
            for _ in range(len(groups)):
                leader = Leader(groups, work, known)
                self._free.put(leaders.enter_context(leader))
            self._leaders = leaders.pop_all()

    def __call__(self, *args: Any) -> Any:
        """Wait for a free leader, and have it call `work`."""
        leader = self._free.get()
        try:
            return leader(*args)
        finally:
            self._free.put(leader)

    def __enter__(self) -> Leaders:
        return self

    def __exit__(self, *error: Any) -> None:
        self._leaders.__exit__(*error)


class Group:
    """A group of ranks, as :func:`synk.groups` returns them.

    A group computes for one caller at a time. Different groups compute side by side for
    different threads of the script. A group's *leader* is a process forked from the
    script, which forks the group's ranks. It begins with the script's functions and
    with the present values of the script's variables, and shares the script's
    :class:`~synk.Data`. Functions that are called in the leader are computed by the
    group's ranks alone. Changes of variables there do not reach the script, and are
    gone with the leader.

    Attributes
    ----------
    number : int
        The group's number, from 0 on.
    ranks : range
        The ranks of the session on whose cores the group computes.
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
        """Call ``work(*args)`` once, in a new leader.

        Parameters
        ----------
        work : callable
            A :class:`synk.Function`, or a function that calls some. It is not pickled.
        *args
            Arguments of `work`, which are pickled.

        Returns
        -------
        object
            The return value of `work`, which is pickled, too.

        Raises
        ------
        StateError
            If there can be no groups: within a group, on GPUs, or in a process that
            has computed with JAX; or if the session was closed.
        WorkerDied
            If a rank of the group dies. Other groups go on. The next call has new
            ranks.
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
        """Keep one leader in a ``with`` block, for many calls of a function.

        Parameters
        ----------
        work : callable
            As for `run`.

        Yields
        ------
        callable
            Has the leader call `work` with the given arguments. Variables keep their
            values from call to call. Several threads may call this; calls take turns.

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
            with Leader(self._of, work, _by_address(), self.number) as made:
                yield made


def groups() -> tuple[Group, ...]:
    """Return the groups of the session's ranks.

    Returns
    -------
    tuple of Group
        As many as `groups` of :func:`synk.fork`; by default one of all ranks.

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
    with _FORKING:  # one thread makes the groups
        if not pool.groups:
            each = pool.size // number
            of = RankGroups(number, each)
            ranks = [range(i * each, (i + 1) * each) for i in range(number)]
            pool.groups = tuple(Group(i, some, of) for i, some in enumerate(ranks))
    return pool.groups


def side_by_side(
    groups: int | None, work: Callable[[int], Any], tasks: int
) -> Iterator[Any]:
    """Yield the results of ``work(0)`` to ``work(tasks - 1)``, in this order."""
    # Leaders, forked here, call `work`, each with one of `groups` groups of ranks. None
    # is for the session's groups; if it has just one, the script calls `work` itself,
    # by all ranks. Raises StateError if there can be no groups, and TypeError or
    # ValueError if not `groups` many.
    SESSION.enter()
    if groups is None and SESSION.asked.groups == 1:
        yield from map(work, range(tasks))
        return
    groups = SESSION.asked.groups if groups is None else groups
    if not 1 <= operator.index(groups) <= SESSION.size:
        raise ValueError(f"{SESSION.size} ranks cannot be {groups} groups")
    check_can_be_groups()
    made = RankGroups(groups, SESSION.size // groups)
    # After an error the leaders are killed first, so that no thread waits for one.
    with ThreadPoolExecutor(groups) as threads, Leaders(made, work) as leaders:
        yield from threads.map(leaders, range(tasks))
