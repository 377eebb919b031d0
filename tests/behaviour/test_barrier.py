"""The barrier holds every rank until all have come."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytensor
import pytest

import synk
from synk.comm.shm import SharedMemoryComm
from synk.comm.sync import MET, WAIT, WAKE, meet, must_sleep
from synk.errors import Aborted
from synk.workers.control import ASLEEP, COMMAND, Control
from synk.workers.limit import Limit
from synk.workers.recorder import Unrecorded


def comms_of(size: int, spin: bool) -> list[SharedMemoryComm]:
    """Return the ends of all ranks, to be used by threads of this process."""
    control = Control(size, spin)
    control.words[COMMAND] = 1
    how = lambda: None, Limit(None), Unrecorded()
    return [SharedMemoryComm(control, rank, *how) for rank in range(size)]


@pytest.mark.parametrize("spin", [False, True])
@pytest.mark.parametrize("last", [0, 1, 2])
def test_no_rank_goes_on_before_all_have_come(last, spin):
    comms = comms_of(3, spin)
    threads = [threading.Thread(target=comm.barrier, daemon=True) for comm in comms]
    early = [thread for rank, thread in enumerate(threads) if rank != last]
    for thread in early:
        thread.start()
    for thread in early:
        thread.join(0.1)
        assert thread.is_alive()
    threads[last].start()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_the_last_to_come_learns_of_those_that_sleep():
    comms = comms_of(3, spin=False)
    words, number = comms[0].words, comms[0].next_meeting()
    assert meet(words, comms[0].places, number) == WAIT
    assert must_sleep(words, comms[0].places, number)
    assert meet(words, comms[1].places, number) == WAIT
    assert meet(words, comms[2].places, number) == WAKE
    assert not must_sleep(words, comms[1].places, number)


def test_a_meeting_without_sleepers_wakes_nobody():
    comms = comms_of(2, spin=False)
    number = comms[0].next_meeting()
    assert meet(comms[0].words, comms[0].places, number) == WAIT
    assert meet(comms[0].words, comms[1].places, number) == MET
    assert meet(comms[0].words, comms[0].places, number) == MET


@pytest.mark.parametrize("rank", range(3))
def test_a_sleeper_is_woken_by_a_post_not_by_its_own_clock(rank):
    comms = comms_of(3, spin=False)
    looks = []
    comms[rank]._watch = lambda: looks.append(1)
    thread = threading.Thread(target=comms[rank].barrier, daemon=True)
    thread.start()
    others = [comm for other, comm in enumerate(comms) if other != rank]
    deadline = time.monotonic() + 10
    while not comms[0]._control.words[comms[0]._control.rank_word(rank, ASLEEP)]:
        assert time.monotonic() < deadline
    released = comms[0]._control.met[rank]
    for comm in others:
        number = comm.next_meeting()
        state = meet(comm.words, comm.places, number)
    assert state == WAKE
    comm.come(state, number)
    thread.join(10)
    assert not thread.is_alive()
    assert released.value == 0


def test_agreements_of_few_ranks_give_every_word_to_every_rank():
    comms = comms_of(3, spin=True)
    seen = [[], [], []]

    def agree(rank):
        for turn in range(200):
            seen[rank].append(comms[rank].agree(10 * turn + rank))

    threads = [threading.Thread(target=agree, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    right = [[10 * turn + rank for rank in range(3)] for turn in range(200)]
    assert seen == [right] * 3


def test_values_of_any_size_are_exchanged():
    comms = comms_of(3, spin=True)
    values = ["", list(range(30_000)), b"x" * 16 * 1024]
    seen = [None] * 3

    def exchange(rank):
        seen[rank] = [comms[rank].exchange(values[rank]) for _ in range(3)]

    threads = [threading.Thread(target=exchange, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert seen == [[values] * 3] * 3


def test_a_reply_over_a_value_that_others_read_still_is_no_value(monkeypatch):
    comms = comms_of(2, spin=False)
    control = comms[0]._control
    barrier, scribbled = comms[0].barrier, threading.Event()

    def interrupted(state, number):
        control.abort()
        control.replies[1][:6] = b"failed"
        scribbled.set()
        raise KeyboardInterrupt

    def exchange():
        # Counted at the last meeting, then interrupted there.
        monkeypatch.setattr(comms[1], "barrier", first_meeting)
        with pytest.raises(KeyboardInterrupt):
            comms[1].exchange("value")

    def first_meeting():
        SharedMemoryComm.barrier(comms[1])
        monkeypatch.setattr(comms[1], "barrier", last_meeting)

    def last_meeting():
        monkeypatch.setattr(comms[1], "come", interrupted)
        SharedMemoryComm.barrier(comms[1])

    def slow():
        barrier()
        assert scribbled.wait(10)

    monkeypatch.setattr(comms[0], "barrier", slow)
    thread = threading.Thread(target=exchange)
    thread.start()
    with pytest.raises(Aborted):
        comms[0].exchange("value")
    thread.join(10)
    assert not thread.is_alive()


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
