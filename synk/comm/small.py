"""All-reduces of few values, as fast as ranks can meet: one compiled call, one meeting.

Where the values are few, dividing the work costs more than the work. So every rank
combines all values itself, and no second meeting is needed for the results. Two sets of
slots take turns: a rank that is ahead writes to one while a slower rank reads the
other, and it cannot be further ahead than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby

import numpy as np
from numpy.lib.stride_tricks import as_strided

from ..compiled import compile_kernel
from ..reduce_ops import accumulator
from ..times import timing
from ..times.timing import Times
from ..workers.control import BARRIER, WORD
from ..workers.recorder import MEETING
from .buffers import FlatLayout, SharedRows, StageBuffer, ValueRun, views_of
from .divided import CODES, combine_block, copy_block
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
assert max(WAIT, MET, WAKE) < _MISFIT  # it is added to these

_SET, _STRIDE, _START, _RUNS, _OPS = range(5)
"""How the values of a dtype lie in the slots: elements from one set of slots to the
other, from one rank's slot to the next, and from a slot's beginning to the values; the
number of runs. From _OPS on their ops, and then where in the values each stops."""


class SmallBuffer(StageBuffer):
    """A buffer for few values: two sets of slots, of one for each rank."""

    def __init__(
        self, comm: SharedMemoryComm, plan: FlatLayout, shared: SharedRows
    ) -> None:
        super().__init__(comm, plan, shared)
        self._slots = shared.rows.reshape(2, comm.size, -1)
        if plan.runs[-1].end <= comm.slots.shape[2]:
            self._slots = comm.slots  # beside the word that tells of a meeting
        # What this rank gives, and then the result.
        self._values = np.zeros(plan.nbytes, np.uint8)
        self._views = views_of(plan, self._values)
        # numpy takes a third of the time for one number if it is told that it is one.
        self._places = [
            (i, view.dtype, view.shape, view, ... if view.ndim else ())
            for i, view in enumerate(self._views)
        ]
        self._shares = comm.shares
        first, *others = [
            self._arguments(dtype, list(some))
            for dtype, some in groupby(plan.runs, lambda run: run.dtype)
        ]
        where = comm.words, comm.places
        self._meet = partial(_all_reduce, *where, self.serial, *first)
        self._finish = partial(_finish, *where, self.serial, *first)
        self._others = [partial(_combine_all, *where, *other) for other in others]

    def _arguments(self, dtype: str, runs: list[ValueRun]) -> tuple[np.ndarray, ...]:
        """Return what the kernels take for the values of a dtype."""
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
        if fits:
            fits = self._combine(comm, weights)
        else:
            comm.agree(-1)  # a meeting like the others', who see the word
        times.spent(timing.WAIT, self._nbytes)  # meeting takes longer than combining
        return self._views if fits else None

    def _combine(self, comm: SharedMemoryComm, weights: Sequence[float]) -> bool:
        """Combine the values of all ranks; tell whether those of all fit."""
        if weights != comm.weights:  # they are the same call after call
            comm.fractions(weights)  # in place, where the kernels have them
        if self._others:  # the first dtype's are given by the kernel that meets
            self._slots[comm.next_number() % 2, comm.rank] = self._values
        comm.phase[0] = MEETING
        state = self._meet()
        if state != MET:
            comm.come(state % _MISFIT, comm.number)
            if state == WAIT:  # all have come since
                state = self._finish()
            if state >= _MISFIT:
                return False
        for combine in self._others:
            combine()
        return True


def flat_slots(
    slots: np.ndarray, runs: Sequence[ValueRun]
) -> tuple[np.ndarray, np.ndarray]:
    """Return two sets of slots as elements one after the other, and where runs lie."""
    dtype, start = np.dtype(runs[0].dtype), runs[0].start
    last = (np.array(slots.shape[:2]) - 1) @ slots.strides[:2]
    flat = as_strided(slots, (int(last) + slots.shape[2],), (1,)).view(dtype)
    steps = [nbytes // dtype.itemsize for nbytes in (*slots.strides[:2], start)]
    ops = [CODES[run.op] for run in runs]
    stops = [(run.end - start) // dtype.itemsize for run in runs]
    return flat, np.array([*steps, len(runs), *ops, *stops], np.int64)


@compile_kernel
def _all_reduce(words, places, word, slots, layout, shares, wide, values):
    """Meet the others with values; return what `meet` does, and _MISFIT added to it."""
    number = next_number(words, places)
    mine = number % 2 * layout[_SET] + places[RANK] * layout[_STRIDE] + layout[_START]
    copy_block(slots[mine : mine + values.size], values)
    # Before `meet`, which publishes it: whoever has met this rank sees slots and word.
    words[places[OWN] + WORD - BARRIER + number % 2] = word
    state = meet(words, places, number)
    if state == WAIT:
        return state
    return state + _finish(words, places, word, slots, layout, shares, wide, values)


@compile_kernel
def _finish(words, places, word, slots, layout, shares, wide, values):
    """Combine the values of ranks that have come; return _MISFIT if some are others."""
    to_word = WORD - BARRIER + words[places[OWN]] % 2
    for k in range(FIRST, places.size):
        # All ranks see the same words, so all come to the same answer without asking.
        if words[places[k] + to_word] != word:
            return _MISFIT
    _combine_all(words, places, slots, layout, shares, wide, values)
    return 0


@compile_kernel
def _combine_all(words, places, slots, layout, shares, wide, values):
    """Combine the values of one dtype of ranks that have come."""
    of_set = slots[words[places[OWN]] % 2 * layout[_SET] :]
    runs, ops, begin = layout[_RUNS], layout[_OPS:], 0
    for k in range(runs):
        end = ops[runs + k]
        total, room = values[begin:end], wide[: end - begin]
        stride, first = layout[_STRIDE], layout[_START] + begin
        combine_block(ops[k], total, room, of_set, stride, first, -1, of_set, 0, shares)
        begin = end


def warm(dtype: np.dtype) -> None:
    """Have the kernels for a dtype compiled."""
    run = ValueRun(dtype.str, "sum", 0, dtype.itemsize)
    words, places = np.zeros(16, np.int64), np.array([BARRIER, 0, 0, BARRIER])
    given = flat_slots(np.zeros((2, 1, dtype.itemsize), np.uint8), [run])
    made = np.ones(1), np.ones(1, accumulator("sum", dtype)), np.ones(1, dtype)
    _all_reduce(words, places, 0, *given, *made)
    _finish(words, places, 0, *given, *made)
    _combine_all(words, places, *given, *made)
