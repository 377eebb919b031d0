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
from ..workers.control import BARRIER, WORD
from ..workers.recorder import MEETING
from .flat_layout import Run
from .kernels import CODES, combine_block, copy_block
from .shm import SharedMemoryComm
from .sync import FIRST, MET, OWN, RANK, WAIT, WAKE, meet, next_number

_MISFIT = 4
assert max(WAIT, MET, WAKE) < _MISFIT  # it is added to these

_WORDS, _SLOTS, _SHARES = range(3)
"""What a block begins with: the addresses of the control segment's words, of the slots
and of the ranks' shares."""

_WORD, _LENGTH, _SIZE, _SET, _STRIDE, _START, _RUNS, _PLACES = range(3, 11)
"""What follows: the word of this all-reduce; how many words of control there are, and
ranks; elements from one set of slots to the other, from one rank's slot to the next,
and from a slot's beginning to the values; the number of runs. From _PLACES on
`sync.find_places`, then the ops of the runs, then where in the values each stops."""


class SmallAllReduce:
    """An all-reduce of few values, of any dtypes and ops.

    Parameters
    ----------
    comm : SharedMemoryComm
    runs : sequence of Run
        The values, those of one dtype side by side.
    slots : numpy.ndarray of uint8, shape (2, size, bytes)
        In shared memory; what fits into `SharedMemoryComm.slots` is put there.
    word : int
        Not negative, and the same on all ranks that mean the same all-reduce.

    Attributes
    ----------
    values : numpy.ndarray of uint8, shape (bytes,)
        What this rank gives, and then the result.
    """

    def __init__(
        self,
        comm: SharedMemoryComm,
        runs: Sequence[Run],
        slots: np.ndarray,
        word: int,
    ) -> None:
        self._comm, self._word = comm, word
        self._slots = comm.slots if runs[-1].end <= comm.slots.shape[2] else slots
        self.values = np.zeros(slots.shape[2], np.uint8)
        first, *others = [
            self._arguments(dtype, list(some))
            for dtype, some in groupby(runs, lambda run: run.dtype)
        ]
        self._meet = partial(_all_reduce, *first)
        self._finish = partial(_finish, *first)
        self._others = [partial(_combine_all, *other) for other in others]

    def _arguments(self, dtype: str, runs: list[Run]) -> tuple[np.ndarray, ...]:
        """Return what the kernels take for the values of a dtype."""
        start, end = runs[0].start, runs[-1].end
        comm = self._comm  # holds the arrays that the block only has the addresses of
        arrays = comm.words, comm.places, comm.shares, self._slots
        block = block_of(*arrays, runs, self._word)
        values = self.values[start:end].view(dtype)
        return block, np.empty(values.size, accumulator("sum", values.dtype)), values

    def run(self, weights: Sequence[float], takes_part: bool = True) -> bool:
        """Combine `values` of all ranks, on every rank.

        Parameters
        ----------
        weights : sequence of float
        takes_part : bool
            False from a rank whose values do not fit here.

        Returns
        -------
        bool
            Whether all ranks took part; if not, nothing was done.
        """
        comm = self._comm
        if not takes_part:
            comm.agree(-1)  # a meeting like the others', who see the word
            return False
        if weights != comm.weights:  # they are the same call after call
            comm.fractions(weights)  # written to where the blocks say that they are
        if self._others:  # the first dtype's are given by the kernel that meets
            self._slots[comm.next_number() % 2, comm.rank] = self.values
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
    runs: Sequence[Run],
    word: int,
) -> np.ndarray:
    """Return the block of runs of one dtype, which holds none of the other arrays.

    Parameters
    ----------
    words, places
        Of the ranks' `SharedMemoryComm`.
    shares : numpy.ndarray of float64, shape (size,)
        What each rank's values weigh; see `kernels.Reduction`.
    slots : numpy.ndarray of uint8, shape (2, size, bytes)
    runs : sequence of Run
        Of one dtype.
    word : int
    """
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
    run = Run(dtype.str, "sum", 0, dtype.itemsize)
    words, places = np.zeros(16, np.int64), np.array([BARRIER, 0, 0, BARRIER])
    slots, one = np.zeros((2, 1, dtype.itemsize), np.uint8), np.ones(1)
    block = block_of(words, places, one, slots, [run], 0)
    given = block, np.ones(1, accumulator("sum", dtype)), np.ones(1, dtype)
    _all_reduce(*given)
    _finish(*given)
    _combine_all(*given)
