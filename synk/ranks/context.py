"""The context of a rank, from fork to close: all that a command sees of its rank.

Every rank, the master included, makes a `RankContext` in its own process. A command is
a module-level function ``worker_x(context, ...)``, which each rank runs with its own
context (see `session`). A command knows nothing of how processes are started.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, MutableMapping, Sequence
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
from ..memory.segment import Attachments, Window, can_be_shared, is_window
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
    """A rank's device, its cores, and its number of threads."""

    device: Device
    cores: list[int]
    threads: int


class Dropped(NamedTuple):
    """An object that the script has dropped, so that ranks can forget their part of it.

    `kind` is "function", "variable", "workers", "reader" or "segment", and `key` the
    object's number, or a segment's key.
    """

    kind: str
    key: Any


class RankContext:
    """One rank: its number, its replicas, its memory, and its ways to other ranks.

    On several machines, `nodes` has the number of ranks of each node, this node's
    number, and in a node's master the `Cluster`. `rank` then counts the ranks of all
    nodes, and `local_rank` those of this node.
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
        self._pools = pools  # capped before the fork already
        self._watch = watch
        self._undo = contextlib.ExitStack()
        self.recorder = recorder
        self.activity = ""  # for messages; "" for the command's name
        self.share: Any = None  # the `RankShare` of the last call, for a repeated one
        self.task: Any = None  # the `Task` of the present call
        self.transaction = Transaction(recorder.phase)  # a launch's changes
        self.tracer: Tracer | None = None
        # By number, this rank's workers of training rules.
        self.workers: dict[int, Any] = {}
        self.readers: dict[int, Any] = {}  # by number, in masters of nodes
        self.model: Any = None  # the model of `compat` that this rank trains

    def open(self, limit: Limit) -> None:
        """Set this process's device, cores and threads, and make the rank's memory."""
        # Not in ``__init__``, so that the caller holds the context already, and `close`
        # can undo what was done before an error or an interrupt. Each change is noted
        # in `_undo` before it is done, or right after.
        device = self.place.device
        environment = Environment(device)
        self._undo.callback(environment.release)
        self.confinement = affinity.Confinement(
            *(self.place.cores, self.place.threads, self._pools),
            is_script=self.local_rank == 0,
        )
        self._undo.callback(self.confinement.release)
        if self.local_rank == 0:
            self._undo.callback(forks.confine_new_processes)
            forks.free_new_processes(environment, self.confinement)
        if self.local_rank == 0 and self.size > 1 and not device.is_gpu:
            # Rank 0 may compute alone, with all cores.
            self._undo.callback(setattr, jax.OF_RANK, "starts_in", None)
            jax.OF_RANK.starts_in = self.confinement.on_all_cores
        # `local` meets the ranks of this node, `comm` those of all nodes.
        self.local = SharedMemoryComm(
            *(self.control, self.local_rank, self._watch, limit), self.recorder
        )
        self.comm: Any = self.local
        # Replicas by the master's numbers, so that functions that share a variable in
        # the script share its replica here. The master has the script's own variables,
        # by weak references.
        self.functions: dict[int, Programs] = {}
        self.variables: MutableMapping[int, SharedVariable]
        self.variables = {} if self.rank else WeakValueDictionary()
        self.attachments = Attachments()
        self.outbox = Arena(can_shrink=not device.is_gpu)  # see `publish`
        # The buffers for reducing: variables, functions' values, functions' values
        # among the ranks of this node alone, and functions' values on GPUs.
        self.variable_buffers: VariableBuffers | None = None
        self.flat_buffers = FlatBuffers(self.local, self.attachments)
        self.buffers_of_node = self.flat_buffers
        self.device_buffers: DeviceBuffers | None = None
        if self._nodes is None:
            self.variable_buffers = VariableBuffers(self.local, self.attachments)
        else:
            from ..cluster import comm

            self.comm = comm.NodesComm(self.local, *self._nodes)
            self.flat_buffers = comm.NodesBuffers(self.comm, self.attachments)
            self.buffers_of_node = comm.OwnNodeBuffers(self.comm, self.attachments)
        self.to_device: ToDevice | None = None
        if device.is_gpu:
            self._open_gpu()

    def _open_gpu(self) -> None:
        """Set up copies to and from the rank's GPU, and reductions between GPUs."""
        self.to_device = ToDevice(
            CudaCopier, warns=self.rank == 0, threads=self.place.threads
        )
        self._undo.callback(self.to_device.close)
        self._undo.callback(setattr, jax.OF_RANK, "read", None)
        jax.OF_RANK.read = self.to_device.read
        if self.size > 1:
            shares_gpu = self.place.device.sharers > 1
            connect = partial(NcclTransport, shares_gpu=shares_gpu)
            self.device_buffers = DeviceBuffers(self.comm, connect, self.flat_buffers)
            self._undo.callback(setattr, jax.OF_RANK, "look_about", None)
            jax.OF_RANK.look_about = self.device_buffers.look_about
            # Last, so it is undone first: NCCL would wait for ranks that may be gone.
            self._undo.callback(self.device_buffers.abort)

    def close(self) -> None:
        """Undo what `open` changed in this process, even if an interrupt comes."""
        self._undo.close()

    # -- running a command

    def execute(self, work: Callable, args: Sequence) -> Any:
        """Run a command on this rank."""
        if self.tracer is None:
            return work(self, *args)
        return self.tracer.follow(work, self, *args)

    def abort(self) -> None:
        """Have all ranks stop the present command, as this rank has failed in it."""
        # The word comes first: a rank that wakes when the transport ends reads it.
        self.control.abort()
        if self.device_buffers is not None:
            self.device_buffers.abort()

    def where(self, work: Callable | None) -> str:
        """Return a note for an exception: rank, device and command."""
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
        """Return the array that a window describes; any other value as it is."""
        if not is_window(described):
            return described  # type: ignore[return-value]
        try:
            return self.attachments.array(described)
        except OSError:
            self._watch(PATIENCE)  # a dead rank's segment is gone, too
            raise

    def publish(self, values: dict[Any, Any]) -> dict[Any, Any]:
        """Copy arrays to memory that other ranks can read until the next command.

        Returns windows of the copies, for `array`. A value that is no array of numbers,
        such as a sparse matrix or a generator, is returned itself, to be pickled.
        """
        arrays: dict[Any, np.ndarray] = {}
        for key, value in values.items():
            if isinstance(value, list):  # a typed list's value, which numpy would stack
                continue
            array = np.asarray(value)
            if can_be_shared(array):
                arrays[key] = array
        found = self.outbox.put([*arrays.values()])
        if not found:  # the usual case in a loop
            return values
        windows = dict(zip(arrays, found, strict=True))
        return windows if len(windows) == len(values) else {**values, **windows}

    # -- objects that the script has dropped

    def forget(self, notices: Sequence[Dropped]) -> None:
        """Drop this rank's part of the objects in `notices`."""
        # After an interrupt a notice may come twice. One of an object that is not here
        # does nothing.
        self.share = None
        tables: dict[str, MutableMapping[int, Any]] = {
            "function": self.functions,
            "variable": self.variables,
            "workers": self.workers,
            "reader": self.readers,
        }
        of_rank = self.flat_buffers, self.buffers_of_node, self.variable_buffers
        buffers = [each for each in (*of_rank, self.device_buffers) if each is not None]
        for kind, key in notices:
            if kind == "segment":
                self.attachments.forget(key)
                continue
            tables[kind].pop(key, None)
            for each in buffers:
                each.forget(kind, key)


def name_of(work: Callable) -> str:
    """Return a command's name for messages."""
    return work.__name__.removeprefix("worker_")
