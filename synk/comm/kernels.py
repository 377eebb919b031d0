"""Numba kernels that reduce one part of the ranks' buffers, block by block.

A block of `_BLOCK` elements stays in the first-level cache while the ranks' values are
added up and written back, so that every buffer crosses the memory bus once each way.
The inner loops run over one-dimensional slices: that is what LLVM vectorises.
"""

from __future__ import annotations

from collections.abc import Callable

import numba
import numpy as np
from numba import extending, types
from numpy.lib.stride_tricks import as_strided

from .ops import accumulator, finish

_BLOCK = 1024  # at 4096 the loop took 1.6 times as long: blocks, then, leave the cache

_CODES = {"avg": 0, "sum": 1, "prod": 2, "min": 3, "max": 4}
_AVG, _SUM, _PROD, _MIN, _MAX = _CODES.values()
_OF_BOOLS = {"sum": "max", "prod": "min", "min": "min", "max": "max"}


def _compile(function: Callable) -> Callable:
    """Compile with numba, from its disk cache where there is a place for one."""
    options = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither the package nor the home directory can be written
        return numba.njit(**options)(function)


def _less(a, b):
    return a < b


@extending.overload(_less)
def _less_of_type(a, b):
    if isinstance(a, types.Complex):  # never reached: `ops.check_dtype` refuses it
        return lambda a, b: False
    return _less


@_compile
def _combine(op, total, values, share):
    # One loop for each op: a test inside the loop would keep it from being vectorised.
    # As in numpy, a NaN wins a comparison; integers equal themselves and pay nothing.
    if op == _AVG:
        for i in range(values.size):
            total[i] += values[i] * share
    elif op == _SUM:
        for i in range(values.size):
            total[i] += values[i]
    elif op == _PROD:
        for i in range(values.size):
            total[i] *= values[i]
    elif op == _MIN:
        for i in range(values.size):
            value = values[i]
            wins = _less(value, total[i]) or value != value
            total[i] = value if wins else total[i]
    else:
        for i in range(values.size):
            value = values[i]
            wins = _less(total[i], value) or value != value
            total[i] = value if wins else total[i]


@_compile
def _copy(target, values):
    for i in range(values.size):
        target[i] = values[i]


@_compile
def _begin(op, total, values, share):
    if op == _AVG:
        for i in range(values.size):
            total[i] = values[i] * share
    else:
        _copy(total, values)


@_compile
def _reduce_blocks(op, flat, stride, scratch, shares, start, stop, targets):
    for low in range(start, stop, scratch.size):
        high = min(low + scratch.size, stop)
        total = scratch[: high - low]
        empty = True
        for rank in range(shares.size):
            # Nothing times NaN is NaN: a rank without rows is left out, not weighed.
            if shares[rank] != 0:
                values = flat[rank * stride + low : rank * stride + high]
                if empty:
                    _begin(op, total, values, shares[rank])
                else:
                    _combine(op, total, values, shares[rank])
                empty = False
        for rank in range(targets):
            _copy(flat[rank * stride + low : rank * stride + high], total)


def reduce_part(
    op: str,
    buffers: np.ndarray,
    shares: np.ndarray,
    start: int,
    stop: int,
    targets: int,
) -> None:
    """Reduce the elements `start` to `stop` of all ranks' buffers, in place.

    Parameters
    ----------
    op : {"avg", "sum", "prod", "min", "max"}
    buffers : numpy.ndarray, shape (ranks, elements)
    shares : numpy.ndarray of float64, shape (ranks,)
        For "avg", the weight of each rank; they sum to 1. A rank at 0 is left out of
        any op.
    start, stop : int
        The part that the calling rank reduces.
    targets : int
        The result is written to the buffers of ranks 0 to `targets` - 1.
    """
    through = _THROUGH.get((op, buffers.dtype.kind), _THROUGH.get(buffers.dtype.name))
    if through is not None:
        _reduce_as(np.dtype(through), op, buffers, shares, start, stop, targets)
        return
    if buffers.dtype == np.bool_:
        op, buffers = _OF_BOOLS[op], buffers.view(np.uint8)
    flat, stride = _flatten(buffers)
    # One scratch for all ops: there is one compiled kernel for each dtype.
    scratch = np.empty(_BLOCK, accumulator("sum", flat.dtype))
    _reduce_blocks(_CODES[op], flat, stride, scratch, shares, start, stop, targets)


_THROUGH = {"float16": "float32", ("avg", "i"): "float64", ("avg", "u"): "float64"}
"""What is computed in another type: numba has no float16 on a CPU."""


def _flatten(buffers: np.ndarray) -> tuple[np.ndarray, int]:
    """Return rows as one contiguous array, and the elements from a row to the next.

    The rows may be parts of longer ones. Numba would compile another kernel for those,
    and a slower one, which cannot know that a row's elements are adjacent.
    """
    stride = buffers.strides[0] // buffers.itemsize
    if buffers.flags.c_contiguous:
        return buffers.reshape(-1), buffers.shape[1]
    length = (buffers.shape[0] - 1) * stride + buffers.shape[1]
    return as_strided(buffers, (length,), (buffers.itemsize,)), stride


def warm(op: str, dtype: np.dtype) -> None:
    """Have the kernel for a dtype compiled."""
    reduce_part(op, np.ones((1, 1), dtype), np.ones(1), 0, 1, 1)


def _reduce_as(wider, op, buffers, shares, start, stop, targets):
    """Reduce values of a type that needs another one to compute in."""
    step = 16 * _BLOCK
    for low in range(start, stop, step):
        high = min(low + step, stop)
        block = buffers[:, low:high].astype(wider)
        reduce_part(op, block, shares, 0, high - low, 1)
        buffers[:targets, low:high] = finish(block[0], buffers.dtype)
