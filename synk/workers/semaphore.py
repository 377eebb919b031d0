"""Semaphores that lie in shared memory: POSIX's unnamed ones, by the C library.

Whoever maps the memory can use them, however it came by that, and nothing is left of
them when the memory goes. A post that nobody sleeps for takes no system call.

What does not block is called with the GIL held (``PyDLL``): to release it, or to go
through a method of Python's, takes half as long as the call.
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable
from typing import Any

ROOM = 128
"""Bytes that one takes; 32 do in glibc. Two cache lines, which are often fetched
together, so that ranks that use different ones are not in each other's way."""


class Semaphore:
    """A semaphore in memory that processes share.

    Parameters
    ----------
    memory : memoryview of bytes
        `ROOM` bytes at the start of a cache line.
    is_new : bool
        Whether to make one there, with no posts; or there is one.

    Attributes
    ----------
    memory : memoryview of bytes
        Where it lies, kept mapped by this.
    post : callable
        Adds a post, and wakes a sleeper if there is one. ``post()``
    take : callable
        Removes a post if there is one, and never waits. ``take()``
    """

    def __init__(self, memory: memoryview, is_new: bool) -> None:
        place = ctypes.byref((ctypes.c_char * ROOM).from_buffer(memory))
        if is_new and _libc.sem_init(place, 1, 0):
            raise OSError("sem_init: the system has no semaphores for processes")
        self.post: Callable[[], object] = functools.partial(_libc.sem_post, place)
        self.take: Callable[[], object] = functools.partial(_libc.sem_trywait, place)
        self._place, self.memory = place, memory

    @property
    def value(self) -> int:
        """How many posts there are, now."""
        value = ctypes.c_int()
        _libc.sem_getvalue(self._place, ctypes.byref(value))
        return value.value

    def sleep(self, seconds: float) -> bool:
        """Remove a post, or sleep until there is one; return whether there was one.

        It ends without one after `seconds`, and when this thread takes a signal: its
        handler then runs here, and may raise. What it interrupted may have removed a
        post, which is lost.
        """
        until = time.clock_gettime_ns(_CLOCK) + int(1e9 * seconds)
        return _sleep(self._place, ctypes.byref(_Time(*divmod(until, 10**9)))) == 0


class _Time(ctypes.Structure):
    """``struct timespec``."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def _sleeper(libc: Any) -> tuple[int, Callable[[object, object], int]]:
    """Return a clock, and what sleeps on a semaphore until then by this clock."""
    if hasattr(libc, "sem_clockwait"):
        clock = time.CLOCK_MONOTONIC
        return clock, lambda place, until: libc.sem_clockwait(place, clock, until)
    # Before glibc 2.30. If the clock is set back, a sleep lasts longer: until the post.
    return time.CLOCK_REALTIME, libc.sem_timedwait


_libc = ctypes.PyDLL(None)
_CLOCK, _sleep = _sleeper(ctypes.CDLL(None))  # which lets other threads run meanwhile
