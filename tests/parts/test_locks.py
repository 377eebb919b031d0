"""Locks between ranks: here of threads, whose memory is shared anyhow."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from synk.comm.locks import Locks, write


def locks(words, rank, looks=0, look_about=lambda: None):
    return Locks(words, rank, looks, lambda: look_about)


@pytest.mark.parametrize("looks", [0, 1000])
def test_one_at_a_time_has_a_lock(looks):
    words, inside, most = np.zeros(3, np.int64), [0], [0]

    def work(rank):
        mine = locks(words, rank, looks)
        for _ in range(300):
            mine.acquire(1)
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            words[2] += 1
            inside[0] -= 1
            mine.release(1)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [1]
    assert words.tolist() == [0, 0, 1200]


def test_who_waits_looks_about():
    words = np.zeros(2, np.int64)
    locks(words, 0).acquire(0)

    def died():
        raise RuntimeError("rank 0 died")

    with pytest.raises(RuntimeError, match="rank 0 died"):
        locks(words, 1, look_about=died).acquire(0)
    with pytest.raises(RuntimeError, match="rank 0 died"):
        locks(words, 1, look_about=died).wait_for(1, 1)
    assert words.tolist() == [1, 0]


def test_all_of_a_rank_are_given_back_and_no_others():
    words = np.zeros(6, np.int64)
    mine, other = locks(words, 0), locks(words, 1)
    for index in (0, 2, 5):
        mine.acquire(index)
    other.acquire(3)
    mine.release_all(1, 5)
    assert words.tolist() == [1, 0, 0, 2, 0, 1]


def test_a_counter_is_waited_for():
    words, seen = np.zeros(1, np.int64), []

    def wait():
        locks(words, 0).wait_for(0, 3)
        seen.append(int(words[0]))

    thread = threading.Thread(target=wait)
    thread.start()
    for number in (1, 2, 3):
        write(words, 0, number)
    thread.join(60)
    assert seen == [3]
