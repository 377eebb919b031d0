"""What ranks reduce values in: buffers by a key, and where in one each value lies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from ..errors import ShapeMismatch
from ..memory.segment import Attachments, Segment, key_of, layout
from ..reduce_ops import ReduceOp, check_shapes
from ..times.timing import Times
from .divided import is_direct
from .shm import SharedMemoryComm

Buffer = TypeVar("Buffer")


class SharedRows(NamedTuple):
    """Rows in a segment of rank 0's, which has it, as one rank maps them."""

    rows: np.ndarray
    segment: Segment | None
    key: tuple[int, int]

    @property
    def serial(self) -> int:
        """A number of their own, which all ranks know them by."""
        # After an interrupted change of buffers, two ranks may hold different ones that
        # both fit.
        return self.key[1]


def make_shared_rows(
    comm: SharedMemoryComm,
    attachments: Attachments | None,
    shape: tuple[int, ...],
    dtype: type = np.uint8,
) -> SharedRows:
    """Make rows that all ranks share, together with all of them."""
    segment = window = None
    if comm.rank == 0:
        segment = Segment(max(1, np.dtype(dtype).itemsize * math.prod(shape)))
        rows = segment.array(dtype, shape)
        window = segment.window(rows)
    # A meeting: the segment is there before any rank looks for it, and rank 0 has it as
    # long as the buffer.
    window = comm.exchange(window)[0]
    if comm.rank:
        assert attachments is not None
        rows = attachments.array(window)
    return SharedRows(rows, segment, key_of(window))


class KeyedBuffers(Generic[Buffer]):
    """The buffers of one rank, by a key that all ranks use for the same one.

    A key begins with the number of a function, or with those of a list of variables.
    All ranks make a buffer together, and each drops it for itself: so a rank may have
    one where another has none, which they find out when they next meet for it.
    """

    def __init__(
        self, comm: SharedMemoryComm, attachments: Attachments | None = None
    ) -> None:
        self._comm, self._attachments = comm, attachments
        self._buffers: dict[tuple, Buffer] = {}

    def forget(self, kind: str, number: int) -> None:
        """Drop the buffers of a "function" that is gone, or with a gone "variable"."""
        for key in list(self._buffers):
            owners = key[0] if isinstance(key[0], tuple) else ()
            if kind == "variable":
                is_gone = number in owners
            else:
                is_gone = kind == "function" and key[0] == number
            if is_gone:
                self._drop(key)

    def _drop(self, key: tuple) -> None:
        buffer: Any = self._buffers.pop(key, None)
        if buffer is not None and self._attachments is not None:
            # Rank 0's segment is unmapped here with the last view of it.
            self._attachments.forget(buffer.shared.key)


def small_for(size: int) -> int:
    """Return the bytes of values up to which `size` ranks gain nothing by dividing."""
    # See `small`. To divide takes 6 us more, in which a rank reads some 64 KiB of
    # others' values (docs/performance.rst, "Beside its peers"); half of that is to be
    # sure.
    return max(1 << 11, (1 << 15) // max(1, size - 1))


Kind = tuple[str, tuple[int, ...]]
"""Dtype and shape of a value."""


@dataclass
class ValueRun:
    """Adjacent values of one dtype and op, which are reduced as one array."""

    dtype: str
    op: ReduceOp
    start: int  # bytes of a row of the buffer
    end: int
    # The position of each value among those of the stage, and with which element of the
    # run it begins.
    members: list[tuple[int, int]] = field(default_factory=list)


class FlatLayout:
    """The places of values in a row, ordered so that those of one op are adjacent."""

    def __init__(self, kinds: Sequence[Kind], ops: Sequence[ReduceOp]) -> None:
        self.kinds = kinds
        order = sorted(range(len(kinds)), key=lambda i: (kinds[i][0], ops[i]))
        sizes = [nbytes_of(kinds[i]) for i in order]
        offsets, self.nbytes = layout(sizes)  # of a row
        self.offsets = dict(zip(order, offsets, strict=True))  # by position, in bytes
        self.runs: list[ValueRun] = []
        for i, offset, size in zip(order, offsets, sizes, strict=True):
            dtype, op = kinds[i][0], ops[i]
            last = self.runs[-1] if self.runs else None
            if last is None or (last.dtype, last.op) != (dtype, op):
                last = ValueRun(dtype, op, offset, offset)
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


def views_of(plan: FlatLayout, row: np.ndarray) -> list[np.ndarray]:
    """Return the values that lie in a row."""
    views = []
    for i, (dtype, shape) in enumerate(plan.kinds):
        end = plan.offsets[i] + nbytes_of(plan.kinds[i])
        views.append(row[plan.offsets[i] : end].view(dtype).reshape(shape))
    return views


class StageBuffer:
    """Where the values of one stage are reduced, as one rank sees it."""

    def __init__(
        self, comm: SharedMemoryComm, plan: FlatLayout, shared: SharedRows
    ) -> None:
        self.shared, self.serial = shared, shared.serial
        self._nbytes = plan.nbytes
        self._kinds = [(np.dtype(dtype), shape) for dtype, shape in plan.kinds]

    def fits(self, values: Sequence[np.ndarray] | None) -> bool:
        """Tell whether values of these shapes belong here; no values always do."""
        return values is None or [(v.dtype, v.shape) for v in values] == self._kinds

    def reduce(
        self,
        comm: SharedMemoryComm,
        values: Sequence[np.ndarray] | None,
        weights: Sequence[float],
        times: Times,
    ) -> list[np.ndarray] | None:
        """Combine the ranks' values; return None, on all, if any rank's do not fit."""
        raise NotImplementedError


def agree_on_kinds(
    comm: SharedMemoryComm,
    values: Sequence[np.ndarray] | None,
    ops: Sequence[ReduceOp],
    names: Sequence[object] | None = None,
) -> list[Kind]:
    """Return dtypes and shapes of values, which must be those of the other ranks.

    Raises ShapeMismatch, on every rank, if any differ.
    """
    mine = None
    if values is not None:
        mine = [(value.dtype.str, value.shape) for value in values]
    kinds = comm.exchange(mine)
    # From here on the same on all ranks: all raise, or none.
    given = [kind for kind in kinds if kind is not None]
    for i, first in enumerate(given[0]):
        if any(kind[i] != first for kind in given):
            shapes = [None if kind is None else kind[i][1] for kind in kinds]
            dtypes = [None if kind is None else kind[i][0] for kind in kinds]
            if names is not None:
                of_ranks = [kind[i][1] for kind in given]
                check_shapes(f"reduce by {ops[i]!r}", names[i], of_ranks)
            has_one = len({kind[i][0] for kind in given}) == 1
            differ = "" if has_one else f", their dtypes {dtypes}"
            raise ShapeMismatch(
                f"cannot all-reduce by {ops[i]!r}: the ranks' shapes are"
                f" {shapes}{differ}"
            )
    return given[0]
