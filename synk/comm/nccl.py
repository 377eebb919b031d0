"""Collectives between GPUs by NCCL, on JAX's own arrays and in the order of streams.

NCCL runs on a stream of its own. That stream waits for JAX's computations, and JAX
waits for the stream, on the GPU and not on the host; see `memory.cuda`.

The communicator is non-blocking: NCCL connects the ranks in threads of its own, while
this thread checks that ranks are alive. So if a rank dies before all are connected, the
others do not wait for ever.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections import deque
from typing import Any

from ..errors import SynkError
from ..memory.cuda import After, Capsule, import_after_xla
from ..reduce_ops import ReduceOp
from .shm import SharedMemoryComm

OPS = ("sum", "prod", "min", "max")
DTYPES = {
    *("int8", "int32", "int64", "uint8", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
}
"""The dtypes that NCCL reduces and sends."""

_SUCCESS, _IN_PROGRESS = 0, 7  # ncclResult_t
_POLL = 50e-6
"""Seconds between two looks at the state of NCCL's background work."""
_CONNECTING = 300.0
"""Seconds after which NCCL has failed to connect the ranks."""
_ENDING = 10.0
"""Seconds to wait for the end of a communicator."""


class NcclTransport:
    """One rank's communicator. All ranks make theirs at the same time.

    `shares_gpu` says whether other ranks are on this rank's GPU. Methods take flat
    arrays of JAX that are not empty, and that nobody else uses: NCCL writes to them,
    and the result lies in the same memory if possible.

    Raises ImportError, on every rank, if nccl4py or NCCL is missing on one, and
    SynkError if NCCL fails or does not connect the ranks in time.
    """

    def __init__(self, comm: SharedMemoryComm, shares_gpu: bool = False) -> None:
        self._comm = comm
        self._communicator: Any = None
        self._busy: deque[tuple[Any, Any]] = deque()
        self._nccl, unique = _import_everywhere(comm, shares_gpu)
        # The only GPU that this process sees. XLA uses its primary context, too.
        device = import_after_xla("cuda.core").Device(0)
        device.set_current()
        self._ops = {op: getattr(self._nccl, op.upper()) for op in OPS}
        self._stream: Any = device.create_stream()
        # Exit handlers run in reverse order, so this comes before JAX shuts CUDA down.
        atexit.register(self.abort)
        try:
            self._communicator = self._nccl.Communicator.init(
                comm.size,
                comm.rank,
                self._nccl.UniqueId.from_bytes(unique),
                self._nccl.NCCLConfig(blocking=False),
            )
            self._wait_until_ready(time.monotonic() + _CONNECTING)
        except BaseException:
            self.abort()
            raise

    def supports(self, dtype: str) -> bool:
        """Return whether NCCL reduces arrays of a dtype."""
        return dtype in DTYPES

    def all_reduce(self, array: Any, op: ReduceOp) -> Any:
        """Return the ranks' arrays combined; all have the same length and dtype."""
        given, room = self._capsules(array, array)
        self._communicator.allreduce(given, room, self._ops[op], stream=self._stream)
        return self._result(array)

    def reduce(self, array: Any, op: ReduceOp, root: int) -> Any:
        """Return the ranks' arrays combined on rank `root`, and None on the others."""
        given, room = self._capsules(array, array)
        self._communicator.reduce(given, room, self._ops[op], root, stream=self._stream)
        return self._result(array if root == self._comm.rank else None, array)

    def broadcast(self, array: Any, root: int) -> Any:
        """Return the array of rank `root`, on all ranks."""
        given, room = self._capsules(array, array)
        self._communicator.broadcast(given, room, root, stream=self._stream)
        return self._result(array)

    def all_gather(self, array: Any, into: Any) -> Any:
        """Return the ranks' arrays, one after the other, in the memory of `into`."""
        given, room = self._capsules(array, into)
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
        """End the communicator, and the collectives that were started."""
        # NCCL's `abort` needs no other rank. Every communicator ends by it, as
        # `destroy` would wait for other ranks, which may be gone.
        communicator, self._communicator = self._communicator, None
        atexit.unregister(self.abort)
        if communicator is None:
            return
        # NCCL stops its kernels and threads, and waits for them. That is done in a
        # thread, so that this process goes on even if it hangs.
        ending = threading.Thread(target=communicator.abort, daemon=True)
        try:
            ending.start()
        except RuntimeError:  # the interpreter is ending, and starts no threads
            communicator.abort()
            return
        ending.join(_ENDING)
        if not ending.is_alive():
            self._busy.clear()

    def _capsules(self, *arrays: Any) -> list[Capsule]:
        """Return capsules of arrays; NCCL's stream waits for JAX's work on these."""
        return [Capsule(array, self._stream) for array in arrays]

    def _result(self, result: Any, *read: Any) -> Any:
        """Return `result` as an array of JAX, which waits for NCCL to write it."""
        # JAX reuses the memory of an array that nobody refers to. So arrays that NCCL
        # still reads or writes are kept until it is done.
        self._wait_until_ready()
        self._busy.append((self._stream.record(), (result, *read)))
        while self._busy and self._busy[0][0].is_done:
            self._busy.popleft()
        if result is None:
            return None
        import jax

        return jax.dlpack.from_dlpack(After(result, self._stream))

    def _wait_until_ready(self, deadline: float = float("inf")) -> None:
        """Wait until NCCL can be called again, and its stream used."""
        # To connect the ranks, and the first collective of a kind, take some time.
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
    """Return nccl4py's module and a unique id; raise ImportError if a rank has none."""
    nccl, unique, missing = None, b"", ""
    try:
        import_after_xla("cuda.core")
        nccl = import_after_xla("nccl.core")
        library = nccl.get_version().libnccl
        if library is None:
            raise ImportError("NCCL's library, libnccl.so.2, was not found")
        if shares_gpu:
            _allow_sharing(library.version.release, comm.rank)
        unique = bytes(nccl.get_unique_id()) if comm.rank == 0 else b""
    except ImportError as error:
        missing = f"rank {comm.rank}: {error}"
    gathered = comm.exchange((missing, unique))
    if reasons := [reason for reason, _ in gathered if reason]:
        raise ImportError("; ".join(reasons))
    return nccl, gathered[0][1]


def _allow_sharing(version: tuple[int, ...], rank: int) -> None:
    """Set environment variables with which NCCL lets ranks share a GPU."""
    # Before version 2.30 NCCL allows that only for ranks of different hosts, which then
    # send by sockets, slowly. So each rank gets a host id of its own.
    if version >= (2, 30):
        os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    elif os.environ.get("NCCL_HOSTID", _HOST).startswith(_HOST):
        # Also in place of one that was inherited from a former session's master.
        os.environ["NCCL_HOSTID"] = f"{_HOST}{os.getpid()}-{rank}"


_HOST = "synk-"
