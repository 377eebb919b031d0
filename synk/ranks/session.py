"""The session: the one state object of a process, and what starts and ends it.

::

    unforked --fork()--> running --close()--> closed --fork()--> running ...
                            |
                            +--a rank died--> broken --close()--> closed

    in a child that the user's script forks meanwhile: running or broken --> child

In the master the object is `rank` 0 and holds the channel; a rank is forked with a copy
of it and serves the master's commands. What a rank can be asked is a module-level
function ``worker_x(session, ...)`` that stands beside its ``master_x``, which calls
``session.run(worker_x, ...)``.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..comm.device import DeviceBuffers
from ..comm.flat import FlatBuffers
from ..comm.nccl import NcclTransport
from ..comm.shm import SharedMemoryComm
from ..engines import jax
from ..errors import Aborted, RankTimeout, StateError, SynkError, WorkerDied
from ..memory.cuda import CudaCopier
from ..memory.leftovers import remove_leftovers
from ..memory.segment import Arena, Attachments
from ..memory.to_device import ToDevice
from ..times.tracing import Tracer
from ..workers import affinity, preconditions
from ..workers.channel import MasterChannel, WorkerChannel
from ..workers.control import Control
from ..workers.devices import Environment, cores_by_rank, plan
from ..workers.loop import Failure, serve
from ..workers.waiting import PATIENCE
from ..workers.zygote import Zygote
from .homes import Homes
from .registry import Numbers, Registry


class Session:
    """State of this process: which rank it is, of how many, and what it can reach."""

    def __init__(self) -> None:
        self.state = "unforked"
        self.rank = 0
        self.size = 1
        self.generation = 0  # counts forks, so that a Function knows a new session
        self.death: WorkerDied | None = None
        self.zygote: Zygote | None = None
        self.threads = 1
        self._notices: list[tuple] = []
        self._in_command = False
        self.tracer: Tracer | None = None

    # -- starting and ending

    def fork(self, n, devices, threads, timeout) -> int:
        """See `synk.fork`."""
        preconditions.check_can_fork(self)
        cores = affinity.usable_cores()
        self.devices = plan(devices, preconditions.check_size(n), cores)
        threads = preconditions.check_threads(threads)
        timeout = preconditions.check_timeout(timeout)
        remove_leftovers()
        self.cores = cores_by_rank(self.devices, cores)
        self._threads = [threads or len(share) for share in self.cores]
        self._timeout = timeout
        self.generation += 1
        n = len(self.devices)
        try:
            self.size, self.rank = n, 0
            self.control = Control(n, spin=n <= len(cores))
            self.zygote = Zygote(self._serve) if n > 1 else None
            if self.zygote is not None:
                self.zygote.start()
                for rank in range(1, n):
                    self.zygote.fork_rank(rank)
            self._channel = MasterChannel(self.control, self.watch, timeout)
            self._notices.clear()
            self._start()
            atexit.register(self.close)
            self.state = "running"
            return n
        except BaseException:
            self.state = "closed"
            self._end()
            raise

    def _start(self) -> None:
        """Set up what every rank has; runs in its own process."""
        self._environment = Environment(self.devices[self.rank])
        self._confinement = affinity.Confinement(
            self.cores[self.rank], self._threads[self.rank]
        )
        self.comm = SharedMemoryComm(self.control, self.rank, self.watch, self._timeout)
        self.registry = Registry(self.rank)
        self.numbers = Numbers()
        self.attachments = Attachments()
        self.stage, self.outbox = Arena(), Arena()
        self.homes = Homes(self.rank, self.size)
        self.flats = FlatBuffers(self.comm, self.attachments)
        self.device_buffers: DeviceBuffers | None = None
        if self.devices[self.rank].is_gpu and self.size > 1:
            shares_gpu = self.devices[self.rank].sharers > 1
            connect = partial(NcclTransport, shares_gpu=shares_gpu)
            self.device_buffers = DeviceBuffers(self.comm, connect, self.flats)
            jax.look_about_with(self.device_buffers.look_about)
        self.to_device: ToDevice | None = None
        if self.devices[self.rank].is_gpu:
            self.to_device = ToDevice(CudaCopier, warns=self.rank == 0)
        self.activity = ""
        self.threads = self._threads[self.rank]
        self.tracer = None

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
        self._end()

    def _end(self) -> None:
        """Undo `fork`, as far as it got; an interrupt does not leave it half done."""
        self.death = None
        self.size = 1
        try:
            if self.zygote is not None:
                self.zygote.close()
        finally:
            atexit.unregister(self.close)
            buffers = self.__dict__.get("device_buffers")
            if buffers is not None:
                buffers.abort()
                jax.look_about_with(None)
            to_device = self.__dict__.get("to_device")
            if to_device is not None:
                to_device.close()
            for name in ("_confinement", "_environment"):
                change = self.__dict__.pop(name, None)
                if change is not None:
                    change.release()
            # The control segment is left to the garbage collector: a copy of the
            # session in an exception's traceback may still look at it.
            for name in _OF_A_SESSION:
                self.__dict__.pop(name, None)

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
            if self._in_command:
                raise StateError(_ONE_AT_A_TIME)
            return
        if self.state == "broken":
            assert self.death is not None
            raise WorkerDied(self.death.rank, self.death.pid, self.death.status)
        if self.state == "worker":
            raise StateError(f"this is rank {self.rank}: only the master calls synk")
        if self.state == "closed":
            raise StateError("synk is closed: call synk.fork() to start again")
        if self.state == "child":
            raise StateError(
                "this process was forked from a synk master, whose ranks do not serve"
                " it: call synk there, or synk.fork() here"
            )
        raise StateError("synk is not forked: call synk.fork() first")

    def watch(self, patience: float = 0) -> None:
        """Raise WorkerDied if a rank has died, and remember that.

        With `patience`, wait so many seconds for the news of it.
        """
        if self.zygote is None:
            return
        try:
            self.zygote.watch(patience)
        except WorkerDied as death:
            self.state, self.death = "broken", death
            self.control.abort()
            raise

    def where(self, work: Callable | None) -> str:
        """Say where we are, for the note on an exception."""
        cores = ",".join(map(str, self.cores[self.rank]))
        gpu = self.devices[self.rank].gpu
        device = f"cpu {cores}" if gpu is None else f"GPU {gpu.number}, cpu {cores}"
        if work is None:
            doing = "the reading of a command"
        else:
            doing = self.activity or work.__name__.removeprefix("worker_")
        return f"[synk] on rank {self.rank} of {self.size} ({device}), in {doing}"

    def abort(self) -> None:
        """Have all ranks stop the command that is being run: this one has failed."""
        self.control.abort()
        if self.device_buffers is not None:
            self.device_buffers.abort()

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
        replies: list[Any] = []
        try:
            self._in_command = True
            self.watch()  # a rank may have died in the meantime
            self.activity = ""
            notices = tuple(self._notices)
            self.take_notice(notices)
            if mine is None:
                mine = args
            if self.size == 1:
                result = self._run_here(work, mine)
            else:
                result, replies = self._run_everywhere(work, args, notices, mine)
            del self._notices[: len(notices)]
        finally:
            self._in_command = False
        self._raise_failures(replies)
        return [result, *replies]

    def _run_everywhere(
        self, work: Callable, args: tuple, notices: tuple, mine: tuple
    ) -> tuple[Any, list[Any]]:
        if self._channel.busy:  # an interrupt came between launch and join
            self._join_interrupted()
        error: BaseException | None = None
        result = None
        try:
            self._channel.launch(work, args, notices)
            result = self._run_here(work, mine)
        except BaseException as caught:
            error = caught
            self.abort()
        replies = self._join(error)
        if error is None:
            return result, replies
        if isinstance(error, Aborted):
            self._raise_failures(replies)
            raise SynkError("a command was aborted, and no rank says why") from error
        raise error

    def _run_here(self, work: Callable, args: tuple) -> Any:
        try:
            if self.tracer is not None:
                return self.tracer.follow(work, self, *args)
            return work(self, *args)
        except (WorkerDied, RankTimeout, KeyboardInterrupt, Aborted):
            raise
        except BaseException as error:
            error.add_note(self.where(work))
            raise

    def _join(self, error: BaseException | None) -> list[Any]:
        """Wait for the ranks' replies.

        Parameters
        ----------
        error : BaseException or None
            What the master's own share has raised. An interrupt there or while waiting
            makes the ranks stop; it may be any exception that is not an `Exception`,
            or that a signal handler raises here.
        """
        if self.state != "running":  # a rank died, or a signal handler closed synk
            raise error or StateError("synk was closed during a call")
        try:
            if isinstance(error, RankTimeout):
                raise error
            if error is None or isinstance(error, (Exception, Aborted)):
                return self._channel.join()
        except RankTimeout:
            self._give_up()
            raise
        except BaseException:
            if self.state == "running":
                self._join_interrupted()
            raise
        return self._join_interrupted()

    def _join_interrupted(self) -> list[Any]:
        """Stop the ranks' command; a second interrupt kills them."""
        try:
            self.control.abort()
            self._channel.post_again()
            for rank in self._channel.pending():
                if self.zygote is not None:
                    self.zygote.interrupt(rank)
            return self._channel.join()
        except BaseException:
            if self.state == "running" and self._channel.pending():
                self._give_up()
            raise

    def _give_up(self) -> None:
        """Kill the ranks: one of them does not come back."""
        rank = self._channel.pending()[0]
        pid = -1 if self.zygote is None else self.zygote.pids.get(rank, -1)
        self.control.abort()
        self.state, self.death = "broken", WorkerDied(rank, pid, -signal.SIGKILL)
        if self.zygote is not None:
            self.zygote.close()

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
        if not isinstance(array, tuple):
            return array  # type: ignore[return-value]
        try:
            return self.attachments.array(array)
        except OSError:
            self.watch(PATIENCE)  # a rank's segment is gone if the rank is
            raise

    def leave(self, arrays: dict[Any, np.ndarray]) -> dict[Any, tuple]:
        """Put arrays where other ranks can read them until the next command."""
        if not arrays:
            return {}
        values = [np.asarray(array) for array in arrays.values()]
        return dict(zip(arrays, self.outbox.put(values), strict=True))

    # -- notices: what ranks may forget, sent along with the next command

    def notify(self, kind: str, key: Any) -> None:
        """Have all ranks forget something when they run the next command.

        The master too: this is called by the garbage collector, at any point of
        whatever the master is doing, or by another thread.
        """
        if self.state == "running":
            self._notices.append((kind, key))

    def take_notice(self, notices: Sequence[tuple]) -> None:
        """Forget what the user's script has given up."""
        for kind, key in notices:
            if kind == "segment":
                self.attachments.forget(key)
            elif kind == "function":
                self.registry.forget_function(key)
                self.flats.forget(key)
                if self.device_buffers is not None:
                    self.device_buffers.forget(key)
            else:
                self.registry.forget_variable(key)
                self.homes.forget(key)
                self.flats.forget_variable(key)
                if self.device_buffers is not None:
                    self.device_buffers.forget_variable(key)


_OF_A_SESSION = (
    "_channel",
    "comm",
    "registry",
    "numbers",
    "attachments",
    "stage",
    "outbox",
    "homes",
    "flats",
    "device_buffers",
    "to_device",
)
"""Attributes that end with a session."""

_ONE_AT_A_TIME = (
    "a synk call is running already, around this one or in another thread:"
    " calls come one at a time"
)

SESSION = Session()


def _in_child() -> None:
    """Keep a child that the user forks from acting as a second master.

    Our own ranks are forked before the session runs, and set their state themselves.
    """
    if SESSION.state in ("running", "broken"):
        SESSION.state, SESSION.zygote, SESSION.size = "child", None, 1
        SESSION._in_command = False


os.register_at_fork(after_in_child=_in_child)
