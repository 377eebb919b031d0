"""Shared memory for shared variables that a collective reduces together.

A list of variables has a row for each rank, in which values lie side by side::

    rank 0   | weights | bias |  ...  |      after a reduction, the variable's value on
    rank 1   | weights | bias |  ...  |      rank r is a view of its place in row r

So a network's gradients are reduced as one array, and a value that still lies in its
place need not be copied before the next reduction. Results usually go to the rows that
values were copied to. But if on some rank a value still lies in its place, it would be
lost if the reduction was stopped halfway. Then the results go to a second *side*, rows
like the first, where the variables lie from then on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from pytensor.compile import SharedVariable

from ..comm.buffers import (
    FlatLayout,
    SharedRows,
    StageBuffer,
    make_shared_rows,
    views_of,
)
from ..comm.divided import DividedAllReduce
from ..comm.flat import FlatBuffer, FlatBuffers
from ..comm.shm import SharedMemoryComm
from ..engines import plain_functions
from ..memory.segment import Attachments
from ..times.timing import UNCOUNTED, Times


class VariableBuffers(FlatBuffers):
    """One rank's buffers for lists of variables; a key begins with their numbers."""

    def _kind_of_buffer(self, layout: FlatLayout) -> tuple[type[StageBuffer], int]:
        return _VariableBuffer, self._comm.size

    def clear(self, key: tuple, variables: Mapping[int, SharedVariable]) -> None:
        """Copy values elsewhere that lie in the buffer, but not in their own place."""
        buffer = self._buffers.get(key)
        if not isinstance(buffer, _VariableBuffer):
            return
        # With ``updates=[(previous, g), (g, new)]`` PyTensor hands g's old array, a
        # place in the buffer, to `previous`: to write the next g there would change
        # both.
        places = dict(zip(key[0], buffer.places, strict=True))
        for number, var in list(variables.items()):
            storage = var.container.storage
            value = storage[0]
            if not isinstance(value, np.ndarray) or value.base is None:
                continue
            place = places.get(number)
            if buffer.has(value) and (place is None or not _lies_at(value, place)):
                storage[0] = value.copy()
                plain_functions.report_replaced([(value, storage[0])])


class _Side:
    """One side: rows of all ranks, views of this rank's row, and its reductions."""

    def __init__(
        self, comm: SharedMemoryComm, layout: FlatLayout, rows: np.ndarray
    ) -> None:
        self.row = rows[comm.rank]
        self.places = views_of(layout, self.row)
        self.runs = [
            rows[:, run.start : run.end].view(run.dtype) for run in layout.runs
        ]
        self.reductions = [
            DividedAllReduce(comm, run.op, values, values)
            for run, values in zip(layout.runs, self.runs, strict=True)
        ]
        # Whether the last results went to the other side; None after an interrupt.
        self._is_apart: bool | None = False

    def reduce(self, weights: Sequence[float], to: _Side) -> None:
        """Reduce this rank's part, to the rows of side `to`, this one or the other."""
        # No reference to `to` is kept: a cycle would keep the memory of both sides.
        is_apart = to is not self
        changes = is_apart != self._is_apart
        # After an interrupt in the loop, all are redirected the next time.
        self._is_apart = None
        for reduction, results in zip(self.reductions, to.runs, strict=True):
            if changes:
                reduction.redirect(results)
            reduction.run(weights)
        self._is_apart = is_apart


class _VariableBuffer(FlatBuffer):
    """The rows of one list of variables, as one rank sees them."""

    def _prepare(
        self, comm: SharedMemoryComm, layout: FlatLayout, rows: np.ndarray
    ) -> np.ndarray:
        self._layout, self._shape = layout, rows.shape
        self._sides = [_Side(comm, layout, rows)]
        self._side = 0
        self._second: SharedRows | None = None
        return self._sides[0].row

    @property
    def places(self) -> list[np.ndarray]:
        """The variables' places in this rank's row of the present side."""
        return self._sides[self._side].places

    def has(self, value: np.ndarray) -> bool:
        """Return whether a value lies in this rank's rows, at least in part."""
        return any(np.may_share_memory(value, side.row) for side in self._sides)

    def reduce(
        self,
        comm: SharedMemoryComm,
        values: Sequence[np.ndarray] | None,
        weights: Sequence[float],
        times: Times = UNCOUNTED,
    ) -> list[np.ndarray] | None:
        """Combine the ranks' values; return None, on all ranks, if any do not fit."""
        assert values is not None
        fits, stays = self.fits(values), False
        side = self._sides[self._side]
        if fits:
            outside = [
                not _lies_at(*pair) for pair in zip(values, side.places, strict=True)
            ]
            stays = not all(outside)
            for reduction, members in zip(side.reductions, self._members, strict=True):
                reduction.put([(at, values[i]) for i, at in members if outside[i]])
        # If an interrupt, or another rank's error, has kept some ranks from changing
        # sides, or from making the second one, the words differ, and all ranks make a
        # new buffer. The lowest bit is whether some value lies in its place.
        state = 4 * self.serial + 2 * len(self._sides) - 2 + self._side
        word = 2 * state if fits else -2
        words = comm.agree(word + stays)
        if word < 0 or any(each // 2 != word // 2 for each in words):
            return None
        to = self._side
        if any(each % 2 for each in words):
            to = 1 - to
            if len(self._sides) == 1:
                # Not in the table of attachments: values may outlive the buffer.
                self._second = make_shared_rows(comm, Attachments(), self._shape)
                self._sides.append(_Side(comm, self._layout, self._second.rows))
        side.reduce(weights, self._sides[to])
        comm.barrier()
        # Last: until all ranks are done, the values are where they were.
        self._side = to
        return self.places


def _lies_at(value: np.ndarray, place: np.ndarray) -> bool:
    """Return whether a value lies in `place`, maybe by another array object."""
    return value is place or (
        value.flags.c_contiguous
        and (value.dtype, value.shape) == (place.dtype, place.shape)
        and value.__array_interface__["data"] == place.__array_interface__["data"]
    )
