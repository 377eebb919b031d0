"""How ranks wait for each other: semaphores, barriers, locks.

Here ranks are threads of one process, whose memory is shared anyhow.
"""

import ctypes
import signal
import threading
import time
import types

import numpy as np
import pytest

from synk.comm.locks import Locks
from synk.comm.shm import MET, WAIT, WAKE, SharedMemoryComm, meet, must_sleep
from synk.memory.segment import Segment
from synk.rules.centre import may_come
from synk.workers import waiting
from synk.workers.control import COMMAND, Control
from synk.workers.recorder import Records
from synk.workers.waiting import ROOM, Limit, Semaphore
from synk.workers.waiting import _sleeper as sleeper

# -- waits


def new_wait():
    """Return words, of which one is waited for, and a semaphore."""
    memory = Segment(4096).memory()
    return memory[:64].cast("q"), Semaphore(memory[128:][:ROOM], is_new=True)


@pytest.fixture
def own_signals():
    """Let a test leave a mask behind, and see that it does not."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    yield before
    after = signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert after == before


@pytest.mark.parametrize("after", [0, 0.005, 0.03])
def test_a_signal_that_another_thread_takes_leaves_none_held_back(own_signals, after):
    """Its handler raises in the main thread, between any two calls of the wait."""

    def take():
        time.sleep(after)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    words, semaphore = new_wait()
    deadline = time.monotonic() + 10

    def look_about():
        if time.monotonic() > deadline:
            raise TimeoutError("no KeyboardInterrupt")

    def wait():
        thread.start()
        waiting.wait(words, 0, 1, semaphore, 0, look_about)

    thread = threading.Thread(target=take)
    try:
        with pytest.raises(KeyboardInterrupt):
            wait()
    finally:
        thread.join()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == own_signals


def unexpected():
    pytest.fail("it had been posted")


@pytest.mark.parametrize("spins", [0, 1000])
def test_a_wait_ends_with_the_word_and_consumes_its_post(own_signals, spins):
    words, semaphore = new_wait()
    for number in range(1, 5):
        words[3] = number
        semaphore.post()
        waiting.wait(words, 3, number, semaphore, spins, unexpected)
        assert semaphore.value == 0
    for number in range(1, 1000):  # who watches sees the word before it is posted
        words[0] = number
        waiting.wait(words, 0, number, semaphore, 10, unexpected)
        semaphore.post()
        assert semaphore.value == 1  # posts that come late do not pile up


def test_a_post_without_the_word_only_wakes():
    words, semaphore = new_wait()
    looks = []

    def look_about():
        looks.append(semaphore.value)
        words[0] = 1

    for _ in range(5):  # as after five interrupts
        semaphore.post()
    waiting.wait(words, 0, 1, semaphore, 0, look_about)
    assert looks == [0]  # all were consumed before the first whole tick


class Watched:
    """Words that count the looks at them; the word comes after some ticks."""

    def __init__(self) -> None:
        self.looks = self.ticks = 0

    def __getitem__(self, _: int) -> int:
        self.looks += 1
        return int(self.ticks == 5)

    def tick(self) -> None:
        self.ticks += 1


def test_who_waits_long_watches_no_more():
    """Each tick took 0.3 ms of a core otherwise, which rank 0 may be computing with."""
    _, semaphore = new_wait()
    words = Watched()
    waiting.wait(words, 0, 1, semaphore, 1000, words.tick)
    assert words.looks == 1001 + 5
    words.ticks = words.looks = 0
    for _ in range(2):  # somebody says that the word is to come
        semaphore.post()
    waiting.wait(words, 0, 1, semaphore, 1000, words.tick)
    assert words.looks == 3 * 1001 + 5


@pytest.mark.parametrize("library", ["new", "old"])
def test_a_sleep_lasts_a_time_by_the_clock_that_there_is(library):
    libc = ctypes.CDLL(None)
    if library == "old":
        libc = types.SimpleNamespace(sem_timedwait=libc.sem_timedwait)
    clock, sleep = sleeper(libc)
    assert (clock == time.CLOCK_REALTIME) == (library == "old")
    _, semaphore = new_wait()
    place = ctypes.byref((ctypes.c_char * ROOM).from_buffer(semaphore.memory))

    def sleep_for(seconds: float) -> int:
        until = divmod(time.clock_gettime_ns(clock) + int(1e9 * seconds), 10**9)
        return sleep(place, ctypes.byref((ctypes.c_long * 2)(*until)))

    start = time.monotonic()
    assert sleep_for(0.02)
    assert time.monotonic() - start > 0.019
    semaphore.post()
    assert sleep_for(20) == 0


def test_a_handler_that_returns_leaves_the_waiter_waiting(own_signals):
    words, semaphore = new_wait()
    calls = []

    def handler(*_):
        calls.append(words[0])
        words[0] = int(len(calls) >= 5)

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    try:
        waiting.wait(words, 0, 1, semaphore, 0, lambda: None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(calls) >= 5


# -- barriers


def comms_of(size: int, spin: bool) -> list[SharedMemoryComm]:
    """Return the ends of all ranks, to be used by threads of this process."""
    control = Control(size, spin)
    control.words[COMMAND] = 1
    how = lambda: None, Limit(None), Records(1).recorder(0)
    return [SharedMemoryComm(control, rank, *how) for rank in range(size)]


def test_the_last_to_come_learns_of_those_that_sleep():
    comms = comms_of(3, spin=False)
    words, places = comms[0].words, [comm.places for comm in comms]
    number = comms[0].next_meeting()
    assert meet(words, places[0], number) == WAIT
    assert must_sleep(words, places[0], number)
    assert meet(words, places[1], number) == WAIT
    assert meet(words, places[2], number) == WAKE
    assert not must_sleep(words, places[1], number)
    comms = comms_of(2, spin=False)  # of which none sleeps
    words, places = comms[0].words, [comm.places for comm in comms]
    number = comms[0].next_meeting()
    assert meet(words, places[0], number) == WAIT
    assert meet(words, places[1], number) == meet(words, places[0], number) == MET


# -- locks


@pytest.mark.parametrize("looks", [0, 1000])
def test_one_at_a_time_has_a_lock(looks):
    words, inside, most = np.zeros(3, np.int64), [0], [0]

    def work(rank):
        mine = Locks(words, rank, looks, lambda: lambda: None)
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


# -- turns of workers of a training rule


@pytest.mark.parametrize(("n", "most"), [(2, 1), (2, 3), (3, 2), (4, 5), (5, 4)])
def test_somebody_may_always_come_and_nobody_comes_too_late(n, most):
    # Of each: how many moves ago it came last; all ways to go on.
    states, known = [(0,) * n], set()
    while states:
        state = states.pop()
        if state in known:
            continue
        known.add(state)
        assert max(state) <= most
        others = [[*state[:i], *state[i + 1 :]] for i in range(n)]
        came = [[10_000 - ago for ago in of_others] for of_others in others]
        able = [i for i in range(n) if may_come(10_000, came[i], most)]
        assert state.index(max(state)) in able
        for i in able:
            after = [ago + 1 for ago in state]
            after[i] = 0
            states.append(tuple(after))
    if most > n - 1:  # the bound is reached, and more than taking turns is allowed
        assert max(map(max, known)) == most
