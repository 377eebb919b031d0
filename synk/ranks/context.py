"""What one rank has from fork to close, and all that a command sees of a rank.

Every rank, the master included, makes one in its own process. A command is a
module-level function ``worker_x(context, ...)``, run on each rank with its own context;
it stands beside the function that has it run, see `session`. So what a rank can reach
is what is listed here, and a command never asks how processes are started or watched.
"""

from __future__ import annotations

import contextlib
import functools
import socket
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from pytensor.compile import SharedVariable

from ..comm.device import DeviceBuffers
from ..comm.flat import FlatBuffers
from ..comm.nccl import NcclTransport
from ..comm.shm import SharedMemoryComm
from ..engines import jax
from ..memory.arena import Arena
from ..memory.cuda import CudaCopier
from ..memory.segment import Attachments, Window, can_lie_here, is_window
from ..memory.to_device import ToDevice
from ..programs.programs import Programs
from ..programs.transaction import Transaction
from ..times.timing import Tracer
from ..workers import affinity, forks
from ..workers.affinity import ThreadPools
from ..workers.control import Control
from ..workers.devices import Device, Environment
from ..workers.recorder import Recorder
from ..workers.waiting import PATIENCE, Limit
from .variable_buffers import VariableBuffers


class Place(NamedTuple):
    """Where a rank runs: its device, its cores, and how many threads it may use."""

    device: Device
    cores: list[int]
    threads: int


class Dropped(NamedTuple):
    """Something that the user's script has given up, and ranks may forget."""

    kind: str
    key: Any


class RankContext:
    """One rank: its number, its memory, what it knows and whom it can reach.

    Parameters
    ----------
    rank, size : int
        Among the ranks of all nodes; `local_rank` is that of its node.
    pools : ThreadPools
        Capped before the fork already.
    watch : callable
        Raises WorkerDied if a rank has died; with a number, waits so many seconds for
        the news of it.
    nodes : tuple, optional
        Where there are several: how many ranks each node has, which one this is, and
        in its master the `Cluster`.

    Attributes
    ----------
    local, comm : SharedMemoryComm or NodesComm
        To meet the ranks of its node, and all others.
    flat_buffers, device_buffers, buffers_of_node : FlatBuffers or DeviceBuffers
        Where functions reduce values, on GPUs, and with those of this machine alone.
    outbox : Arena
        What the rank leaves for others to read.
    transaction : Transaction
        What it has changed in the launch of a function.
    activity : str
        What it is doing, for messages.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        place: Place,
        pools: ThreadPools,
        control: Control,
        watch: Callable[..., None],
        recorder: Recorder,
        nodes: tuple[list[int], int, Any] | None = None,
    ) -> None:
        self._nodes = nodes
        self.local_rank = rank
        if nodes is not None:
            self.local_rank -= sum(nodes[0][: nodes[1]])
        self.rank, self.size, self.place, self.control = rank, size, place, control
        self._pools = pools
        self._watch = watch
        self._undo = contextlib.ExitStack()
        self.recorder = recorder
        self.activity = ""
        self.share: Any = None  # of the last call, which may be made again
        self.transaction = Transaction(recorder.phase)
        self.tracer: Tracer | None = None
        # By number, what it does after each step as a worker of a training rule.
        self.workers: dict[int, Any] = {}
        self.readers: dict[int, Any] = {}  # in masters of nodes
        self.model: Any = None  # that it trains by functions of its own; see `compat`

    def open(self, limit: Limit) -> None:
        """Take the rank's device and cores, and make what it has.

        Changes this process. Apart from ``__init__``, so that whoever made the context
        holds it already, and can undo with `close` what was done before an error or an
        interrupt: each thing is noted in `_undo` before it is done, or right after.
        """
        environment = Environment(self.place.device)
        self._undo.callback(environment.release)
        self._confinement = affinity.Confinement(
            *(self.place.cores, self.place.threads, self._pools),
            is_script=self.local_rank == 0,
        )
        self._undo.callback(self._confinement.release)
        if self.local_rank == 0:
            self._undo.callback(forks.free_no_more)
            forks.free_what_starts(environment, self._confinement)
        if self.local_rank == 0 and self.size > 1 and not self.place.device.is_gpu:
            # It may compute alone, with all cores.
            jax.start_in(self._confinement.on_all_cores)
            self._undo.callback(jax.start_in, None)
        self.local = SharedMemoryComm(
            *(self.control, self.local_rank, self._watch, limit), self.recorder
        )
        self.comm: Any = self.local
        # What it has replicas of, by the master's numbers: so functions that share a
        # variable in the master share it here. The master's variables are the user's,
        # and go when the user drops them.
        self.functions: dict[int, Programs] = {}
        self.variables: MutableMapping[int, SharedVariable]
        self.variables = {} if self.rank else WeakValueDictionary()
        self.attachments = Attachments()
        self.outbox = Arena(can_shrink=not self.place.device.is_gpu)
        self.variable_buffers: VariableBuffers | None = None
        if self._nodes is None:
            self.variable_buffers = VariableBuffers(self.local, self.attachments)
        self.flat_buffers = FlatBuffers(self.local, self.attachments)
        self.buffers_of_node = self.flat_buffers
        if self._nodes is not None:
            self._meet_nodes(*self._nodes)
        self.device_buffers: DeviceBuffers | None = None
        self.to_device: ToDevice | None = None
        if self.place.device.is_gpu:
            self.to_device = ToDevice(
                CudaCopier, warns=self.rank == 0, threads=self.place.threads
            )
            self._undo.callback(self.to_device.close)
            jax.read_with(self.to_device.read)
            self._undo.callback(jax.read_with, None)
            if self.size > 1:
                shares_gpu = self.place.device.sharers > 1
                connect = partial(NcclTransport, shares_gpu=shares_gpu)
                self.device_buffers = DeviceBuffers(
                    self.comm, connect, self.flat_buffers
                )
                jax.look_about_with(self.device_buffers.look_about)
                self._undo.callback(jax.look_about_with, None)
                self._undo.callback(self.device_buffers.abort)

    def _meet_nodes(self, ranks: list[int], node: int, cluster: Any) -> None:
        """Have this rank meet those of other nodes, too."""
        from ..cluster import comm

        self.comm = comm.NodesComm(self.local, ranks, node, cluster)
        self.flat_buffers = comm.NodesBuffers(self.comm, self.attachments)
        self.buffers_of_node = comm.OwnNodeBuffers(self.comm, self.attachments)

    def close(self) -> None:
        """Undo what was changed in this process; an interrupt leaves nothing out."""
        self._undo.close()

    def widen(self) -> None:
        """Compute with all cores until the next command: the other ranks do nothing."""
        if not self._confinement.is_wide or self._confinement.is_single:
            self._confinement.widen()

    def narrow(self) -> None:
        """Compute with the rank's own cores."""
        if self._confinement.is_wide:
            self._confinement.narrow()

    def compute_with(self, one_thread: bool) -> None:
        """Compute with one thread, or with as many as the rank has.

        With one all ranks do what is to have the same bits on any number of them.
        """
        confinement = self._confinement
        if one_thread:
            has_more = confinement.is_wide or self.place.threads > 1
            if has_more and not confinement.is_single:
                confinement.single()
        elif confinement.is_wide or confinement.is_single:
            confinement.narrow()

    def unpin_thread(self) -> None:
        """Let the thread that calls this run on all cores, and not the rank's alone."""
        self._confinement.unpin_thread()

    @contextlib.contextmanager
    def unconfined(self) -> Iterator[None]:
        """Let this process use all cores in a ``with`` block, as if not forked."""
        self._confinement.release()
        try:
            yield
        finally:
            self._confinement.apply()

    # -- running a command

    def execute(self, work: Callable, args: Sequence) -> Any:
        """Run a command on this rank."""
        if self.tracer is None:
            return work(self, *args)
        return self.tracer.follow(work, self, *args)

    def abort(self) -> None:
        """Have all ranks stop the command that is being run: this one has failed."""
        self.control.abort()
        if self.device_buffers is not None:
            self.device_buffers.abort()

    def where(self, work: Callable | None) -> str:
        """Say where we are, for the note on an exception."""
        cores = ",".join(map(str, self.place.cores))
        gpu = self.place.device.gpu
        device = f"cpu {cores}" if gpu is None else f"GPU {gpu.number}, cpu {cores}"
        if self._nodes is not None:
            device = f"node {self._nodes[1]}, {socket.gethostname()}, {device}"
        if work is None:
            doing = "the reading of a command"
        else:
            doing = self.activity or name_of(work)
        return f"[synk] on rank {self.rank} of {self.size} ({device}), in {doing}"

    # -- arrays of other ranks

    def array(self, described: np.ndarray | Window | Sequence) -> np.ndarray:
        """Return an array that may be described by a window, or a value as it is."""
        if not is_window(described):
            return described  # type: ignore[return-value]
        try:
            return self.attachments.array(described)
        except OSError:
            self._watch(PATIENCE)  # a rank's segment is gone if the rank is
            raise

    def leave(self, values: dict[Any, Any]) -> dict[Any, Any]:
        """Put arrays where other ranks can read them until the next command.

        Returns their windows. What is no array of numbers, such as a sparse matrix or a
        generator, is there itself, to be pickled with the reply; see `array`.
        """
        arrays: dict[Any, np.ndarray] = {}
        for key, value in values.items():
            if isinstance(value, list):  # of a typed list, which numpy would stack
                continue
            array = np.asarray(value)
            if can_lie_here(array):
                arrays[key] = array
        if not arrays:
            self.outbox.put_nothing()
            return values
        windows = dict(zip(arrays, self.outbox.put([*arrays.values()]), strict=True))
        return windows if len(windows) == len(values) else {**values, **windows}

    # -- what the script has given up

    def forget(self, notices: Sequence[Dropped]) -> None:
        """Forget what the user's script has given up."""
        self.share = None
        of_rank = self.flat_buffers, self.buffers_of_node, self.variable_buffers
        buffers = [each for each in (*of_rank, self.device_buffers) if each is not None]
        for kind, key in notices:
            if kind == "segment":
                self.attachments.forget(key)
            elif kind == "function":
                self.functions.pop(key, None)
                for each in buffers:
                    each.forget(key)
            elif kind == "workers":
                self.workers.pop(key, None)
            elif kind == "reader":
                self.readers.pop(key, None)
            else:
                self.variables.pop(key, None)
                for each in buffers:
                    each.forget_variable(key)


@functools.cache
def name_of(work: Callable) -> str:
    """Return what a command is called in messages."""
    return work.__name__.removeprefix("worker_")
