"""The barrier holds every rank until all have come."""

from __future__ import annotations

import threading

import numpy as np
import pytensor
import pytest

import synk
from synk.comm.shm import SharedMemoryComm
from synk.workers.control import BARRIER, COMMAND, Control


class RecordingWords:
    """Words that remember the state after every store."""

    def __init__(self, words):
        self._words = words
        self.states = []

    def __getitem__(self, index):
        return self._words[index]

    def __setitem__(self, index, value):
        self._words[index] = value
        self.states.append(list(self._words))


@pytest.mark.parametrize("last", [0, 1, 2])
def test_rank_0_releases_no_rank_before_all_have_arrived(last):
    control = Control(3, spin=False)
    control.words[COMMAND] = 1
    words = control.words = RecordingWords(control.words)
    comms = [SharedMemoryComm(control, rank, lambda: None, None) for rank in range(3)]
    threads = [threading.Thread(target=comm.barrier, daemon=True) for comm in comms]
    order = [rank for rank in range(3) if rank != last] + [last]
    for rank in order:
        threads[rank].start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    mine = [control.rank_word(rank, BARRIER) for rank in range(3)]
    number = max(state[mine[0]] for state in words.states)
    released = [state for state in words.states if state[mine[0]] == number]
    assert released
    for state in released:
        assert all(state[word] == number for word in mine)


@pytest.mark.parametrize("size", [3, 5])
def test_thousands_of_reductions_see_every_rank(size):
    var = pytensor.shared(np.zeros(3))
    with synk.session(size):
        numbers = np.arange(float(size))
        for turn in range(1500):
            synk.scatter(var, np.repeat(numbers + turn, 3))
            synk.all_reduce(var, "sum")
            expected = numbers.sum() + size * turn
            np.testing.assert_array_equal(var.get_value(), np.full(3, expected))
