"""Waiting, and the signals that come meanwhile."""

from __future__ import annotations

import ctypes
import signal
import threading
import time
import types

import pytest

from synk.memory.segment import Segment
from synk.workers import semaphore as semaphore_module
from synk.workers import waiting
from synk.workers.semaphore import ROOM, Semaphore


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

    thread = threading.Thread(target=take)

    def wait():
        thread.start()
        waiting.wait(words, 0, 1, semaphore, 0, look_about)

    try:
        with pytest.raises(KeyboardInterrupt):
            wait()
    finally:
        thread.join()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == own_signals


@pytest.mark.parametrize("spins", [0, 1000])
def test_a_wait_ends_with_the_word_and_consumes_its_post(own_signals, spins):
    words, semaphore = new_wait()
    for number in range(1, 5):
        words[3] = number
        semaphore.post()
        waiting.wait(words, 3, number, semaphore, spins, unexpected)
        assert semaphore.value == 0


def unexpected():
    pytest.fail("it had been posted")


def test_posts_that_come_late_do_not_pile_up():
    """A waiter that watches sees the word before it is posted, each time."""
    words, semaphore = new_wait()
    for number in range(1, 1000):
        words[0] = number
        waiting.wait(words, 0, number, semaphore, 10, unexpected)
        semaphore.post()
        assert semaphore.value == 1


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


def test_ticks_grow_where_there_is_time():
    slept: list[float] = []

    def sleep(seconds: float) -> bool:
        slept.append(seconds)
        return False

    def look_about() -> None:
        words[0] = int(len(slept) == 6)

    words = [0]
    semaphore = types.SimpleNamespace(sleep=sleep, take=lambda: None)
    waiting.wait(words, 0, 1, semaphore, 0, look_about, longest=0.3)
    assert slept == [waiting.TICK * n for n in (1, 2, 4, 8)] + [0.3, 0.3]
    words, slept[:] = [0], []
    waiting.wait(words, 0, 1, semaphore, 0, look_about)
    assert slept == [waiting.TICK] * 6


def test_a_sleeper_is_woken_by_another_thread_that_can_run():
    words, semaphore = new_wait()

    def post():
        time.sleep(0.05)
        words[0] = 1
        semaphore.post()

    thread = threading.Thread(target=post)
    thread.start()
    start = time.monotonic()
    assert semaphore.sleep(20)
    assert time.monotonic() - start < 10
    thread.join()


@pytest.mark.parametrize("library", ["new", "old"])
def test_a_sleep_lasts_a_time_by_the_clock_that_there_is(monkeypatch, library):
    libc = ctypes.CDLL(None)
    if library == "old":
        libc = types.SimpleNamespace(sem_timedwait=libc.sem_timedwait)
    clock, sleep = semaphore_module._sleeper(libc)
    assert (clock == time.CLOCK_REALTIME) == (library == "old")
    monkeypatch.setattr(semaphore_module, "_CLOCK", clock)
    monkeypatch.setattr(semaphore_module, "_sleep", sleep)
    _, semaphore = new_wait()
    start = time.monotonic()
    assert not semaphore.sleep(0.02)
    assert 0.019 < time.monotonic() - start < 5
    semaphore.post()
    assert semaphore.sleep(20)
    assert time.monotonic() - start < 10


class Raised(Exception):
    pass


def test_a_handler_that_raises_ends_a_sleep_at_once(own_signals):
    def handler(*_):
        raise Raised

    _, semaphore = new_wait()
    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        start = time.monotonic()
        with pytest.raises(Raised):
            semaphore.sleep(20)
        assert time.monotonic() - start < 10
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_handler_that_returns_leaves_the_waiter_waiting(own_signals):
    words, semaphore = new_wait()
    calls = []

    def handler(*_):
        calls.append(words[0])
        if len(calls) == 5:
            words[0] = 1

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
        waiting.wait(words, 0, 1, semaphore, 0, lambda: None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(calls) >= 5
