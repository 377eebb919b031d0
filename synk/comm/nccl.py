"""Collectives between GPUs by NCCL, on JAX's own arrays and in the order of streams.

NCCL runs on a stream of its own. It waits there for what JAX computes, and JAX for it,
without the host; see `memory.cuda`.

The communicator is a non-blocking one: NCCL connects the ranks in threads of its own,
and this one looks about meanwhile. So a rank that dies before all are connected does
not leave the others waiting for ever.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from typing import Any

from ..errors import SynkError
from ..memory.cuda import After, Capsule, after_xla
from ..reduce_ops import ReduceOp
from .shm import SharedMemoryComm

OPS = ("sum", "prod", "min", "max")
DTYPES = {
    *("int8", "int32", "int64", "uint8", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
}
"""What NCCL calculates with and moves."""

_SUCCESS, _IN_PROGRESS = 0, 7  # ncclResult_t
_POLL = 50e-6
"""Seconds between looks at what NCCL does in the background."""
_CONNECTING = 300.0
"""Seconds after which NCCL is taken to be unable to connect the ranks."""
_ENDING = 10.0
"""Seconds after which a communicator that does not end is left behind."""


class NcclTransport:
    """One rank's communicator, which all ranks make at the same time.

    `shares_gpu` tells whether other ranks are on this one's GPU. Methods are given flat
    arrays of JAX's that are nobody else's, none empty: NCCL may write to them, and what
    is returned lies in that memory, where that is possible.

    Raises ImportError, on every rank, if nccl4py or NCCL is not installed on one, and
    SynkError if NCCL does not get on.
    """

    def __init__(self, comm: SharedMemoryComm, shares_gpu: bool = False) -> None:
        self._comm = comm
        self._communicator: Any = None
        self._busy: deque[tuple[Any, Any]] = deque()
        self._nccl, told = _import_everywhere(comm, shares_gpu)
        # The only one that this process sees. Its primary context is XLA's, too.
        device = after_xla("cuda.core").Device(0)
        device.set_current()
        self._ops = {op: getattr(self._nccl, op.upper()) for op in OPS}
        self._stream: Any = device.create_stream()
        # Before JAX, which registered earlier, takes its part of CUDA down.
        atexit.register(self.abort)
        try:
            self._communicator = self._nccl.Communicator.init(
                comm.size,
                comm.rank,
                self._nccl.UniqueId.from_bytes(told),
                self._nccl.NCCLConfig(blocking=False),
            )
            self._settle(time.monotonic() + _CONNECTING)
        except BaseException:
            self.abort()
            raise

    def supports(self, dtype: str) -> bool:
        """Tell whether NCCL takes arrays of a dtype."""
        return dtype in DTYPES

    def all_reduce(self, array: Any, op: ReduceOp) -> Any:
        """Return the ranks' arrays combined: of one dimension, length and dtype."""
        given, room = self._opened(array, array)
        self._communicator.allreduce(given, room, self._ops[op], stream=self._stream)
        return self._result(array)

    def reduce(self, array: Any, op: ReduceOp, root: int) -> Any:
        """Return the ranks' arrays combined on rank `root`, and None on the others."""
        given, room = self._opened(array, array)
        self._communicator.reduce(given, room, self._ops[op], root, stream=self._stream)
        return self._result(array if root == self._comm.rank else None, array)

    def broadcast(self, array: Any, root: int) -> Any:
        """Return what the array is on rank `root`."""
        given, room = self._opened(array, array)
        self._communicator.broadcast(given, room, root, stream=self._stream)
        return self._result(array)

    def all_gather(self, array: Any, into: Any) -> Any:
        """Return the ranks' arrays one after the other, in the memory of `into`."""
        given, room = self._opened(array, into)
        self._communicator.allgather(given, room, stream=self._stream)
        return self._result(into, array)

    def check(self) -> None:
        """Raise if NCCL has failed in the background."""
        if self._communicator is not None:
            state = int(self._communicator.get_async_error())
            if state not in (_SUCCESS, _IN_PROGRESS):
                why = self._nccl.get_error_string(state)
                raise SynkError(f"NCCL failed on rank {self._comm.rank}: {why}")

    def abort(self) -> None:
        """End what is under way, as ranks that are gone will not come to it."""
        # This needs no other rank. It is the end of every communicator: `destroy` waits
        # for the others, which may be gone.
        communicator, self._communicator = self._communicator, None
        atexit.unregister(self.abort)
        if communicator is None:
            return
        # NCCL stops its kernels and threads, and waits for them. In a thread, so that
        # nothing that goes wrong with it keeps this process from going on.
        ending = threading.Thread(target=communicator.abort, daemon=True)
        try:
            ending.start()
        except RuntimeError:  # the interpreter is ending, and starts no threads
            communicator.abort()
            return
        ending.join(_ENDING)
        if not ending.is_alive():
            self._busy.clear()

    def _opened(self, *arrays: Any) -> list[Capsule]:
        """Return arrays as NCCL takes them, after JAX's work on them and before it."""
        return [Capsule(array, self._stream) for array in arrays]

    def _result(self, result: Any, *read: Any) -> Any:
        """Return an array that NCCL writes, for JAX to read when that is done."""
        # JAX gives the memory of an array away as soon as nobody has the array any
        # more: so those that NCCL is busy with are kept until it has done.
        self._settle()
        self._busy.append((self._stream.record(), (result, *read)))
        while self._busy and self._busy[0][0].is_done:
            self._busy.popleft()
        if result is None:
            return None
        import jax

        return jax.dlpack.from_dlpack(After(result, self._stream))

    def _settle(self, deadline: float = float("inf")) -> None:
        """Return when NCCL can be called again, and its stream used."""
        # Connecting the ranks, and the first collective of a kind, take a while.
        communicator = self._communicator
        while int(communicator.get_async_error()) == _IN_PROGRESS:
            self._comm.look_about()
            if time.monotonic() > deadline:
                raise SynkError(
                    f"rank {self._comm.rank}: NCCL has not connected the ranks in"
                    f" {_CONNECTING:.0f} s; with NCCL_DEBUG=INFO in the environment it"
                    " says more"
                )
            time.sleep(_POLL)
        self.check()


def _import_everywhere(comm: SharedMemoryComm, shares_gpu: bool) -> tuple[Any, bytes]:
    """Return nccl4py's module and a unique id, if all ranks have NCCL."""
    nccl, unique, missing = None, b"", ""
    try:
        after_xla("cuda.core")
        nccl = after_xla("nccl.core")
        library = nccl.get_version().libnccl
        if library is None:
            raise ImportError("NCCL's library, libnccl.so.2, was not found")
        if shares_gpu:
            _allow_sharing(library.version.release, comm.rank)
        unique = bytes(nccl.get_unique_id()) if comm.rank == 0 else b""
    except ImportError as error:
        missing = f"rank {comm.rank}: {error}"
    told = comm.exchange((missing, unique))
    if reasons := [reason for reason, _ in told if reason]:
        raise ImportError("; ".join(reasons))
    return nccl, told[0][1]


def _allow_sharing(version: tuple[int, ...], rank: int) -> None:
    """Let ranks share a GPU, which NCCL does not expect of them."""
    # Before version 2.30 it allows that only of ranks of different hosts; these then
    # talk through sockets, slowly.
    if version >= (2, 30):
        os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    elif os.environ.get("NCCL_HOSTID", _HOST).startswith(_HOST):
        # Not the one that was inherited from the master, of a former session.
        os.environ["NCCL_HOSTID"] = f"{_HOST}{os.getpid()}-{rank}"


_HOST = "synk-"
