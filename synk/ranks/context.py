"""What one rank has from fork to close, and all that a command sees of a rank.

Every rank, the master included, makes one in its own process. A command is a
module-level function ``worker_x(context, ...)``, run on each rank with its own context:
see `session`. A command never asks how processes are started or watched.
"""

from __future__ import annotations

import contextlib
import functools
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

    Where there are several `nodes`, these are how many ranks each has, which one this
    is, and in its master the `Cluster`: `rank` counts those of all nodes, and
    `local_rank` those of its own.
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
        self.activity = ""  # what it is doing, for messages
        self.share: Any = None  # of the last call, which may be made again
        self.task: Any = None  # of the call that it computes now
        self.transaction = Transaction(recorder.phase)  # what a launch has changed
        self.tracer: Tracer | None = None
        # By number, what it does after each step as a worker of a training rule.
        self.workers: dict[int, Any] = {}
        self.readers: dict[int, Any] = {}  # in masters of nodes
        self.model: Any = None  # that it trains by functions of its own; see `compat`

    def open(self, limit: Limit) -> None:
        """Take the rank's device and cores, and make what it has."""
        # Changes this process. Apart from ``__init__``, so that whoever made the
        # context holds it already, and can undo with `close` what was done before an
        # error or an interrupt: each thing is noted in `_undo` before it is done, or
        # right after.
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
            # It may compute alone, with all cores.
            jax.start_in(self.confinement.on_all_cores)
            self._undo.callback(jax.start_in, None)
        # To meet the ranks of its node, and all others.
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
        self.outbox = Arena(can_shrink=not device.is_gpu)  # for others to read
        # Where variables and functions reduce values, functions with the ranks of this
        # machine alone, and on GPUs.
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
        """Make what moves rows and values to and from the rank's GPU."""
        self.to_device = ToDevice(
            CudaCopier, warns=self.rank == 0, threads=self.place.threads
        )
        self._undo.callback(self.to_device.close)
        jax.read_with(self.to_device.read)
        self._undo.callback(jax.read_with, None)
        if self.size > 1:
            shares_gpu = self.place.device.sharers > 1
            connect = partial(NcclTransport, shares_gpu=shares_gpu)
            self.device_buffers = DeviceBuffers(self.comm, connect, self.flat_buffers)
            jax.look_about_with(self.device_buffers.look_about)
            self._undo.callback(jax.look_about_with, None)
            # First of all, as what is undone last in: other ranks may be gone, for whom
            # NCCL would wait.
            self._undo.callback(self.device_buffers.abort)

    def close(self) -> None:
        """Undo what was changed in this process; an interrupt leaves nothing out."""
        self._undo.close()

    # -- running a command

    def execute(self, work: Callable, args: Sequence) -> Any:
        """Run a command on this rank."""
        if self.tracer is None:
            return work(self, *args)
        return self.tracer.follow(work, self, *args)

    def abort(self) -> None:
        """Have all ranks stop the command that is being run: this one has failed."""
        # The word first: who is woken by the end of a communicator looks for it.
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
        found = self.outbox.put([*arrays.values()])
        if not found:  # as in most calls of a loop
            return values
        windows = dict(zip(arrays, found, strict=True))
        return windows if len(windows) == len(values) else {**values, **windows}

    # -- what the script has given up

    def forget(self, notices: Sequence[Dropped]) -> None:
        """Forget what the user's script has given up."""
        # A notice may come twice, after an interrupt: what is forgotten already, or was
        # never here, is passed over.
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


@functools.cache
def name_of(work: Callable) -> str:
    """Return what a command is called in messages."""
    return work.__name__.removeprefix("worker_")
