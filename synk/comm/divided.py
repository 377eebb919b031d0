"""All-reduces of many values: every rank reduces a part of them.

Each rank has a row of shared memory for its values. It puts them there, waits for the
others (a barrier), and then reduces its own part of all the rows::

    row of rank 0   | part 0 | part 1 | part 2 |
    row of rank 1   | part 0 | part 1 | part 2 |     rank r reads part r of every row
    row of rank 2   | part 0 | part 1 | part 2 |

    results         | part 0 | part 1 | part 2 |     and writes part r of the results

The results are whole when every rank has done its part (another barrier). They may lie
in a row that all ranks read, or in the rows that the values came from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..memory.segment import ALIGNMENT
from ..reduce_ops import ReduceOp
from .kernels import Reduction
from .shm import SharedMemoryComm

LARGE = 1 << 14
"""Bytes of a value within this rank's own part from which on it is not copied."""


class DividedAllReduce:
    """One rank's share of an all-reduce of values of one dtype.

    Parameters
    ----------
    comm : SharedMemoryComm
    op : str
        One of `REDUCE_OPS`.
    buffers : numpy.ndarray, shape (size, elements)
        The ranks' rows, in shared memory.
    results : numpy.ndarray, shape (targets, elements)
        Every row of it receives the results; in shared memory, too.
    """

    def __init__(
        self,
        comm: SharedMemoryComm,
        op: ReduceOp,
        buffers: np.ndarray,
        results: np.ndarray,
    ) -> None:
        self._comm, self._op, self._buffers = comm, op, buffers
        self._row = buffers[comm.rank]
        self._part = _part_of(comm.rank, comm.size, buffers)
        self._reduction = Reduction(op, buffers, results, comm.rank)
        self._elsewhere: list[tuple[int, np.ndarray]] = []

    def put(self, values: Iterable[tuple[int, np.ndarray]]) -> None:
        """Copy values into this rank's row, where the others will read them.

        What belongs to this rank's own part nobody else reads. If that is much, it is
        left where it is, and `run` takes it from there.

        Parameters
        ----------
        values : iterable of (int, numpy.ndarray)
            In ascending order: where in the row values begin, and the values, of the
            row's dtype. They must not change before `run`.
        """
        # What an interrupted reduction left here is of other values.
        self._elsewhere = []
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
            self._elsewhere.append((low, flat[low - start : high - start]))

    def redirect(self, results: np.ndarray) -> None:
        """Have the results written to other rows."""
        rank = self._comm.rank
        self._reduction = Reduction(self._op, self._buffers, results, rank)

    def run(self, weights: Sequence[float]) -> None:
        """Reduce this rank's part.

        Parameters
        ----------
        weights : sequence of float
            Of each rank for "avg". A rank at 0 is left out of any op, unless all are.
        """
        start, stop = self._part
        fractions = self._comm.fractions(weights)
        for begin, values in self._elsewhere:
            end = begin + values.size
            self._reduction.run(fractions, start, begin)
            self._reduction.run(fractions, begin, end, (values, begin))
            start = end
        self._reduction.run(fractions, start, stop)


def _part_of(rank: int, size: int, buffers: np.ndarray) -> tuple[int, int]:
    """Return a rank's part in elements; parts meet on cache lines."""
    elements = buffers.shape[1]
    unit = max(1, ALIGNMENT // buffers.itemsize)
    lines = -(-elements // unit)
    start = lines * rank // size * unit
    stop = lines * (rank + 1) // size * unit
    return min(start, elements), min(stop, elements)
