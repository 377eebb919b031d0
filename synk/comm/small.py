"""All-reduces of few values, by one compiled call and one meeting.

To divide the work takes longer than the work itself. So every rank combines all values,
and the results need no second meeting. Two sets of slots take turns: a rank that is
ahead writes to one set while a slower rank reads the other. It cannot be further ahead,
as the next meeting needs the slower rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ..compiled import compile_kernel, copy_block
from ..reduce_ops import accumulator
from ..times import timing
from ..times.timing import Times
from ..workers.control import BARRIER, WORD
from ..workers.recorder import MEETING
from .buffers import FlatLayout, SharedRows, StageBuffer, ValueRun, views_of
from .divided import CODES, combine_block
from .shm import (
    FIRST,
    MET,
    OWN,
    RANK,
    WAIT,
    WAKE,
    SharedMemoryComm,
    meet,
    next_number,
)

_MISFIT = 4
assert max(WAIT, MET, WAKE) < _MISFIT  # added to a state if some values do not fit

_SET, _STRIDE, _START, _RUNS, _OPS = range(5)
"""Indices into an array that says how the values of a dtype lie in the slots: elements
from one set of slots to the other, from one rank's slot to the next, and from a slot's
beginning to the values; the number of runs; from _OPS on the ops of all runs, and then
the element at which each run stops."""


class SmallBuffer(StageBuffer):
    """A buffer for few values: two sets of slots, with a slot for each rank."""

    def __init__(
        self, comm: SharedMemoryComm, layout: FlatLayout, shared: SharedRows
    ) -> None:
        super().__init__(comm, layout, shared)
        self._slots = shared.rows.reshape(2, comm.size, -1)
        if layout.runs[-1].end <= comm.slots.shape[2]:
            self._slots = comm.slots  # on the cache line of the meeting's number
        # This rank's values, and after the meeting the results.
        self._values = np.zeros(layout.nbytes, np.uint8)
        self._views = views_of(layout, self._values)
        # ``view[()] = value`` takes a third of the time of ``view[...] = value``.
        self._places = [
            (i, view.dtype, view.shape, view, ... if view.ndim else ())
            for i, view in enumerate(self._views)
        ]
        self._shares = comm.shares
        first, *others = [
            self._arguments(dtype, list(some))
            for dtype, some in groupby(layout.runs, lambda run: run.dtype)
        ]
        where = comm.words, comm.places
        self._meet = partial(_all_reduce, *where, self.serial, *first)
        self._finish = partial(_finish, *where, self.serial, *first)
        self._others = [partial(_combine_all, *where, *other) for other in others]

    def _arguments(self, dtype: str, runs: list[ValueRun]) -> tuple[np.ndarray, ...]:
        """Return the kernels' arguments for the values of a dtype."""
        values = self._values[runs[0].start : runs[-1].end].view(dtype)
        wide = np.empty(values.size, accumulator("sum", values.dtype))
        return *flat_slots(self._slots, runs), self._shares, wide, values

    def reduce(
        self,
        comm: SharedMemoryComm,
        values: Sequence[np.ndarray] | None,
        weights: Sequence[float],
        times: Times,
    ) -> list[np.ndarray] | None:
        """Combine the ranks' values; return None, on all ranks, if any do not fit."""
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
        if fits:
            fits = self._combine(comm, weights)
        else:
            comm.agree(-1)  # the same meeting as the others', which see the word
        times.spent(timing.WAIT, self._nbytes)  # most of the time is the meeting's
        return self._views if fits else None

    def _combine(self, comm: SharedMemoryComm, weights: Sequence[float]) -> bool:
        """Combine the values of all ranks; return whether all fit."""
        if weights != comm.weights:  # mostly the same in every call
            comm.fractions(weights)  # in place, in the array that the kernels have
        if self._others:  # values of the first dtype are copied by `_meet`
            self._slots[comm.next_number() % 2, comm.rank] = self._values
        comm.phase[0] = MEETING
        state = self._meet()
        if state != MET:
            comm.arrive(state % _MISFIT, comm.number)
            if state == WAIT:  # all have come by now
                state = self._finish()
            if state >= _MISFIT:
                return False
        for combine in self._others:
            combine()
        return True


def flat_slots(
    slots: np.ndarray, runs: Sequence[ValueRun]
) -> tuple[np.ndarray, np.ndarray]:
    """Return two sets of slots as one flat array, and its layout (see `_SET`)."""
    dtype, start = np.dtype(runs[0].dtype), runs[0].start
    last = (np.array(slots.shape[:2]) - 1) @ slots.strides[:2]
    flat = as_strided(slots, (int(last) + slots.shape[2],), (1,)).view(dtype)
    steps = [nbytes // dtype.itemsize for nbytes in (*slots.strides[:2], start)]
    ops = [CODES[run.op] for run in runs]
    stops = [(run.end - start) // dtype.itemsize for run in runs]
    return flat, np.array([*steps, len(runs), *ops, *stops], np.int64)


@compile_kernel
def _all_reduce(words, places, word, slots, layout, shares, wide, values):
    """Copy values to this rank's slot, meet, and combine, unless the state is WAIT."""
    number = next_number(words, places)
    mine = number % 2 * layout[_SET] + places[RANK] * layout[_STRIDE] + layout[_START]
    copy_block(slots[mine : mine + values.size], values)
    # Before `meet`: a rank that has met this one sees its slot and its word.
    words[places[OWN] + WORD - BARRIER + number % 2] = word
    state = meet(words, places, number)
    if state == WAIT:
        return state
    return state + _finish(words, places, word, slots, layout, shares, wide, values)


@compile_kernel
def _finish(words, places, word, slots, layout, shares, wide, values):
    """Combine values when all ranks have come; return _MISFIT if some do not fit."""
    to_word = WORD - BARRIER + words[places[OWN]] % 2
    for k in range(FIRST, places.size):
        # All ranks read the same words, so all return the same.
        if words[places[k] + to_word] != word:
            return _MISFIT
    _combine_all(words, places, slots, layout, shares, wide, values)
    return 0


@compile_kernel
def _combine_all(words, places, slots, layout, shares, wide, values):
    """Combine the values of one dtype, when all ranks have come."""
    of_set = slots[words[places[OWN]] % 2 * layout[_SET] :]
    runs, ops, begin = layout[_RUNS], layout[_OPS:], 0
    for k in range(runs):
        end = ops[runs + k]
        total, room = values[begin:end], wide[: end - begin]
        stride, first = layout[_STRIDE], layout[_START] + begin
        combine_block(ops[k], total, room, of_set, stride, first, -1, of_set, 0, shares)
        begin = end


def warm(dtype: np.dtype) -> None:
    """Compile the kernels for a dtype."""
    run = ValueRun(dtype.str, "sum", 0, dtype.itemsize)
    words, places = np.zeros(16, np.int64), np.array([BARRIER, 0, 0, BARRIER])
    given = flat_slots(np.zeros((2, 1, dtype.itemsize), np.uint8), [run])
    made = np.ones(1), np.ones(1, accumulator("sum", dtype)), np.ones(1, dtype)
    _all_reduce(words, places, 0, *given, *made)
    _finish(words, places, 0, *given, *made)
    _combine_all(words, places, *given, *made)
