"""All-reduces of few values, as fast as ranks can meet: one compiled call, one meeting.

Where the values are few, dividing the work costs more than the work. So every rank
combines all values itself, and no second meeting is needed for the results. Two sets of
slots take turns: a rank that is ahead writes to one while a slower rank reads the
other, and it cannot be further ahead than that.

To hand an array to compiled code takes longer than to add two numbers. So what is the
same in every call is written down once, in a *block* of words: numbers, and addresses
of arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby

import numpy as np

from ..compiled import array_at, compile_kernel
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

_WORDS, _SLOTS, _SHARES = range(3)
"""What a block begins with: the addresses of the control segment's words, of the slots
and of the ranks' shares."""

_WORD, _LENGTH, _SIZE, _SET, _STRIDE, _START, _RUNS, _PLACES = range(3, 11)
"""What follows: the word of this all-reduce; how many words of control there are, and
ranks; elements from one set of slots to the other, from one rank's slot to the next,
and from a slot's beginning to the values; the number of runs. From _PLACES on
`shm.find_places`, then the ops of the runs, then where in the values each stops."""


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
        self._comm = comm  # holds the arrays that blocks only have the addresses of
        first, *others = [
            self._arguments(dtype, list(some))
            for dtype, some in groupby(plan.runs, lambda run: run.dtype)
        ]
        self._meet = partial(_all_reduce, *first)
        self._finish = partial(_finish, *first)
        self._others = [partial(_combine_all, *other) for other in others]

    def _arguments(self, dtype: str, runs: list[ValueRun]) -> tuple[np.ndarray, ...]:
        """Return what the kernels take for the values of a dtype."""
        comm, start, end = self._comm, runs[0].start, runs[-1].end
        arrays = comm.words, comm.places, comm.shares, self._slots
        block = block_of(*arrays, runs, self.serial)
        values = self._values[start:end].view(dtype)
        return block, np.empty(values.size, accumulator("sum", values.dtype)), values

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
            comm.fractions(weights)  # written to where the blocks say that they are
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


def block_of(
    words: np.ndarray,
    places: np.ndarray,
    shares: np.ndarray,
    slots: np.ndarray,
    runs: Sequence[ValueRun],
    word: int,
) -> np.ndarray:
    """Return the block of runs of one dtype, which holds none of the other arrays."""
    itemsize, start = np.dtype(runs[0].dtype).itemsize, runs[0].start
    addresses = [array.ctypes.data for array in (words, slots, shares)]
    strides = [nbytes // itemsize for nbytes in (*slots.strides[:2], start)]
    ops = [CODES[run.op] for run in runs]
    stops = [(run.end - start) // itemsize for run in runs]
    counts = word, len(words), len(shares)
    numbers = [*addresses, *counts, *strides, len(runs), *places, *ops, *stops]
    return np.array(numbers, np.int64)


@compile_kernel
def _all_reduce(block, wide, values):
    """Meet the others with values; return what `meet` does, and _MISFIT added to it."""
    words, places = _words_of(block), _places_of(block)
    number = next_number(words, places)
    slots = _slots_of(block, values, number)
    mine = places[RANK] * block[_STRIDE] + block[_START]
    copy_block(slots[mine : mine + values.size], values)
    # Before `meet`, which publishes it: whoever has met this rank sees slots and word.
    words[places[OWN] + WORD - BARRIER + number % 2] = block[_WORD]
    state = meet(words, places, number)
    return state if state == WAIT else state + _finish(block, wide, values)


@compile_kernel
def _finish(block, wide, values):
    """Combine the values of ranks that have come; return _MISFIT if some are others."""
    words, places = _words_of(block), _places_of(block)
    to_word = WORD - BARRIER + words[places[OWN]] % 2
    for k in range(FIRST, places.size):
        # All ranks see the same words, so all come to the same answer without asking.
        if words[places[k] + to_word] != block[_WORD]:
            return _MISFIT
    _combine_all(block, wide, values)
    return 0


@compile_kernel
def _combine_all(block, wide, values):
    """Combine the values of one dtype of ranks that have come."""
    size, runs = block[_SIZE], block[_RUNS]
    number = _words_of(block)[block[_PLACES + OWN]]
    slots = _slots_of(block, values, number)
    shares = array_at(block[_SHARES], np.float64, size)
    ops = block[_PLACES + FIRST + size :]
    begin = 0
    for k in range(runs):
        end = ops[runs + k]
        total, room = values[begin:end], wide[: end - begin]
        first = block[_START] + begin
        combine_block(
            ops[k], total, room, slots, block[_STRIDE], first, -1, slots, 0, shares
        )
        begin = end


@compile_kernel
def _words_of(block):
    return array_at(block[_WORDS], np.int64, block[_LENGTH])


@compile_kernel
def _places_of(block):
    return block[_PLACES : _PLACES + FIRST + block[_SIZE]]


@compile_kernel
def _slots_of(block, values, number):
    """Return the slots of all ranks in the set of a meeting."""
    length = block[_SET] + block[_SIZE] * block[_STRIDE]
    slots = array_at(block[_SLOTS], values.dtype, length)
    return slots[number % 2 * block[_SET] :]


def warm(dtype: np.dtype) -> None:
    """Have the kernels for a dtype compiled."""
    run = ValueRun(dtype.str, "sum", 0, dtype.itemsize)
    words, places = np.zeros(16, np.int64), np.array([BARRIER, 0, 0, BARRIER])
    slots, one = np.zeros((2, 1, dtype.itemsize), np.uint8), np.ones(1)
    block = block_of(words, places, one, slots, [run], 0)
    given = block, np.ones(1, accumulator("sum", dtype)), np.ones(1, dtype)
    _all_reduce(*given)
    _finish(*given)
    _combine_all(*given)
