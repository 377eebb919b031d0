"""The session: the one state object of a process, and what starts and ends it.

::

    unforked --fork()--> running --close()--> closed --fork()--> running ...
                            |
                            +--a rank died--> broken --close()--> closed

In the master the object is `rank` 0 and holds the channel; a rank is forked with a copy
of it and serves the master's commands. What a rank can be asked is a module-level
function ``worker_x(session, ...)`` that stands beside its ``master_x``, which calls
``session.run(worker_x, ...)``.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from .comm.flat import FlatBuffers
from .comm.shm import SharedMemoryComm
from .compiler.registry import Numbers, Registry
from .errors import Aborted, RankTimeout, StateError, SynkError, WorkerDied
from .homes import Homes
from .memory.segment import Arena, Attachments
from .workers import affinity, preconditions
from .workers.channel import MasterChannel, WorkerChannel
from .workers.control import Control
from .workers.loop import Failure, serve
from .workers.zygote import Zygote


class Session:
    """State of this process: which rank it is, of how many, and what it can reach."""

    def __init__(self) -> None:
        self.state = "unforked"
        self.rank = 0
        self.size = 1
        self.generation = 0  # counts forks, so that a Function knows a new session
        self.death: WorkerDied | None = None
        self.zygote: Zygote | None = None

    # -- starting and ending

    def fork(self, n, devices, threads, timeout) -> int:
        """See `synk.fork`."""
        preconditions.check_can_fork(self)
        cores = affinity.usable_cores()
        n = preconditions.check_size(n, devices, cores)
        threads = preconditions.check_threads(threads)
        timeout = preconditions.check_timeout(timeout)
        self.size, self.rank = n, 0
        self.generation += 1
        self.cores = [affinity.share(cores, rank, n) for rank in range(n)]
        self._threads = [threads or len(share) for share in self.cores]
        self.control = Control(n, spin=n <= len(cores))
        self.zygote = self._fork_ranks() if n > 1 else None
        self._channel = MasterChannel(self.control, self.watch, timeout)
        self._start()
        self._notices: tuple[tuple, ...] = ()
        self.state = "running"
        atexit.register(self.close)
        return n

    def _fork_ranks(self) -> Zygote:
        zygote = Zygote(self._serve)
        try:
            for rank in range(1, self.size):
                zygote.fork_rank(rank)
        except BaseException:
            zygote.close()
            self.size = 1
            raise
        return zygote

    def _start(self) -> None:
        """Set up what every rank has; runs in its own process."""
        self._confinement = affinity.Confinement(
            self.cores[self.rank], self._threads[self.rank]
        )
        self.comm = SharedMemoryComm(self.control, self.rank, self.watch)
        self.registry = Registry(self.rank)
        self.numbers = Numbers()
        self.attachments = Attachments()
        self.stage, self.outbox = Arena(), Arena()
        self.homes = Homes(self.rank, self.size)
        self.flats = FlatBuffers(self.comm, self.attachments)
        self.activity = ""

    def _serve(self, rank: int) -> None:
        self.rank, self.state = rank, "worker"
        self.zygote = None
        self._start()
        serve(self, WorkerChannel(self.control, rank))

    def close(self) -> None:
        """See `synk.close`."""
        if self.state not in ("running", "broken"):
            return
        self.state = "closed"
        self.death = None
        if self.zygote is not None:
            self.zygote.close()
        self._confinement.release()
        self.size = 1
        # The control segment is left to the garbage collector: a copy of the session
        # in an exception's traceback may still look at it.
        del (
            self._channel,
            self.comm,
            self.registry,
            self.attachments,
            self.outbox,
            self.stage,
        )
        del self.numbers, self.homes
        atexit.unregister(self.close)

    @contextlib.contextmanager
    def unconfined(self) -> Iterator[None]:
        """Let the master use all cores in a ``with`` block, as if it had not forked."""
        self._confinement.release()
        try:
            yield
        finally:
            self._confinement.apply()

    # -- state

    def check_running(self) -> None:
        """Raise unless commands can be run now."""
        if self.state == "running":
            return
        if self.state == "broken":
            assert self.death is not None
            raise WorkerDied(self.death.rank, self.death.pid, self.death.status)
        if self.state == "worker":
            raise StateError(f"this is rank {self.rank}: only the master calls synk")
        if self.state == "closed":
            raise StateError("synk is closed: call synk.fork() to start again")
        raise StateError("synk is not forked: call synk.fork() first")

    def watch(self) -> None:
        """Raise WorkerDied if a rank has died, and remember that."""
        if self.zygote is None:
            return
        try:
            self.zygote.watch()
        except WorkerDied as death:
            self.state, self.death = "broken", death
            self.control.abort()
            raise

    def where(self, work: Callable) -> str:
        """Say where we are, for the note on an exception."""
        cores = ",".join(map(str, self.cores[self.rank]))
        doing = self.activity or work.__name__.removeprefix("worker_")
        return f"[synk] on rank {self.rank} of {self.size} (cpu {cores}), in {doing}"

    # -- commands

    def run(self, work: Callable, *args: Any, mine: tuple | None = None) -> list[Any]:
        """Run ``work(session, *args)`` on every rank and return what each returned.

        The master does its own share between launch and join. If any rank fails, the
        others are stopped at their next barrier, all are waited for, and the first
        error is raised; the session can be used again then.

        Parameters
        ----------
        work : callable
            A module-level function.
        *args
            Its arguments after the session; pickled.
        mine : tuple, optional
            Arguments for the master in place of `args`: what need not be pickled.
        """
        self.check_running()
        self.activity = ""
        if self.size == 1:
            return [self._run_here(work, args if mine is None else mine)]
        if self._channel.busy:  # an interrupt came twice in a row
            self._join_interrupted()
        notices, self._notices = self._notices, ()
        error: BaseException | None = None
        try:
            self._channel.launch(work, args, notices)
            result = self._run_here(work, args if mine is None else mine)
        except BaseException as caught:
            error = caught
            self.control.abort()
        replies = self._join(error)
        if error is not None and not isinstance(error, Aborted):
            raise error
        self._raise_failures(replies)
        if error is not None:
            raise SynkError("the command was aborted, and no rank says why") from error
        return [result, *replies]

    def _run_here(self, work: Callable, args: tuple) -> Any:
        try:
            return work(self, *args)
        except (WorkerDied, KeyboardInterrupt, Aborted):
            raise
        except BaseException as error:
            error.add_note(self.where(work))
            raise

    def _join(self, error: BaseException | None) -> list[Any]:
        """Wait for the ranks' replies; an interrupt makes them stop first."""
        if isinstance(error, WorkerDied):
            raise error
        if isinstance(error, KeyboardInterrupt):
            return self._join_interrupted()
        try:
            return self._channel.join()
        except KeyboardInterrupt as interrupt:
            if error is None:
                self._join_interrupted()
                raise interrupt
            return self._join_interrupted()
        except RankTimeout:
            self._give_up()
            raise

    def _join_interrupted(self) -> list[Any]:
        """Stop the ranks' command; a second interrupt kills them."""
        try:
            self.control.abort()
            self._channel.post_again()
            for rank in self._channel.pending():
                if self.zygote is not None:
                    self.zygote.interrupt(rank)
            return self._channel.join()
        except (KeyboardInterrupt, RankTimeout):
            self._give_up()
            raise

    def _give_up(self) -> None:
        """Kill the ranks: one of them does not come back."""
        rank = (self._channel.pending() or [-1])[0]
        pid = -1
        self.control.abort()
        if self.zygote is not None:
            pid = self.zygote.pids.get(rank, -1)
            self.zygote.close()
        self.state, self.death = "broken", WorkerDied(rank, pid, -9)

    def _raise_failures(self, replies: list[Any]) -> None:
        failures = []
        for reply in replies:
            if type(reply) is Failure:
                failures.append(reply)
        if not failures:
            return
        causes = [f for f in failures if not (f.aborted or f.interrupted)] or failures
        raise causes[0].rebuild()

    # -- arrays between ranks

    def array(self, array: np.ndarray | Sequence) -> np.ndarray:
        """Return an array that may be described by a window."""
        if isinstance(array, tuple):
            return self.attachments.array(array)
        return array  # type: ignore[return-value]

    def leave(self, arrays: dict[Any, np.ndarray]) -> dict[Any, tuple]:
        """Put arrays where other ranks can read them until the next command."""
        if not arrays:
            return {}
        values = [np.asarray(array) for array in arrays.values()]
        return dict(zip(arrays, self.outbox.put(values), strict=True))

    # -- notices: what ranks may forget, sent along with the next command

    def notify(self, kind: str, key: Any) -> None:
        """Have all ranks forget something: the master now, the others in time."""
        if self.state == "running":
            self.take_notice([(kind, key)])
            self._notices = (*self._notices, (kind, key))

    def take_notice(self, notices: Sequence[tuple]) -> None:
        """Forget what the master has given up."""
        for kind, key in notices:
            if kind == "segment":
                self.attachments.forget(key)
            elif kind == "function":
                self.registry.forget_function(key)
                self.flats.forget(key)
            else:
                self.registry.forget_variable(key)
                self.homes.forget(key)


SESSION = Session()


def fork(
    n: int | None = None,
    *,
    devices: str = "auto",
    threads: int | None = None,
    timeout: float | None = None,
) -> int:
    """Fork one process per device; this process becomes rank 0.

    Call it early: before threads are started and before a CUDA context or an XLA
    backend exists. Each rank is pinned to its share of the usable cores, the calling
    process too, and its BLAS, OpenMP and numba threads are capped to their number.

    Parameters
    ----------
    n : int, optional
        The number of ranks, the master included; by default the number of usable
        cores (CPU affinity and cgroup quota taken into account). With 1 nothing is
        forked. More ranks than cores share them and work correctly, but slowly.
    devices : {"auto", "cpu"}
        Where ranks compute. Both mean the CPU in this version.
    threads : int, optional
        Threads a rank may use, by default as many as it has cores.
    timeout : float, optional
        Seconds that the other ranks may take for one command after the master has
        done its own share; by default they may take for ever. A rank that takes
        longer raises :class:`synk.RankTimeout`, and the ranks are killed.

    Returns
    -------
    int
        The number of ranks.

    Raises
    ------
    StateError
        If synk is forked already, in a worker, or when a CUDA context or an XLA
        backend is up.
    ValueError, TypeError
        If an argument makes no sense.

    Examples
    --------
    >>> import synk
    >>> synk.fork(2)
    2
    >>> synk.close()
    """
    return SESSION.fork(n, devices, threads, timeout)


def close() -> None:
    """End all other ranks and lift the master's confinement to its cores.

    Done at exit too; twice is fine. Takes five seconds at the most, whatever the ranks
    are doing. ``synk.fork()`` works again afterwards, with functions and
    :class:`~synk.Data` made before.
    """
    SESSION.close()


@contextlib.contextmanager
def session(n: int | None = None, **options: Any) -> Iterator[int]:
    """Fork on entry and close on exit of a ``with`` block.

    Parameters
    ----------
    n, **options
        As for :func:`fork`.

    Yields
    ------
    int
        The number of ranks.

    Examples
    --------
    >>> import synk
    >>> with synk.session(2) as n:
    ...     print(n, synk.is_forked())
    2 True
    >>> synk.is_forked()
    False
    """
    count = fork(n, **options)
    try:
        yield count
    finally:
        close()


def rank() -> int:
    """Return the rank of this process; the master, and a process alone, is 0."""
    return SESSION.rank


def size() -> int:
    """Return the number of ranks; 1 when not forked."""
    return SESSION.size


def is_forked() -> bool:
    """Tell whether :func:`fork` was called and :func:`close` was not."""
    return SESSION.state in ("running", "broken", "worker")


def _in_child() -> None:
    """Keep a child that the user forks from acting as a second master.

    Our own ranks are forked before the session runs, and set their state themselves.
    """
    if SESSION.state in ("running", "broken"):
        SESSION.state, SESSION.zygote = "closed", None


os.register_at_fork(after_in_child=_in_child)
