"""A stand-in for NCCL: JAX on the CPU, arrays that pass through shared memory.

Like NCCL it writes to the memory of the arrays that it is given, passes over NaN in
comparisons, and knows neither booleans nor complex numbers nor 16-bit integers.
"""

import ctypes
from functools import partialmethod

import numpy as np

UNKNOWN = {"bool", "int16", "uint16", "complex64", "complex128"}
UFUNCS = {"sum": np.add, "prod": np.multiply, "min": np.fmin, "max": np.fmax}


class Watched:
    """A transport that counts, and lets tests step in."""

    made = 0  # on this rank
    before = staticmethod(lambda comm: None)
    """Called before every collective."""

    def __init__(self, comm, shares_gpu=False):
        super().__init__(comm, shares_gpu)
        Watched.made += 1
        self.calls = 0

    def _watch(self, name, array, *args):
        assert array.ndim == 1
        assert array.size
        Watched.before(self._comm)
        self.calls += 1
        return getattr(super(), name)(array, *args)

    all_reduce = partialmethod(_watch, "all_reduce")
    reduce = partialmethod(_watch, "reduce")
    broadcast = partialmethod(_watch, "broadcast")
    all_gather = partialmethod(_watch, "all_gather")


class Exchange:
    """Has the methods of `synk.comm.nccl.NcclTransport`."""

    def __init__(self, comm, shares_gpu=False):
        self._comm = comm
        comm.barrier()

    def supports(self, dtype):
        return dtype not in UNKNOWN

    def all_reduce(self, array, op):
        return self._write(array, self._reduced(array, op))

    def reduce(self, array, op, root):
        total = self._reduced(array, op)
        return self._write(array, total) if self._comm.rank == root else None

    def broadcast(self, array, root):
        return self._write(array, self._given(array)[root])

    def all_gather(self, array, into):
        return self._write(into, np.concatenate(self._given(array)))

    def check(self):
        pass

    abort = check

    def _given(self, array):
        given = self._comm.exchange(np.array(array))
        assert {(value.dtype, value.shape) for value in given} == {
            (array.dtype, array.shape)
        }
        return given

    def _reduced(self, array, op):
        total, *others = self._given(array)
        for other in others:
            total = UFUNCS[op](total, other)
        return total

    def _write(self, array, value):
        import jax

        jax.block_until_ready(array)
        nbytes = array.size * array.dtype.itemsize
        assert value.dtype == array.dtype
        assert value.nbytes == nbytes
        ctypes.memmove(array.unsafe_buffer_pointer(), value.ctypes.data, nbytes)
        return jax.dlpack.from_dlpack(array)


class ByExchange(Watched, Exchange):
    """The stand-in."""


def without_nccl(comm, shares_gpu=False):
    """Fail as NcclTransport does where NCCL is not installed."""
    comm.barrier()
    raise ImportError("rank 1: No module named 'nccl'")
