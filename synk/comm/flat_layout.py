"""Where in a flat buffer each value of a stage lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ..memory.segment import layout
from ..reduce_ops import ReduceOp
from .kernels import is_direct


def small_for(size: int) -> int:
    """Return the bytes of values up to which `size` ranks gain nothing by dividing.

    See `small`. To divide takes 6 us more, in which a rank reads some 64 KiB of others'
    values (docs/performance.rst, "Beside its peers"); half of that is to be sure.
    """
    return max(1 << 11, (1 << 15) // max(1, size - 1))


Kind = tuple[str, tuple[int, ...]]
"""Dtype and shape of a value."""


@dataclass
class Run:
    """Adjacent values of one dtype and op, which are reduced as one array.

    Attributes
    ----------
    dtype : str
    op : ReduceOp
    start, end : int
        In bytes, from the start of a row of the buffer.
    members : list of (int, int)
        Position of each value among those of the stage, and the element of the run
        with which it begins.
    """

    dtype: str
    op: ReduceOp
    start: int
    end: int
    members: list[tuple[int, int]] = field(default_factory=list)


class FlatLayout:
    """The places of values in a row, ordered so that those of one op are adjacent.

    Parameters
    ----------
    kinds : sequence of Kind
    ops : sequence of ReduceOp
        One for each value.

    Attributes
    ----------
    offsets : dict of int to int
        In bytes, by the position of a value.
    nbytes : int
        Of a row.
    runs : list of Run
    """

    def __init__(self, kinds: Sequence[Kind], ops: Sequence[ReduceOp]) -> None:
        self.kinds = kinds
        order = sorted(range(len(kinds)), key=lambda i: (kinds[i][0], ops[i]))
        sizes = [nbytes_of(kinds[i]) for i in order]
        offsets, self.nbytes = layout(sizes)
        self.offsets = dict(zip(order, offsets, strict=True))
        self.runs: list[Run] = []
        for i, offset, size in zip(order, offsets, sizes, strict=True):
            dtype, op = kinds[i][0], ops[i]
            last = self.runs[-1] if self.runs else None
            if last is None or (last.dtype, last.op) != (dtype, op):
                last = Run(dtype, op, offset, offset)
                self.runs.append(last)
            last.end = offset + size  # padding between values is reduced, too
            start = (offset - last.start) // np.dtype(dtype).itemsize
            last.members.append((i, start))

    def is_small(self, size: int) -> bool:
        """Tell whether the values are few for so many ranks, to combine as they are."""
        return 0 < self.nbytes <= small_for(size) and all(
            run.dtype != "|b1" and is_direct(run.op, np.dtype(run.dtype))
            for run in self.runs
        )


def nbytes_of(kind: Kind) -> int:
    """Return the size of a value."""
    dtype, shape = kind
    return np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))
