"""Flat buffers: all values that a stage reduces, side by side in shared memory.

A buffer has a row for each rank's values, and one for the results, read by all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..memory.segment import Attachments
from ..reduce_ops import ReduceOp
from ..reduce_tree import BlockCut, Subtrees, combined
from ..times.timing import REDUCE, UNCOUNTED, WAIT, Times
from . import small
from .buffers import (
    FlatLayout,
    KeyedBuffers,
    SharedRows,
    StageBuffer,
    agree_on_kinds,
    make_shared_rows,
    views_of,
)
from .divided import DividedAllReduce, warm
from .shm import SharedMemoryComm
from .small import SmallBuffer
from .trees import TreeBuffers


class FlatBuffers(KeyedBuffers[StageBuffer]):
    """One rank's flat buffers, by key."""

    def __init__(self, comm: SharedMemoryComm, attachments: Attachments) -> None:
        super().__init__(comm, attachments)
        self._trees = TreeBuffers(comm, attachments)

    def reduce_tree(
        self,
        key: tuple,
        given: Subtrees | None,
        cut: BlockCut,
        times: Times = UNCOUNTED,
    ) -> list[np.ndarray]:
        """Combine the ranks' subtrees; see `TreeBuffers.reduce`."""
        if self._comm.size == 1:
            return ONE_RANK.reduce_tree(key, given, cut)
        return self._trees.reduce(key, given, cut, times)

    def reduce(
        self,
        key: tuple,
        values: Sequence[np.ndarray] | None,
        ops: Sequence[ReduceOp],
        weights: Sequence[float],
        times: Times = UNCOUNTED,
        names: Sequence[object] | None = None,
    ) -> list[np.ndarray]:
        """Combine the ranks' values, each by its op.

        A rank without rows has no values and gives None. `weights` are the numbers of
        rows of all ranks; a rank of weight 0 is left out, unless all are 0. The results
        are views of the buffer, valid until the next reduction with this key. `names`
        are the values' names for messages.

        Raises ShapeMismatch, on every rank, if the shapes of any value differ.
        """
        comm = self._comm
        if comm.size == 1:
            return ONE_RANK.reduce(key, values, ops, weights)
        flat, results = self._buffers.get(key), None
        if flat is None:
            self._meet_without_buffer()
        else:
            results = flat.reduce(comm, values, weights, times)
        if results is None:
            # All ranks come here together, as each has read the words of all.
            values = None if values is None else list(map(np.asarray, values))
            self._drop(key)
            flat = self._buffers[key] = self._renew(values, ops, names)
            results = flat.reduce(comm, values, weights, times)
            assert results is not None, "the ranks' buffers differ"
        return results

    def _meet_without_buffer(self) -> None:
        """Meet the other ranks without a buffer; they may have one."""
        self._comm.agree(-1)

    def forget(self, kind: str, number: int) -> None:
        """Drop the buffers of a dropped function or variable."""
        super().forget(kind, number)
        self._trees.forget(kind, number)

    def _renew(
        self,
        values: Sequence[np.ndarray] | None,
        ops: Sequence[ReduceOp],
        names: Sequence[object] | None,
    ) -> StageBuffer:
        """Make a buffer for values of other shapes. All ranks do this together."""
        comm = self._comm
        layout = FlatLayout(agree_on_kinds(comm, values, ops, names), ops)
        make, count = self._kind_of_buffer(layout)
        if comm.local.rank == 0:
            if make is SmallBuffer:
                for dtype in {run.dtype for run in layout.runs}:
                    small.warm(np.dtype(dtype))
            else:
                for dtype, op in {(run.dtype, run.op) for run in layout.runs}:
                    warm(op, np.dtype(dtype))
        shape = count, layout.nbytes
        return make(
            comm, layout, make_shared_rows(comm.local, self._attachments, shape)
        )

    def _kind_of_buffer(self, layout: FlatLayout) -> tuple[type[StageBuffer], int]:
        """Return the class of buffer for these values, and its number of rows."""
        size = self._comm.size
        if layout.is_small(size):
            return SmallBuffer, 2 * size
        return FlatBuffer, size + 1


class OneRank:
    """In place of flat buffers if there is one rank."""

    def reduce(self, key: tuple, values: Any, *_: Any) -> list[np.ndarray]:
        """Return the rank's own values."""
        return list(values)

    def reduce_tree(
        self, key: tuple, given: Subtrees | None, cut: BlockCut, *_: Any
    ) -> list[np.ndarray]:
        """Return the rank's own subtrees combined."""
        assert given is not None
        return combined(cut, [given.entries], given.columns)


ONE_RANK = OneRank()


class FlatBuffer(StageBuffer):
    """A buffer for many values, of which each rank reduces a part."""

    def __init__(
        self, comm: SharedMemoryComm, layout: FlatLayout, shared: SharedRows
    ) -> None:
        super().__init__(comm, layout, shared)
        self._members = [run.members for run in layout.runs]
        self._views = views_of(layout, self._prepare(comm, layout, shared.rows))

    def _prepare(
        self, comm: SharedMemoryComm, layout: FlatLayout, rows: np.ndarray
    ) -> np.ndarray:
        """Make the reductions of all runs; return the row of the results."""
        self._runs = []
        for run in layout.runs:
            values = rows[:, run.start : run.end].view(run.dtype)
            self._runs.append(DividedAllReduce(comm, run.op, values[:-1], values[-1:]))
        return rows[-1]

    def reduce(
        self,
        comm: SharedMemoryComm,
        values: Sequence[np.ndarray] | None,
        weights: Sequence[float],
        times: Times,
    ) -> list[np.ndarray] | None:
        """Combine the ranks' values; return None, on all ranks, if any do not fit."""
        values = None if values is None else list(map(np.asarray, values))
        fits = self.fits(values)
        if fits and values is not None:
            for run, members in zip(self._runs, self._members, strict=True):
                run.put([(start, values[i]) for i, start in members])
        times.spent(REDUCE, self._nbytes)
        # `agree` is a meeting. From here on other ranks read this rank's row, and this
        # rank writes to the results: nobody reads those of the last reduction any more.
        words = comm.agree(self.serial if fits else -1)
        times.spent(WAIT)
        if not fits or any(word != self.serial for word in words):
            return None
        for run in self._runs:
            run.run(weights)
        times.spent(REDUCE, self._nbytes)
        # After this barrier all parts are done, and rows may be written to again.
        comm.barrier()
        times.spent(WAIT)
        return self._views
