"""One way to wait, used everywhere: watch for a while, then sleep, always look about.

A semaphore post that nobody sleeps for takes no system call, and a rank that is still
watching sees it within a microsecond; waking a sleeper takes fifteen. Watching is only
done where every rank has a core of its own.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import posix_ipc

TICK = 0.02
"""Seconds asleep between two looks at whether the others are alive."""

PATIENCE = 1.0
"""Seconds to wait for the news that explains an error: that a rank has died."""

SPINS = 2_000
"""Looks at a semaphore before sleeping, some 50 ns each."""

LOOKS = 50_000
"""Looks of compiled code at the ranks' words before sleeping, some 2 ns each."""


def make_semaphore() -> posix_ipc.Semaphore:
    """Return a semaphore at 0 that has no name; children inherit it by fork."""
    name = f"/synk-{os.getpid()}-{time.monotonic_ns()}"
    try:
        return posix_ipc.Semaphore(name, posix_ipc.O_CREX, mode=0o600)
    finally:  # after an interrupt too
        try:
            posix_ipc.unlink_semaphore(name)
        except posix_ipc.ExistentialError:
            pass  # it was not made


def wait(
    semaphore: posix_ipc.Semaphore, spins: int, look_about: Callable[[], object]
) -> None:
    """Return after a post of `semaphore`; call `look_about` every `TICK` until then.

    `look_about` ends the wait by raising. There must be one waiter per semaphore.
    """
    for _ in range(spins):
        # The one waiter is here, so nobody else takes the post between the two lines.
        if semaphore.value:
            semaphore.acquire()
            return
    while True:
        try:
            # posix_ipc swallows what a signal handler raises while it waits,
            # KeyboardInterrupt excepted: a SIGTERM handler that calls ``sys.exit()``
            # would do nothing. Held back, a signal comes at the end of the tick, and
            # its handler raises in our own code.
            with_signals_held_back(semaphore.acquire, TICK)
            return
        except (posix_ipc.BusyError, posix_ipc.SignalError):
            look_about()


def with_signals_held_back(function: Callable[..., object], *args: Any) -> None:
    """Call a function with all signals held back in this thread.

    Another thread of the process may take one (one of OpenBLAS's), and its handler runs
    in the main thread all the same, between any two calls. So the mask is set back by a
    `finally` whose first call does it, with arguments that were made before. A context
    manager would not do: Python looks for handlers as it enters `__exit__`.
    """
    before = ctypes.byref(_SignalMask())
    _set_mask(_SIG_SETMASK, None, before)
    try:
        _set_mask(_SIG_SETMASK, _ALL_SIGNALS, None)
        function(*args)
    finally:
        _set_mask(_SIG_SETMASK, before, None)


# Not signal.pthread_sigmask, which runs handlers itself, and builds sets of enumeration
# members: 8 to 120 us, not 1.
_SignalMask = ctypes.c_byte * 128
_ALL_SIGNALS = ctypes.byref(_SignalMask(*[-1] * 128))
_SIG_SETMASK = int(signal.SIG_SETMASK)
_set_mask = ctypes.PyDLL(None).pthread_sigmask
