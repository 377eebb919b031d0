"""All-reduces of many values: every rank reduces a part of them.

Each rank has a row of shared memory for its values. It copies them there, waits for the
others (a barrier), and then reduces its own part of all rows::

    row of rank 0   | part 0 | part 1 |
    row of rank 1   | part 0 | part 1 |     rank r reads part r of every row
    results         | part 0 | part 1 |     and writes part r of the results

The results are complete when every rank has reduced its part (another barrier). They
may lie in a row that all ranks read, or in the rows of the values.

Kernels of numba reduce a part block by block. A block of `_BLOCK` elements stays in the
first-level cache while the ranks' values are added up and written back, so every buffer
crosses the memory bus once each way. The inner loops run over one-dimensional slices,
which LLVM vectorises.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, partial

import numpy as np
from numba import extending, types
from numpy.lib.stride_tricks import as_strided

from ..compiled import compile_kernel, copy_block
from ..memory.partition import cuts
from ..memory.segment import ALIGNMENT
from ..reduce_ops import ReduceOp, accumulator, finish
from .shm import SharedMemoryComm

LARGE = 1 << 14
"""A value with at least so many bytes in the rank's own part is not copied there."""


class DividedAllReduce:
    """One rank's share of an all-reduce of values of one dtype; see `Reduction`."""

    def __init__(
        self,
        comm: SharedMemoryComm,
        op: ReduceOp,
        buffers: np.ndarray,
        results: np.ndarray,
    ) -> None:
        self._comm, self._op, self._buffers = comm, op, buffers
        self._row = buffers[comm.rank]
        # This rank's part, in elements; parts begin at cache lines.
        unit = max(1, ALIGNMENT // buffers.itemsize)
        ends = cuts(self._row.size, comm.size, unit)
        self._part = ends[comm.rank : comm.rank + 2]
        self.redirect(results)
        self._own_values: list[tuple[int, np.ndarray]] = []

    def put(self, values: Iterable[tuple[int, np.ndarray]]) -> None:
        """Copy values into this rank's row, from which the other ranks read them.

        `values` has, in ascending order, the first element of each value in the row,
        and the value. These must not change until `run` has ended.
        """
        # No other rank reads the elements in this rank's own part. If they are many,
        # they are not copied, and `run` reads them from the value. An interrupted
        # reduction may have left other values in the list.
        self._own_values = []
        row, itemsize = self._row, self._row.itemsize
        for start, value in values:
            stop = start + value.size
            low, high = (min(max(end, start), stop) for end in self._part)
            is_small = (high - low) * itemsize < LARGE
            if is_small or not value.flags.carray:
                row[start:stop].reshape(value.shape)[...] = value
                continue
            flat = value.reshape(-1)
            row[start:low] = flat[: low - start]
            row[high:stop] = flat[high - start :]
            self._own_values.append((low, flat[low - start : high - start]))

    def redirect(self, results: np.ndarray) -> None:
        """Write the results of later runs to the rows `results`."""
        rank = self._comm.rank
        self._reduction = Reduction(self._op, self._buffers, results, rank)

    def run(self, weights: Sequence[float]) -> None:
        """Reduce this rank's part. Ranks of weight 0 are left out, unless all are 0."""
        start, stop = self._part
        fractions = self._comm.fractions(weights)
        for begin, values in self._own_values:
            end = begin + values.size
            self._reduction.run(fractions, start, begin)
            self._reduction.run(fractions, begin, end, (values, begin))
            start = end
        self._reduction.run(fractions, start, stop)


# -- kernels

_BLOCK = 1024  # elements; at 4096, blocks leave the cache and take 1.6 times as long

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
    # One loop for each op, as a test inside the loop would prevent vectorisation. As in
    # numpy, a NaN, which differs from itself, wins; for integers that test is free.
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
    """Combine a block of all ranks' values, from element `start` on, into `total`."""
    # `wide` is scratch memory. The values of rank `me` are in `own`, which begins at
    # element `own_start`. A rank of share 0 is left out, as 0 * NaN is NaN.
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
            # The sum of two, rounded once, is the same as accumulated in `wide`.
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
    # Results in several rows, or among the values, where writing them would prevent
    # vectorisation, are made in `block`. If that is empty, they are made in place.
    for low in range(start, stop, wide.size):
        high = min(low + wide.size, stop)
        total = block[: high - low] if block.size else results[low:high]
        combine_block(
            op, total, wide[: high - low], flat, stride, low, me, own, own_start, shares
        )
        for row in range(0, results.size if block.size else 0, out_stride):
            copy_block(results[row + low : row + high], total)


class Reduction:
    """Reduces elements of the ranks' values, once all values are in the buffers.

    `buffers`, of shape (ranks, elements), are the ranks' values. Every row of `results`
    gets the result; these may be rows of the buffers.
    """

    def __init__(
        self, op: ReduceOp, buffers: np.ndarray, results: np.ndarray, rank: int
    ) -> None:
        self._wider = None
        if not is_direct(op, buffers.dtype):
            wider = _COMPUTED_IN.get((op, buffers.dtype.kind))
            self._wider = np.dtype(wider or _COMPUTED_IN[buffers.dtype.name])
            self._all = op, buffers, results, rank
            return
        if buffers.dtype == np.bool_:
            op, buffers, results = (
                _OF_BOOLS[op],
                buffers.view(np.uint8),
                results.view(np.uint8),
            )
        flat, stride = _flatten(buffers)
        # `op` is a number, so there is one compiled kernel for each dtype.
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
        """Reduce the elements `start` to `stop`, by the ranks' shares of the weight."""
        # `own` has this rank's values, if they are not in the buffers: a contiguous
        # array, and the element at which it begins.
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
        """Do as `run`, for a dtype that is computed in another one."""
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
    """Return whether the kernels compute an op in this dtype itself."""
    return (op, dtype.kind) not in _COMPUTED_IN and dtype.name not in _COMPUTED_IN


_COMPUTED_IN = {"float16": "float32", ("avg", "i"): "float64", ("avg", "u"): "float64"}
"""The dtype in which others are computed: numba has no float16 on a CPU."""


def _flatten(buffers: np.ndarray) -> tuple[np.ndarray, int]:
    """Return rows as one flat array, and the elements from one row to the next."""
    # The rows may be parts of longer rows. For such an array numba would compile a
    # slower kernel, which cannot know that a row's elements are adjacent.
    if buffers.flags.c_contiguous:
        return buffers.reshape(-1), buffers.shape[1]
    stride = buffers.strides[0] // buffers.itemsize
    length = (buffers.shape[0] - 1) * stride + buffers.shape[1]
    return as_strided(buffers, (length,), (buffers.itemsize,)), stride


def warm(op: ReduceOp, dtype: np.dtype) -> None:
    """Compile the kernel for a dtype."""
    values = np.ones((1, 1), dtype)
    Reduction(op, values, values, 0).run(np.ones(1), 0, 1)
