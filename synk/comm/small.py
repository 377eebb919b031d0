"""All-reduces of few values, as fast as ranks can meet: one compiled call, one meeting.

Where the values are few, dividing the work costs more than the work. So every rank
combines all values itself, and no second meeting is needed for the results. Two sets of
slots take turns: a rank that is ahead writes to one while a slower rank reads the
other, and it cannot be further ahead than that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby

import numpy as np

from ..compiled import compile_kernel
from ..reduce_ops import accumulator
from ..workers.control import BARRIER, WORD
from .flat_layout import Run
from .kernels import CODES, combine_block, copy_block
from .shm import SharedMemoryComm
from .sync import FIRST, MET, OWN, RANK, WAIT, WAKE, meet

_MISFIT = 4
assert max(WAIT, MET, WAKE) < _MISFIT  # it is added to these


class SmallAllReduce:
    """An all-reduce of few values, of any dtypes and ops.

    Parameters
    ----------
    comm : SharedMemoryComm
    runs : sequence of Run
        The values, those of one dtype side by side.
    slots : numpy.ndarray of uint8, shape (2, size, bytes)
        Contiguous, in shared memory.
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
        self._comm, self._word, self._slots = comm, word, slots
        self.values = np.zeros(slots.shape[2], np.uint8)
        self._meet, *self._others = [
            self._kernel(first, dtype, list(some))
            for first, (dtype, some) in enumerate(groupby(runs, lambda run: run.dtype))
        ]

    def _kernel(self, number: int, dtype: str, runs: list[Run]) -> Callable:
        """Return what combines the values of a dtype; for the first it meets, too."""
        flat = self._slots.reshape(-1).view(dtype)
        itemsize = flat.itemsize
        start, end = runs[0].start, runs[-1].end
        ops = np.array([CODES[run.op] for run in runs])
        stops = np.array([run.end - start for run in runs]) // itemsize
        return partial(
            _combine_all if number else _all_reduce,
            *(self._comm.words, self._comm.places),
            *(ops, stops, flat, self._slots.shape[2] // itemsize, start // itemsize),
            np.empty((end - start) // itemsize, accumulator("sum", flat.dtype)),
            self.values[start:end].view(dtype),
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
        shares = comm.fractions(weights)
        if self._others:  # the first dtype's are given by the kernel that meets
            self._slots[number % 2, comm.rank] = self.values
        state = self._meet(shares, number, word)
        while state % _MISFIT == WAIT:
            # Asleep until all have come; then the kernel is called again for the same
            # meeting, and finds everybody there.
            comm.come(WAIT, number)
            state = self._meet(shares, number, word)
        if state != MET:
            comm.come(state % _MISFIT, number)
            if state >= _MISFIT:
                return False
        for combine in self._others:
            combine(shares, number)
        return True


@compile_kernel
def _all_reduce(
    words, places, ops, stops, slots, stride, start, wide, values, shares, number, word
):
    mine = (number % 2 * shares.size + places[RANK]) * stride + start
    copy_block(slots[mine : mine + values.size], values)
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
    _combine_all(
        words, places, ops, stops, slots, stride, start, wide, values, shares, number
    )
    return state


@compile_kernel
def _combine_all(
    words, places, ops, stops, slots, stride, start, wide, values, shares, number
):
    slots = slots[number % 2 * shares.size * stride :]
    begin = 0
    for k in range(ops.size):
        end = stops[k]
        total, room = values[begin:end], wide[: end - begin]
        first = start + begin
        combine_block(ops[k], total, room, slots, stride, first, -1, slots, 0, shares)
        begin = end


def warm(dtype: np.dtype) -> None:
    """Have the kernels for a dtype compiled."""
    one, words = np.ones(1, dtype), np.zeros(16, np.int64)
    places = np.array([BARRIER, 0, 0, BARRIER])
    wide = np.ones(1, accumulator("sum", dtype))
    ops, stops = np.array([CODES["sum"]]), np.ones(1, np.int64)
    given = words, places, ops, stops, np.ones(2, dtype), 1, 0, wide, one, np.ones(1), 1
    _all_reduce(*given, 0)
    _combine_all(*given)
