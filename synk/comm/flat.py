"""Flat buffers: all values that a stage reduces, side by side in one piece of memory.

A buffer has a row for each rank's values and one for the results, which all ranks read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ShapeMismatch
from ..memory.segment import Attachments, Segment, key_of
from ..reduce_ops import ReduceOp, check_shapes
from ..reduce_tree import BlockCut, Subtrees, combined
from ..times.timing import REDUCE, UNCOUNTED, WAIT, Times
from . import small
from .divided import DividedAllReduce
from .flat_layout import FlatLayout, Kind, nbytes_of
from .kernels import warm
from .shm import SharedMemoryComm
from .small import SmallAllReduce
from .trees import TreeBuffers


class FlatBuffers:
    """The flat buffers of one rank, by a key that all ranks use for the same one.

    Parameters
    ----------
    comm : SharedMemoryComm
    attachments : Attachments
    """

    def __init__(self, comm: SharedMemoryComm, attachments: Attachments) -> None:
        self._comm = comm
        self._attachments = attachments
        self._buffers: dict[tuple, FlatBuffer] = {}
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
        """Combine the ranks' values.

        Parameters
        ----------
        key : tuple
        values : sequence of numpy.ndarray or None
            None from a rank that has no rows and therefore no values.
        ops : sequence of str
            One of `REDUCE_OPS` for each value.
        weights : sequence of float
            The rows of each rank. A rank without any is left out, unless all are.
        times : Times, optional
            Where to count the time that it takes.
        names : sequence, optional
            What the values are called in messages.

        Returns
        -------
        list of numpy.ndarray
            Views of the buffer, valid until the next reduction with this key.

        Raises
        ------
        ShapeMismatch
            On every rank, if the shapes of any value differ.
        """
        comm = self._comm
        if comm.size == 1:
            return ONE_RANK.reduce(key, values, ops, weights)
        flat = self._buffers.get(key)
        if flat is None:
            self._refuse()
            return self._renewed(key, values, ops, weights, times, names)
        results = flat.reduce(comm, values, weights, times)
        if results is None:
            return self._renewed(key, values, ops, weights, times, names)
        return results

    def _refuse(self) -> None:
        """Meet ranks that may have a buffer where this one has none."""
        self._comm.agree(-1)

    def forget(self, function: int) -> None:
        """Drop the buffers of a function that is gone."""
        for key in [key for key in self._buffers if key[0] == function]:
            self._drop(key)
        self._trees.forget(function)

    def forget_variable(self, number: int) -> None:
        """Drop the buffers of lists of variables that one is gone of."""
        for key in [key for key in self._buffers if is_of_variable(key, number)]:
            self._drop(key)

    def _drop(self, key: tuple) -> None:
        flat = self._buffers.pop(key, None)
        if flat is not None:
            self._attachments.forget(flat.segment_key)

    def _renewed(
        self,
        key: tuple,
        values: Sequence[np.ndarray] | None,
        ops: Sequence[ReduceOp],
        weights: Sequence[float],
        times: Times,
        names: Sequence[object] | None,
    ) -> list[np.ndarray]:
        """Combine values of other shapes than before, in a buffer for them."""
        values = None if values is None else list(map(np.asarray, values))
        self._drop(key)
        flat = self._buffers[key] = self._renew(values, ops, names)
        results = flat.reduce(self._comm, values, weights, times)
        assert results is not None, "the ranks' buffers differ"
        return results

    def _renew(
        self,
        values: Sequence[np.ndarray] | None,
        ops: Sequence[ReduceOp],
        names: Sequence[object] | None,
    ) -> FlatBuffer:
        """Make a buffer for values of other shapes, together with all ranks."""
        comm = self._comm
        plan = FlatLayout(agree_on_kinds(comm, values, ops, names), ops)
        make, count = self._kind_of_buffer(plan)
        window, segment, local = None, None, comm.local
        if local.rank == 0:
            if make is _SmallBuffer:
                for dtype in {run.dtype for run in plan.runs}:
                    small.warm(np.dtype(dtype))
            else:
                for dtype, op in {(run.dtype, run.op) for run in plan.runs}:
                    warm(op, np.dtype(dtype))
            segment = Segment(count * plan.nbytes)
            rows = segment.array(np.uint8, (count, plan.nbytes))
            window = segment.window(rows)
        window = local.exchange(window)[0]
        if local.rank:
            rows = self._attachments.array(window)
        return make(comm, plan, rows, segment, key_of(window))

    def _kind_of_buffer(self, plan: FlatLayout) -> tuple[type[FlatBuffer], int]:
        """Return what reduces such values, and how many rows it needs."""
        size = self._comm.size
        return (
            (_SmallBuffer, 2 * size) if plan.is_small(size) else (FlatBuffer, size + 1)
        )


def is_of_variable(key: tuple, number: int) -> bool:
    """Tell whether a key is that of a list of variables, with this one among them.

    It begins with the list's numbers then, and that of a function with its number.
    """
    return isinstance(key[0], tuple) and number in key[0]


class OneRank:
    """What takes the place of flat buffers where there is one rank only."""

    def reduce(
        self,
        key: tuple,
        values: Sequence[np.ndarray] | None,
        ops: Sequence[ReduceOp],
        weights: Sequence[float],
        times: Times = UNCOUNTED,
    ) -> list[np.ndarray]:
        """Return the values."""
        assert values is not None
        return list(values)

    def reduce_tree(
        self,
        key: tuple,
        given: Subtrees | None,
        cut: BlockCut,
        times: Times = UNCOUNTED,
    ) -> list[np.ndarray]:
        """Return what the rank's own subtrees come to."""
        assert given is not None
        return combined(cut, [given.entries], given.columns)


ONE_RANK = OneRank()


class FlatBuffer:
    """One flat buffer, as one rank sees it."""

    def __init__(
        self,
        comm: SharedMemoryComm,
        plan: FlatLayout,
        rows: np.ndarray,
        segment: Segment | None,
        key: tuple[int, int],
    ) -> None:
        self.segment_key = key
        # The buffer's own number: after an interrupted change of buffers, two ranks
        # may hold different ones that both fit.
        _, self.serial = key
        self._segment = segment  # the owner's; it lives as long as this
        self._nbytes = plan.nbytes
        self._kinds = [(np.dtype(dtype), shape) for dtype, shape in plan.kinds]
        self._members = [run.members for run in plan.runs]
        self._views = views_of(plan, self._prepare(comm, plan, rows))

    def _prepare(
        self, comm: SharedMemoryComm, plan: FlatLayout, rows: np.ndarray
    ) -> np.ndarray:
        """Make what reduces the values, and return the memory of the results."""
        self._runs = []
        for run in plan.runs:
            values = rows[:, run.start : run.end].view(run.dtype)
            self._runs.append(DividedAllReduce(comm, run.op, values[:-1], values[-1:]))
        return rows[-1]

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
        values = None if values is None else list(map(np.asarray, values))
        fits = self.fits(values)
        if fits and values is not None:
            for run, members in zip(self._runs, self._members, strict=True):
                run.put([(start, values[i]) for i, start in members])
        times.spent(REDUCE, self._nbytes)
        words = comm.agree(self.serial if fits else -1)
        times.spent(WAIT)
        if not fits or any(word != self.serial for word in words):
            return None
        for run in self._runs:
            run.run(weights)
        times.spent(REDUCE, self._nbytes)
        comm.barrier()
        times.spent(WAIT)
        return self._views


def views_of(plan: FlatLayout, row: np.ndarray) -> list[np.ndarray]:
    """Return the values that lie in a row."""
    views = []
    for i, (dtype, shape) in enumerate(plan.kinds):
        end = plan.offsets[i] + nbytes_of(plan.kinds[i])
        views.append(row[plan.offsets[i] : end].view(dtype).reshape(shape))
    return views


class _SmallBuffer(FlatBuffer):
    """A buffer for few values; see `small`."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        # numpy takes a third of the time for one number if it is told that it is one.
        self._places = [
            (i, view.dtype, view.shape, view, ... if view.ndim else ())
            for i, view in enumerate(self._views)
        ]

    def _prepare(
        self, comm: SharedMemoryComm, plan: FlatLayout, rows: np.ndarray
    ) -> np.ndarray:
        slots = rows.reshape(2, comm.size, -1)
        small = SmallAllReduce(comm, plan.runs, slots, self.serial)
        self._run = small.run
        return small.values

    def reduce(
        self,
        comm: SharedMemoryComm,
        values: Sequence[np.ndarray] | None,
        weights: Sequence[float],
        times: Times,
    ) -> list[np.ndarray] | None:
        """Combine the ranks' values; return None, on all, if any rank's do not fit."""
        fits = True
        if values is not None:
            for i, dtype, shape, view, where in self._places:
                value = values[i]
                if value.dtype is not dtype and value.dtype != dtype:
                    fits = False
                elif value.shape == shape:
                    view[where] = value
                else:
                    fits = False
        all_fit = self._run(weights, fits)
        times.spent(WAIT, self._nbytes)  # meeting takes longer than combining
        return self._views if all_fit else None


def agree_on_kinds(
    comm: SharedMemoryComm,
    values: Sequence[np.ndarray] | None,
    ops: Sequence[ReduceOp],
    names: Sequence[object] | None = None,
) -> list[Kind]:
    """Return dtypes and shapes of values, which must be those of the other ranks.

    `names` is what the values are called in messages.

    Raises
    ------
    ShapeMismatch
        On every rank, if the shapes of any value differ.
    """
    mine = None
    if values is not None:
        mine = [(value.dtype.str, value.shape) for value in values]
    kinds = comm.exchange(mine)
    given = [kind for kind in kinds if kind is not None]
    for i, first in enumerate(given[0]):
        if any(kind[i] != first for kind in given):
            shapes = [None if kind is None else kind[i][1] for kind in kinds]
            dtypes = [None if kind is None else kind[i][0] for kind in kinds]
            if names is not None:
                of_ranks = [kind[i][1] for kind in given]
                check_shapes(f"reduce by {ops[i]!r}", names[i], of_ranks)
            differ = ""
            if len({dtype for dtype in dtypes if dtype is not None}) > 1:
                differ = f", their dtypes {dtypes}"
            raise ShapeMismatch(
                f"cannot all-reduce by {ops[i]!r}: the ranks' shapes are"
                f" {shapes}{differ}"
            )
    return given[0]
