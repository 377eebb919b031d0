"""Buffers in which ranks reduce values: their keys, their rows, and their layout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from ..errors import ShapeMismatch
from ..memory.segment import Attachments, Segment, key_of
from ..memory.segment import layout as lay_out
from ..reduce_ops import ReduceOp, check_shapes
from ..times.timing import Times
from .divided import is_direct
from .shm import SharedMemoryComm

Buffer = TypeVar("Buffer")


class SharedRows(NamedTuple):
    """Rows in a segment of rank 0, as one rank maps them."""

    rows: np.ndarray
    segment: Segment | None  # on rank 0 alone, which owns it
    key: tuple[int, int]  # the segment's

    @property
    def serial(self) -> int:
        """The number by which ranks compare buffers: the segment's serial number."""
        # After an interrupted change of buffers, two ranks may hold different buffers
        # that both fit their values.
        return self.key[1]


def make_shared_rows(
    comm: SharedMemoryComm,
    attachments: Attachments | None,
    shape: tuple[int, ...],
    dtype: type = np.uint8,
) -> SharedRows:
    """Make rows that all ranks share. All ranks call this together."""
    segment = window = None
    if comm.rank == 0:
        segment = Segment(max(1, np.dtype(dtype).itemsize * math.prod(shape)))
        rows = segment.array(dtype, shape)
        window = segment.window(rows)
    # The exchange is a meeting, so the segment exists before any rank attaches to it.
    # Rank 0 keeps it as long as the buffer.
    window = comm.exchange(window)[0]
    if comm.rank:
        assert attachments is not None
        rows = attachments.array(window)
    return SharedRows(rows, segment, key_of(window))


class KeyedBuffers(Generic[Buffer]):
    """One rank's buffers by key. All ranks use the same key for the same buffer.

    A key begins with the number of a function, or a tuple of variables' numbers. All
    ranks make a buffer together, but each drops it by itself. So one rank may have a
    buffer that another has dropped; they find that out at their next meeting for it.
    """

    def __init__(
        self, comm: SharedMemoryComm, attachments: Attachments | None = None
    ) -> None:
        self._comm, self._attachments = comm, attachments
        self._buffers: dict[tuple, Buffer] = {}

    def forget(self, kind: str, number: int) -> None:
        """Drop the buffers of a dropped object: a "function", or a "variable"."""
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
            # The last view of rank 0's segment unmaps it in this process.
            self._attachments.forget(buffer.shared.key)


Kind = tuple[str, tuple[int, ...]]
"""Dtype and shape of a value."""


@dataclass
class ValueRun:
    """Adjacent values of one dtype and op, which are reduced as one array."""

    dtype: str
    op: ReduceOp
    start: int  # in bytes of a row of the buffer
    end: int
    # For each value: its position among the stage's values, and its first element in
    # this run.
    members: list[tuple[int, int]] = field(default_factory=list)


class FlatLayout:
    """The places of values in a row; values of one dtype and op are adjacent."""

    def __init__(self, kinds: Sequence[Kind], ops: Sequence[ReduceOp]) -> None:
        self.kinds = kinds
        order = sorted(range(len(kinds)), key=lambda i: (kinds[i][0], ops[i]))
        sizes = [nbytes_of(kinds[i]) for i in order]
        offsets, self.nbytes = lay_out(sizes)  # the bytes of a row
        # In bytes, by a value's position among the stage's values.
        self.offsets = dict(zip(order, offsets, strict=True))
        self.runs: list[ValueRun] = []
        for i, offset, size in zip(order, offsets, sizes, strict=True):
            dtype, op = kinds[i][0], ops[i]
            last = self.runs[-1] if self.runs else None
            if last is None or (last.dtype, last.op) != (dtype, op):
                last = ValueRun(dtype, op, offset, offset)
                self.runs.append(last)
            last.end = offset + size  # the padding between values is reduced, too
            start = (offset - last.start) // np.dtype(dtype).itemsize
            last.members.append((i, start))

    def is_small(self, size: int) -> bool:
        """Return whether a `SmallBuffer` is to reduce the values of `size` ranks."""
        # See `small`. To divide the work takes 6 us more, in which a rank reads some
        # 64 KiB of others' values (docs/performance.rst, "Beside its peers"). This is
        # half of it, for safety.
        most = max(1 << 11, (1 << 15) // max(1, size - 1))
        return 0 < self.nbytes <= most and all(
            run.dtype != "|b1" and is_direct(run.op, np.dtype(run.dtype))
            for run in self.runs
        )


def nbytes_of(kind: Kind) -> int:
    """Return the bytes of a value."""
    dtype, shape = kind
    return np.dtype(dtype).itemsize * int(np.prod(shape, dtype=np.int64))


def views_of(layout: FlatLayout, row: np.ndarray) -> list[np.ndarray]:
    """Return views of the values in a row of bytes, in the stage's order."""
    views = []
    for i, (dtype, shape) in enumerate(layout.kinds):
        end = layout.offsets[i] + nbytes_of(layout.kinds[i])
        views.append(row[layout.offsets[i] : end].view(dtype).reshape(shape))
    return views


class StageBuffer:
    """One rank's end of the buffer in which a stage's values are reduced."""

    def __init__(
        self, comm: SharedMemoryComm, layout: FlatLayout, shared: SharedRows
    ) -> None:
        self.shared, self.serial = shared, shared.serial
        self._nbytes = layout.nbytes
        self._kinds = [(np.dtype(dtype), shape) for dtype, shape in layout.kinds]

    def fits(self, values: Sequence[np.ndarray] | None) -> bool:
        """Return whether the values have this buffer's dtypes and shapes; None does."""
        return values is None or [(v.dtype, v.shape) for v in values] == self._kinds

    def reduce(
        self,
        comm: SharedMemoryComm,
        values: Sequence[np.ndarray] | None,
        weights: Sequence[float],
        times: Times,
    ) -> list[np.ndarray] | None:
        """Combine the ranks' values; return None, on all ranks, if any do not fit."""
        raise NotImplementedError


def agree_on_kinds(
    comm: SharedMemoryComm,
    values: Sequence[np.ndarray] | None,
    ops: Sequence[ReduceOp],
    names: Sequence[object] | None = None,
) -> list[Kind]:
    """Return the dtypes and shapes of the values, which must be equal on all ranks.

    Raises ShapeMismatch, on every rank, if any differ; `names` are for its message.
    """
    mine = None
    if values is not None:
        mine = [(value.dtype.str, value.shape) for value in values]
    kinds = comm.exchange(mine)
    # From here on all ranks have the same data: all raise, or none.
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
