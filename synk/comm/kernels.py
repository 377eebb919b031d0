"""Numba kernels that reduce one part of the ranks' buffers, block by block.

A block of `_BLOCK` elements stays in the first-level cache while the ranks' values are
added up and written back, so that every buffer crosses the memory bus once each way.
The inner loops run over one-dimensional slices: that is what LLVM vectorises.
"""

from __future__ import annotations

from functools import cache, partial

import numpy as np
from numba import extending, types
from numpy.lib.stride_tricks import as_strided

from ..compiled import compile_kernel
from ..reduce_ops import ReduceOp, accumulator, finish

_BLOCK = 1024  # at 4096 the loop took 1.6 times as long: blocks, then, leave the cache

CODES = {"avg": 0, "sum": 1, "prod": 2, "min": 3, "max": 4}
_AVG, _SUM, _PROD, _MIN, _MAX = CODES.values()
_OF_BOOLS: dict[ReduceOp, ReduceOp] = {
    "sum": "max",
    "prod": "min",
    "min": "min",
    "max": "max",
}


def _less(a, b):
    return a < b


@extending.overload(_less)
def _less_of_type(a, b):
    if isinstance(a, types.Complex):  # never reached: `ops.check_dtype` refuses it
        return lambda a, b: False
    return _less


@compile_kernel
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


@compile_kernel
def copy_block(target, values):
    """Copy values, converting them."""
    for i in range(values.size):
        target[i] = values[i]


@compile_kernel
def _combine_two(op, total, a, b, share_a, share_b):
    kind = total.dtype.type
    if op == _AVG:
        for i in range(total.size):
            total[i] = a[i] * share_a + b[i] * share_b
    elif op == _SUM:
        for i in range(total.size):
            total[i] = kind(a[i]) + kind(b[i])
    else:
        copy_block(total, a)
        _combine(op, total, b, share_b)


@compile_kernel
def combine_block(op, total, wide, flat, stride, start, me, own, own_start, shares):
    """Combine as many elements of all ranks' values as `total` holds.

    Rank `me` has its values in `own`, from element `own_start` on.
    """
    # Nothing times NaN is NaN: a rank without rows is left out, not weighed.
    present = 0
    for rank in range(shares.size):
        present += shares[rank] != 0
    seen = 0
    values = before = flat[:0]
    share = 0.0
    for rank in range(shares.size):
        if shares[rank] == 0:
            continue
        first = rank * stride + start
        values = flat[first : first + total.size]
        if rank == me:
            first = start - own_start
            values = own[first : first + total.size]
        seen += 1
        if present == 1:
            copy_block(total, values)
        elif seen == 1:
            before, share = values, shares[rank]
        elif seen == 2 and present == 2:
            # To round the sum of two once is what accumulating it in `wide` would give.
            _combine_two(op, total, before, values, share, shares[rank])
        elif seen == 2:
            _combine_two(op, wide, before, values, share, shares[rank])
        else:
            _combine(op, wide, values, shares[rank])
    if present > 2:
        copy_block(total, wide)


@compile_kernel
def _reduce_blocks(
    op,
    flat,
    stride,
    block,
    wide,
    results,
    out_stride,
    me,
    shares,
    start,
    stop,
    own,
    own_start,
):
    # Results that lie among the values are made in a block, lest they stop LLVM from
    # vectorising; those that lie apart are made in place.
    for low in range(start, stop, wide.size):
        high = min(low + wide.size, stop)
        total = block[: high - low] if block.size else results[low:high]
        combine_block(
            op, total, wide[: high - low], flat, stride, low, me, own, own_start, shares
        )
        for row in range(0, results.size if block.size else 0, out_stride):
            copy_block(results[row + low : row + high], total)


class Reduction:
    """What a rank does in an all-reduce, once all values are there.

    Parameters
    ----------
    op : {"avg", "sum", "prod", "min", "max"}
    buffers : numpy.ndarray, shape (ranks, elements)
        The ranks' values.
    results : numpy.ndarray, shape (targets, elements)
        Every row of it receives the result. May be rows of the buffers.
    rank : int
        The rank that calls.
    """

    def __init__(
        self, op: ReduceOp, buffers: np.ndarray, results: np.ndarray, rank: int
    ) -> None:
        self._wider = None
        if not is_direct(op, buffers.dtype):
            wider = _THROUGH.get((op, buffers.dtype.kind))
            self._wider = np.dtype(wider or _THROUGH[buffers.dtype.name])
            self._all = op, buffers, results, rank
            return
        if buffers.dtype == np.bool_:
            op, buffers, results = (
                _OF_BOOLS[op],
                buffers.view(np.uint8),
                results.view(np.uint8),
            )
        flat, stride = _flatten(buffers)
        # The same for all ops: there is one compiled kernel for each dtype.
        is_apart = len(results) == 1 and not np.may_share_memory(results, buffers)
        block = np.empty(0 if is_apart else _BLOCK, flat.dtype)
        wide = np.empty(_BLOCK, accumulator("sum", flat.dtype))
        self._own = flat, -rank * stride
        fixed = CODES[op], flat, stride, block, wide, *_flatten(results), rank
        self._reduce = partial(_reduce_blocks, *fixed)

    def run(
        self,
        shares: np.ndarray,
        start: int,
        stop: int,
        own: tuple[np.ndarray, int] | None = None,
    ) -> None:
        """Reduce the elements `start` to `stop`.

        Parameters
        ----------
        shares : numpy.ndarray of float64, shape (ranks,)
            For "avg", the weight of each rank; they sum to 1. A rank at 0 is left out
            of any op.
        start, stop : int
        own : (numpy.ndarray, int), optional
            This rank's values, if they are not in the buffers, as a contiguous array,
            and the element at which they begin.
        """
        if start >= stop:
            return
        if self._wider is not None:
            self._run_wider(shares, start, stop, own)
            return
        values, begin = own or self._own
        if values.dtype == np.bool_:
            values = values.view(np.uint8)
        self._reduce(shares, start, stop, values, begin)

    def _run_wider(self, shares, start, stop, own):
        """Reduce values of a type that needs another one to compute in."""
        op, buffers, results, rank = self._all
        step = 16 * _BLOCK
        for low in range(start, stop, step):
            high = min(low + step, stop)
            block = buffers[:, low:high].astype(self._wider)
            if own is not None:
                values, begin = own
                block[rank] = values[low - begin : high - begin]
            Reduction(op, block, block[:1], rank).run(shares, 0, high - low)
            results[:, low:high] = finish(block[0], buffers.dtype)


@cache
def is_direct(op: ReduceOp, dtype: np.dtype) -> bool:
    """Tell whether the kernels can compute in a dtype and what is wider of its kind."""
    return (op, dtype.kind) not in _THROUGH and dtype.name not in _THROUGH


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


def warm(op: ReduceOp, dtype: np.dtype) -> None:
    """Have the kernel for a dtype compiled."""
    values = np.ones((1, 1), dtype)
    Reduction(op, values, values, 0).run(np.ones(1), 0, 1)
