"""One way to wait, used everywhere: watch for a while, then sleep, always look about.

A semaphore post that nobody sleeps for takes no system call, and a rank that is still
watching sees it within a microsecond; waking a sleeper takes fifteen. Watching is only
done where every rank has a core of its own.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import posix_ipc

TICK = 0.02
"""Seconds asleep between two looks at whether the others are alive."""

PATIENCE = 1.0
"""Seconds to wait for the news that explains an error: that a rank has died."""

SPINS = 2_000
"""Looks at a semaphore before sleeping, some 50 ns each."""


def make_semaphore() -> posix_ipc.Semaphore:
    """Return a semaphore at 0 that has no name; children inherit it by fork."""
    name = f"/synk-{os.getpid()}-{time.monotonic_ns()}"
    semaphore = posix_ipc.Semaphore(name, posix_ipc.O_CREX, mode=0o600)
    semaphore.unlink()
    return semaphore


def wait(
    semaphore: posix_ipc.Semaphore, spins: int, look_about: Callable[[], object]
) -> None:
    """Return after a post of `semaphore`; call `look_about` every `TICK` until then.

    `look_about` ends the wait by raising. There must be one waiter per semaphore.
    """
    for _ in range(spins):
        if semaphore.value:
            semaphore.acquire()
            return
    while True:
        try:
            semaphore.acquire(TICK)
            return
        except posix_ipc.BusyError:
            look_about()
        except posix_ipc.SignalError:
            # A signal whose handler did not raise KeyboardInterrupt; go on waiting.
            look_about()
