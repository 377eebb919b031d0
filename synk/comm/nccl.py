"""All-reduces between GPUs by NCCL, on JAX's own arrays and in the order of streams.

NCCL runs on a stream of its own. It waits there for what JAX computes, and JAX for it,
without the host: DLPack's protocol has each side name the stream that is to wait.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from .shm import SharedMemoryComm

_OPS = ("sum", "prod", "min", "max")
_DTYPES = {
    *("int8", "int32", "int64", "uint8", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
}


class NcclTransport:
    """One rank's communicator.

    Making one is collective: every rank makes its own at the same time.

    Parameters
    ----------
    comm : SharedMemoryComm
        Carries the unique id.
    shares_gpu : bool
        Whether there are other ranks on this one's GPU.

    Raises
    ------
    ImportError
        On every rank, if nccl4py or NCCL is not installed on one.
    """

    def __init__(self, comm: SharedMemoryComm, shares_gpu: bool = False) -> None:
        nccl, unique, missing = None, b"", ""
        try:
            nccl = import_module("nccl.core")
            if shares_gpu:
                _allow_sharing(nccl.get_version().libnccl.version.release, comm.rank)
            unique = bytes(nccl.get_unique_id()) if comm.rank == 0 else b""
        except ImportError as error:
            missing = f"rank {comm.rank}: {error}"
        told = comm.exchange((missing, unique))
        if reasons := [reason for reason, _ in told if reason]:
            raise ImportError("; ".join(reasons))
        assert nccl is not None
        device = import_module("cuda.core").Device(0)  # all that this process sees
        device.set_current()  # its primary context, which is XLA's too
        self._ops = {op: getattr(nccl, op.upper()) for op in _OPS}
        self._stream: Any = device.create_stream()
        unique_id = nccl.UniqueId.from_bytes(told[0][1])
        self._nccl: Any = nccl.Communicator.init(comm.size, comm.rank, unique_id)

    def supports(self, dtype: str, op: str) -> bool:
        """Tell whether NCCL can combine arrays of a dtype by an op."""
        return dtype in _DTYPES and op in self._ops

    def all_reduce(self, array: Any, op: str, into: Any) -> Any:
        """Return the ranks' arrays combined, in the memory of the array `into`.

        Parameters
        ----------
        array, into : jax.Array
            One-dimensional, of the same length and dtype on every rank.
        op : {"sum", "prod", "min", "max"}

        Returns
        -------
        jax.Array
            Valid until `into` is used for another result. JAX may still be computing
            with the last one: `array` must come after that in its order.
        """
        import jax

        # The stream waits for the array, and so for all that JAX computed before it.
        ours = int(self._stream.handle)
        given = _Capsule(array, array.__dlpack__(stream=ours))
        self._nccl.allreduce(given, _Capsule(into), self._ops[op], stream=self._stream)
        return jax.dlpack.from_dlpack(_After(self._stream, into, keep=array))

    def abort(self) -> None:
        """End what is under way, as ranks that are gone will not come to it."""
        self._nccl.abort()


def _allow_sharing(version: tuple[int, ...], rank: int) -> None:
    """Let ranks share a GPU, which NCCL does not expect of them.

    Before version 2.30 it allows that only of ranks of different hosts; these then talk
    through sockets, slowly.
    """
    if version >= (2, 30):
        os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    else:
        os.environ.setdefault("NCCL_HOSTID", f"synk-{os.getpid()}-{rank}")


class _Capsule:
    """An array of JAX's as NCCL takes it, without waiting for anything again."""

    def __init__(self, array: Any, capsule: Any = None) -> None:
        self._array = array
        self._capsule = array.__dlpack__() if capsule is None else capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class _After(_Capsule):
    """A result for JAX: whoever reads it waits for a stream."""

    def __init__(self, stream: Any, array: Any, keep: Any) -> None:
        super().__init__(array)
        self._stream, self._keep = stream, keep

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> Any:
        if stream is None:
            self._stream.sync()
        elif stream != -1:
            import_module("cuda.core").Stream.from_handle(stream).wait(self._stream)
        return self._capsule
