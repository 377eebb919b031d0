"""Waiting, and the signals that come meanwhile."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from synk.workers import waiting


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

    semaphore = waiting.make_semaphore()
    deadline = time.monotonic() + 10

    def look_about():
        if time.monotonic() > deadline:
            raise TimeoutError("no KeyboardInterrupt")

    thread = threading.Thread(target=take)

    def wait():
        thread.start()
        waiting.wait(semaphore, 0, look_about)

    try:
        with pytest.raises(KeyboardInterrupt):
            wait()
    finally:
        thread.join()
        semaphore.close()
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == own_signals


def test_a_wait_ends_with_the_post(own_signals):
    semaphore = waiting.make_semaphore()
    try:
        semaphore.release()
        waiting.wait(semaphore, 0, lambda: pytest.fail("it had been posted"))
        assert semaphore.value == 0
    finally:
        semaphore.close()
