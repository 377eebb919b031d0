"""Collectives over shared memory: a barrier, small exchanges and the all-reduce.

All ranks run the same calls in the same order, within one command. An all-reduce works
on a *home*: a segment in which every rank has a row of its own for the same variables.
Each rank puts its values into its row, save for the part that no other rank reads,
waits for the others, and then reduces its own part of all the rows::

    row of rank 0   | part 0 | part 1 | part 2 |
    row of rank 1   | part 0 | part 1 | part 2 |     rank r reads and writes part r
    row of rank 2   | part 0 | part 1 | part 2 |     of every row
"""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from ..errors import Aborted, RankTimeout
from ..memory.segment import ALIGNMENT
from ..workers.control import BARRIER, REPLY_ROOM, WORD, Control
from ..workers.waiting import wait
from .kernels import reduce_part
from .ops import shares

LATE = 1 << 16
"""Bytes of a rank's own part from which on `SharedMemoryComm.put` leaves it."""

_CHUNK = (
    1 << 21
)  # bytes: copied, then reduced while they are in a cache; 1 << 18 took longer

_COUNTS = 1 << 24
"""Barriers that one command may have; a barrier's number is command * this + count."""


class SharedMemoryComm:
    """One rank's end of the shared-memory transport.

    Parameters
    ----------
    control : Control
    rank : int
    watch : callable
        Raises when a rank has died; on ranks other than the master it does nothing.
    timeout : float or None
        Seconds that the master waits in a barrier; the others wait for its word.
    """

    def __init__(
        self,
        control: Control,
        rank: int,
        watch: Callable[[], object],
        timeout: float | None,
    ) -> None:
        self.rank, self.size = rank, control.size
        self._control = control
        self._watch = watch
        self._timeout = timeout
        self._number = 0

    def barrier(self) -> None:
        """Return when every rank has come here.

        Raises
        ------
        Aborted
            If a rank failed on its way.
        WorkerDied, RankTimeout
            In the master, if a rank died or did not come in time.
        """
        control = self._control
        words = control.words
        number = self._number = self._next_number()
        if self.rank:
            words[control.rank_word(self.rank, BARRIER)] = number
            control.arrived.release()
            mine = control.released[self.rank]
            while words[control.rank_word(0, BARRIER)] < number:
                wait(mine, control.spins, self._look_about)
            return
        look_about = self._look_about
        if self._timeout is not None:
            look_about = partial(look_about, time.monotonic() + self._timeout)
        # Rank 0 counts as arrived only once all others have: its word releases them.
        words[control.rank_word(0, BARRIER)] = number - 1
        for rank in range(1, self.size):
            while words[control.rank_word(rank, BARRIER)] < number:
                wait(control.arrived, control.spins, look_about)
        words[control.rank_word(0, BARRIER)] = number
        for rank in range(1, self.size):
            control.released[rank].release()

    def _look_about(self, deadline: float | None = None) -> None:
        if self._control.aborted:
            raise Aborted
        self._watch()
        if deadline is not None and time.monotonic() > deadline:
            raise RankTimeout(
                f"not all ranks came to a barrier within {self._timeout} s"
                " (the timeout given to synk.fork)"
            )

    def agree(self, word: int) -> list[int]:
        """Return the words that the ranks gave, after waiting for all of them."""
        control = self._control
        # Two agreements in a row use two words: a fast rank may give its word for the
        # second one while a slow rank still reads those of the first.
        place = WORD + self._next_number() % 2
        control.words[control.rank_word(self.rank, place)] = word
        self.barrier()
        return [
            control.words[control.rank_word(rank, place)] for rank in range(self.size)
        ]

    def _next_number(self) -> int:
        """Return the number of the next barrier, the same on every rank."""
        return max(self._number, self._control.command * _COUNTS) + 1

    def exchange(self, value: Any) -> list:
        """Return the small values that the ranks gave, in their order."""
        room = self._control.replies[self.rank]
        data = pickle.dumps(value)
        if len(data) > REPLY_ROOM:
            raise ValueError(f"exchange of {len(data)} bytes, room for {REPLY_ROOM}")
        room[: len(data)] = data
        self.barrier()
        values = [pickle.loads(room) for room in self._control.replies]
        self.barrier()  # the rooms are free for the next use
        return values

    def put(
        self, buffers: np.ndarray, start: int, values: np.ndarray
    ) -> tuple[int, np.ndarray] | None:
        """Copy values into this rank's row, where others will read them.

        The part that this rank reduces itself nobody else reads. It is left to
        `reduce`, which copies it block by block, on its way through the cache.

        Parameters
        ----------
        buffers : numpy.ndarray, shape (size, elements)
        start : int
            Where in the row the values belong.
        values : numpy.ndarray
            Of the buffers' dtype.

        Returns
        -------
        (int, numpy.ndarray) or None
            What is left: start and values, to be passed to `reduce`.
        """
        row = buffers[self.rank]
        stop = start + values.size
        low, high = (min(max(end, start), stop) for end in self._my_part(buffers))
        if (high - low) * buffers.itemsize < LATE or not values.flags.c_contiguous:
            row[start:stop].reshape(values.shape)[...] = values
            return None
        flat = values.reshape(-1)
        row[start:low] = flat[: low - start]
        row[high:stop] = flat[high - start :]
        return low, flat[low - start : high - start]

    def reduce(
        self,
        op: str,
        buffers: np.ndarray,
        weights: Sequence[float],
        targets: int | None = None,
        span: tuple[int, int] | None = None,
        late: Sequence[tuple[int, np.ndarray]] = (),
    ) -> None:
        """Reduce this rank's part of all rows, in place.

        Every rank's values must lie in its row before (a barrier), and the result is
        whole only when every rank has done its part (another one).

        Parameters
        ----------
        op : str
            One of `REDUCE_OPS`.
        buffers : numpy.ndarray, shape (size, elements)
        weights : sequence of float
            For "avg", the weight of each rank. A rank at 0 is left out of any op,
            unless all are.
        targets : int, optional
            How many rows, from rank 0 on, receive the result; all by default.
        span : (int, int), optional
            The elements to reduce, by default all.
        late : sequence of (int, numpy.ndarray)
            What `put` has left of this rank's values, in ascending order.
        """
        start, stop = self._my_part(buffers)
        if span is not None:
            start, stop = max(start, span[0]), min(stop, span[1])
        fractions = np.array(shares(weights))
        targets = targets or self.size
        if not late:
            reduce_part(op, buffers, fractions, start, stop, targets)
            return
        step = _CHUNK // buffers.itemsize
        pieces = deque(late)
        for low in range(start, stop, step):
            high = min(low + step, stop)
            _copy_late(buffers[self.rank], pieces, low, high)
            reduce_part(op, buffers, fractions, low, high, targets)

    def _my_part(self, buffers: np.ndarray) -> tuple[int, int]:
        """Return this rank's part in elements; parts meet on cache lines."""
        elements = buffers.shape[1]
        unit = max(1, ALIGNMENT // buffers.itemsize)
        lines = -(-elements // unit)
        start = lines * self.rank // self.size * unit
        stop = lines * (self.rank + 1) // self.size * unit
        return start, min(stop, elements)


def _copy_late(
    row: np.ndarray, pieces: deque[tuple[int, np.ndarray]], low: int, high: int
) -> None:
    """Copy what of the pieces belongs between two elements; drop what is done."""
    while pieces and pieces[0][0] < high:
        start, values = pieces.popleft()
        begin, end = max(start, low), min(start + values.size, high)
        if begin < end:
            row[begin:end] = values[begin - start : end - start]
        if start + values.size > high:
            pieces.appendleft((start, values))
            return
