"""All-reduces of few values, as fast as ranks can meet: one compiled call, one meeting.

Where the values are few, dividing the work costs more than the work. So every rank
combines all values itself, and no second meeting is needed for the results. Two sets of
slots take turns: a rank that is ahead writes to one while a slower rank reads the
other, and it cannot be further ahead than that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..compiled import compile_kernel
from ..reduce_ops import ReduceOp, accumulator
from ..workers.control import BARRIER, WORD
from .kernels import CODES, combine_block, copy_block, is_direct
from .shm import SharedMemoryComm
from .sync import FIRST, MET, OWN, RANK, WAIT, WAKE, meet

LIMIT = 2048
"""Bytes of values up to which this is faster than dividing the work."""

_MISFIT = 4
assert max(WAIT, MET, WAKE) < _MISFIT  # it is added to these


def is_small(op: ReduceOp, dtype: np.dtype, nbytes: int) -> bool:
    """Tell whether values are to be reduced in this way."""
    return 0 < nbytes <= LIMIT and dtype != np.bool_ and is_direct(op, dtype)


class SmallAllReduce:
    """An all-reduce of few values, of one dtype and by one op.

    Parameters
    ----------
    comm : SharedMemoryComm
    op : str
        One of `REDUCE_OPS`.
    slots : numpy.ndarray, shape (2, size, count)
        Contiguous, in shared memory.
    word : int
        Not negative, and the same on all ranks that mean the same all-reduce.
    """

    def __init__(
        self, comm: SharedMemoryComm, op: ReduceOp, slots: np.ndarray, word: int
    ) -> None:
        self._comm = comm
        self._word = word
        self.values = np.zeros(slots.shape[2], slots.dtype)
        """What this rank gives, and then the result."""
        self._fixed = (
            CODES[op],
            slots.reshape(-1),
            np.empty(slots.shape[2], accumulator("sum", slots.dtype)),
        )

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
        number = comm.next_meeting()
        word = self._word if takes_part else -1
        fractions = comm.fractions(weights)
        values = self.values
        words, places = comm.words, comm.places
        while True:
            state = _all_reduce(
                words, places, number, word, *self._fixed, fractions, values
            )
            if state == MET:
                return True
            # WAIT: asleep until all have come; then the kernel is called again for the
            # same meeting, and finds everybody there.
            comm.come(state % _MISFIT, number)
            if state % _MISFIT != WAIT:
                return state < _MISFIT


@compile_kernel
def _all_reduce(words, places, number, word, op, slots, wide, shares, values):
    size, count = shares.size, values.size
    base = number % 2 * size * count
    mine = base + places[RANK] * count
    copy_block(slots[mine : mine + count], values)
    to_word = WORD - BARRIER + number % 2
    # Before `meet`, which publishes it: whoever has met this rank sees slots and word.
    words[places[OWN] + to_word] = word
    state = meet(words, places, number)
    if state == WAIT:
        return state
    for k in range(FIRST, places.size):
        # All ranks see the same words, so all come to the same answer without asking.
        if word < 0 or words[places[k] + to_word] != word:
            return state + _MISFIT
    slots = slots[base : base + size * count]
    combine_block(op, values, wide, slots, count, 0, -1, slots, 0, shares)
    return state


def warm(op: ReduceOp, dtype: np.dtype) -> None:
    """Have the kernel for a dtype compiled."""
    one, words = np.ones(1, dtype), np.zeros(16, np.int64)
    places = np.array([BARRIER, 0, 0, BARRIER])
    wide = np.ones(1, accumulator("sum", dtype))
    fractions = np.ones(1)
    slots = np.ones(2, dtype)
    _all_reduce(words, places, 1, 0, CODES[op], slots, wide, fractions, one)
