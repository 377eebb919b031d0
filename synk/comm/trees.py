"""All-reduces of values that are combined in a tree over blocks of rows.

A rank gives a stack of subtrees, and not one value (see `reduce_tree`). Every rank
reads all stacks and computes the same result, so one meeting is enough. Two sets of
slots take turns, as in `small`. If there are many values, each rank combines a part of
them, and all read the results after another meeting.
"""

from __future__ import annotations

import numpy as np

from ..compiled import compile_kernel
from ..reduce_tree import BlockCut, Columns, Subtrees, fold
from ..times.timing import REDUCE, WAIT, Times
from ..workers.control import BARRIER, WORD
from ..workers.recorder import MEETING
from .buffers import KeyedBuffers, SharedRows, make_shared_rows
from .shm import FIRST, MET, OWN, RANK, SharedMemoryComm, meet, next_number

DIVIDED = 1 << 12
"""If a subtree has at least so many values, each rank combines a part of them."""


class TreeBuffers(KeyedBuffers["TreeBuffer"]):
    """One rank's buffers for subtrees, by key."""

    def reduce(
        self, key: tuple, given: Subtrees | None, cut: BlockCut, times: Times
    ) -> list[np.ndarray]:
        """Combine the ranks' subtrees; a rank without rows gives None."""
        buffer = self._buffers.get(key)
        results = None
        if buffer is None:
            self._comm.agree(-1)  # other ranks may have one
        else:
            results = buffer.reduce(self._comm, given, cut, times)
        if results is None:  # on all ranks, as each has read the words of all
            self._drop(key)
            buffer = self._buffers[key] = self._make(given, cut)
            results = buffer.reduce(self._comm, given, cut, times)
            assert results is not None, "the ranks' buffers differ"
        return results

    def _make(self, given: Subtrees | None, cut: BlockCut) -> TreeBuffer:
        """Make a buffer for other columns or more subtrees, together with all ranks."""
        comm = self._comm
        # A rank without rows has no columns, and takes another rank's.
        of_ranks = comm.exchange(None if given is None else given.columns.each)
        kinds = next(each for each in of_ranks if each is not None)
        columns = Columns([column[1:] for column in kinds])
        # The last row is for the results.
        shape = 2 * comm.size * cut.most + 1, columns.width
        shared = make_shared_rows(comm, self._attachments, shape, np.float64)
        slots = shared.rows[:-1].reshape(2, comm.size, cut.most, columns.width)
        return TreeBuffer(columns, slots, shared, comm.rank)


class TreeBuffer:
    """One rank's end of a buffer in which ranks combine their subtrees.

    `slots`, of shape (2, ranks, subtrees, columns.width), are views of the rows of
    `shared` but the last, which is for the results.
    """

    def __init__(
        self, columns: Columns, slots: np.ndarray, shared: SharedRows, rank: int
    ) -> None:
        self.shared = shared
        self._columns, self._slots = columns, slots
        self._known = columns  # the rank's last columns that were equal to these
        self._none = np.empty((0, columns.width))
        self._is_divided = columns.width >= DIVIDED
        self._total = shared.rows[-1] if self._is_divided else np.empty(columns.width)
        start, stop = 0, columns.width
        if self._is_divided:
            ranks = slots.shape[1]
            start, stop = stop * rank // ranks, stop * (rank + 1) // ranks
        # The part that this rank combines, and which of it is averaged and multiplied.
        averages, products = (
            np.clip(ranges - start, 0, stop - start)
            for ranges in (columns.averages, columns.products)
        )
        self._part = slots[..., start:stop], averages, products, self._total[start:stop]

    def reduce(
        self,
        comm: SharedMemoryComm,
        given: Subtrees | None,
        cut: BlockCut,
        times: Times,
    ) -> list[np.ndarray] | None:
        """Combine subtrees; return None, on all ranks, if any rank's do not fit."""
        entries = self._none if given is None else given.entries
        columns = self._known if given is None else given.columns
        if columns is not self._known and columns.each == self._columns.each:
            self._known = columns
        if columns is not self._known or cut.most > self._slots.shape[2]:
            comm.agree(-1)  # the same meeting as the others', which see the word
            times.spent(WAIT)
            return None
        words, places, word = comm.words, comm.places, self.shared.serial
        comm.phase[0] = MEETING
        state = _give(words, places, word, self._slots, entries)
        if state != MET:
            comm.arrive(state, comm.number)
        times.spent(WAIT)
        part, averages, products, total = self._part
        how = cut.counts, cut.levels, cut.start, averages, products, cut.rows
        if not _combined(words, places, word, part, *how, total):
            return None
        if self._is_divided:
            times.spent(REDUCE, entries.nbytes)
            comm.barrier()
            times.spent(WAIT)
        results = self._columns.values(self._total)
        times.spent(REDUCE, entries.nbytes)
        return results


@compile_kernel
def _give(words, places, word, slots, entries):
    """Copy this rank's subtrees to its slot, and meet the others; return the state."""
    number = next_number(words, places)
    mine = slots[number % 2, places[RANK]]
    for k in range(entries.shape[0]):
        for i in range(entries.shape[1]):
            mine[k, i] = entries[k, i]
    # Before `meet`: a rank that has met this one sees its slot and its word.
    words[places[OWN] + WORD - BARRIER + number % 2] = word
    return meet(words, places, number)


@compile_kernel
def _combined(
    words,
    places,
    word,
    slots,
    counts,
    levels,
    start,
    averages,
    products,
    rows,
    total,
):
    """Combine subtrees when all ranks have come; return False if some do not fit."""
    turn = words[places[OWN]] % 2
    to_word = WORD - BARRIER + turn
    for k in range(FIRST, places.size):
        # All ranks read the same words, so all return the same.
        if words[places[k] + to_word] != word:
            return False
    entries = np.empty((levels.size, total.size))
    at = 0
    for rank in range(counts.size):
        for k in range(counts[rank]):
            for i in range(total.size):
                entries[at, i] = slots[turn, rank, k, i]
            at += 1
    fold(entries, levels, start, averages, products, rows)
    for i in range(total.size):
        total[i] = entries[0, i]
    return True
