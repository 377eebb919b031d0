"""One way to wait, used everywhere: watch for a while, then sleep, always look about.

What is waited for is a word in shared memory; a semaphore only wakes who sleeps. A rank
that is still watching sees the word within a microsecond; waking a sleeper takes
fifteen. Watching is only done where every rank has a core of its own.

Semaphores are POSIX's unnamed ones, by the C library, and lie in shared memory. Whoever
maps that can use them, however it came by it, and nothing is left of them when the
memory goes. A post that nobody sleeps for takes no system call.
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable
from typing import Any

from ..errors import Expired

TICK = 0.02
"""Seconds asleep between two looks at whether the others are alive."""

IDLE_TICK = 0.32
"""Seconds that the ticks of a rank without a command grow to: each takes some 0.15 ms
of a core, and rank 0 may be computing with all of them."""

PATIENCE = 1.0
"""Seconds to wait for the news that explains an error: that a rank has died."""

SPINS = 2_500
"""Looks at a word before sleeping, some 40 ns each."""

LOOKS = 50_000
"""Looks of compiled code at the ranks' words before sleeping, some 2 ns each."""


def wait(
    words: memoryview,
    index: int,
    number: int,
    semaphore: Semaphore,
    spins: int,
    look_about: Callable[[], object],
    longest: float = 0,
) -> None:
    """Return when a word has come to a number; until then `look_about` at each tick."""
    # The word only grows, and its semaphore, on which nobody else waits, is posted
    # after it is written. `look_about` ends the wait by raising, and so does a signal
    # handler: at once, or at the end of the tick where another thread took the signal.
    # Each tick is twice as long as the one before, up to so many seconds (`longest`).
    # There are further looks at first and after a post, and none after a tick in which
    # nothing came: who has long to wait is not to take a core from those who compute.
    looks, tick = spins + 1, TICK
    while True:
        for _ in range(looks):
            # What was written before the word is seen after it: x86-64 keeps stores and
            # loads in order. Other processors may not.
            if words[index] >= number:
                # The post of the word, or, if that is yet to come, the one before: no
                # more than one of each poster is ever left over. (Those of
                # `post_again` may be; each makes a later sleep end too early.)
                semaphore.take()
                return
        if semaphore.sleep(tick):
            looks = spins + 1
        else:
            look_about()
            looks, tick = 1, max(tick, min(2 * tick, longest))


class Limit:
    """Seconds that the other ranks may keep the master waiting; None is for ever."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        # What the present command says. The master sets it with every command, so that
        # none has another's, whatever has ended that one.
        self.of_call: float | None = None

    def deadline(self) -> float:
        """Return when a wait that begins now has taken too long."""
        seconds = self._seconds if self.of_call is None else self.of_call
        return float("inf") if seconds is None else time.monotonic() + seconds

    def check(self, deadline: float, what: str) -> None:
        """Raise `Expired` if a deadline is over; `what` says what did not happen."""
        if time.monotonic() > deadline:
            seconds, whose = self._seconds, "the timeout given to synk.fork"
            if self.of_call is not None:
                seconds, whose = self.of_call, "the timeout of this call"
            raise Expired(f"{what} within {seconds:g} s ({whose})")


# -- semaphores

ROOM = 128
"""Bytes that one takes; 32 do in glibc. Two cache lines, which are often fetched
together, so that ranks that use different ones are not in each other's way."""


class Semaphore:
    """A semaphore in `ROOM` bytes of memory that processes share, and this keeps."""

    def __init__(self, memory: memoryview, is_new: bool) -> None:
        place = ctypes.byref((ctypes.c_char * ROOM).from_buffer(memory))
        if is_new and _libc.sem_init(place, 1, 0):
            raise OSError("sem_init: the system has no semaphores for processes")
        # To add a post, which wakes a sleeper, and to remove one if there is one, which
        # never waits. A method of Python's would take half as long as the call.
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
        """Remove a post, or sleep until there is one; return whether there was one."""
        # It ends without one after `seconds`, and when this thread takes a signal: its
        # handler then runs here, and may raise. What it interrupted may have removed a
        # post, which is lost.
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


# What does not block is called with the GIL held: to release it takes half as long as
# the call. A sleep lets other threads run meanwhile.
_libc = ctypes.PyDLL(None)
_CLOCK, _sleep = _sleeper(ctypes.CDLL(None))
