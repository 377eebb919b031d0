"""How Python code waits for a word in shared memory: watch it, then sleep, and repeat.

A rank that still watches the word sees a change within a microsecond. To wake a sleeper
by its semaphore takes fifteen. Ranks watch only if each has a core of its own. At each
tick of a sleep, `look_about` is called, which raises if a rank has died.

Semaphores are unnamed POSIX ones, of the C library, in shared memory. Each process that
maps the memory can use them, and they go with the memory. A post for which nobody
sleeps takes no system call.
"""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable
from typing import Any

from ..errors import Expired

TICK = 0.02
"""Seconds of a sleep, after which a waiting rank checks that the others are alive."""

IDLE_TICK = 0.32
"""Seconds to which the ticks of a rank without a command grow: each tick takes a core
some 0.15 ms, and rank 0 may be computing with all cores."""

PATIENCE = 1.0
"""Seconds to wait for the report that a rank has died, which would explain an error."""

SPINS = 2_500
"""How often Python looks at a word before it sleeps; some 40 ns each."""

LOOKS = 50_000
"""How often compiled code looks at the words before it sleeps; some 2 ns each."""


def wait(
    words: memoryview,
    index: int,
    number: int,
    semaphore: Semaphore,
    spins: int,
    look_about: Callable[[], object],
    longest: float = 0,
) -> None:
    """Return when ``words[index] >= number``; until then `look_about` at each tick."""
    # The word only grows. Its semaphore is posted after it is written, and no other
    # process waits on it. `look_about` ends the wait by raising, and so does a signal
    # handler: at once, or at the end of the tick if another thread took the signal.
    # Each tick is twice as long as the one before, up to `longest` seconds. Before the
    # first sleep and after a post, the word is read ``spins + 1`` times, after a tick
    # without a post once: a rank that waits long leaves its core to those who compute.
    looks, tick = spins + 1, TICK
    while True:
        for _ in range(looks):
            # Who sees the word also sees all that was written before it: x86-64 keeps
            # stores and loads in order. Other processors may not.
            if words[index] >= number:
                # Takes this word's post or, if that is yet to come, one of before, so
                # no more than one post of each poster is left over. (Posts of
                # `post_again` may be left; each ends a later sleep early.)
                semaphore.take()
                return
        if semaphore.sleep(tick):
            looks = spins + 1
        else:
            look_about()
            looks, tick = 1, max(tick, min(2 * tick, longest))


class Limit:
    """How many seconds the master waits for other ranks; None is for ever."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        # The limit of the present call; None if it has none. The master sets it with
        # every command, so no command has the limit of one before.
        self.of_call: float | None = None

    def deadline(self) -> float:
        """Return the time by `time.monotonic` at which a wait that begins now ends."""
        seconds = self._seconds if self.of_call is None else self.of_call
        return float("inf") if seconds is None else time.monotonic() + seconds

    def check(self, deadline: float, what: str) -> None:
        """Raise `Expired` after `deadline`; the message begins with `what`."""
        if time.monotonic() > deadline:
            seconds, whose = self._seconds, "the timeout given to synk.fork"
            if self.of_call is not None:
                seconds, whose = self.of_call, "the timeout of this call"
            raise Expired(f"{what} within {seconds:g} s ({whose})")


# -- semaphores

ROOM = 128
"""Bytes for a semaphore, of which glibc needs 32. They are two cache lines, which are
often fetched together, so ranks that use different semaphores do not share a line."""


class Semaphore:
    """A semaphore in `ROOM` bytes of shared memory, which this object keeps alive."""

    def __init__(self, memory: memoryview, is_new: bool) -> None:
        place = ctypes.byref((ctypes.c_char * ROOM).from_buffer(memory))
        if is_new and _libc.sem_init(place, 1, 0):
            raise OSError("sem_init: the system has no semaphores for processes")
        # `post` adds a post and wakes a sleeper; `take` removes a post if there is one,
        # and never waits. Not methods, which would add half of the call's time.
        self.post: Callable[[], object] = functools.partial(_libc.sem_post, place)
        self.take: Callable[[], object] = functools.partial(_libc.sem_trywait, place)
        self._place, self.memory = place, memory

    @property
    def value(self) -> int:
        """The number of posts now."""
        value = ctypes.c_int()
        _libc.sem_getvalue(self._place, ctypes.byref(value))
        return value.value

    def sleep(self, seconds: float) -> bool:
        """Remove a post, or sleep until there is one; return whether one came."""
        # The sleep ends without a post after `seconds`, or when this thread takes a
        # signal. Its handler then runs here, and may raise; a post that the interrupted
        # call has removed is lost then.
        until = time.clock_gettime_ns(_CLOCK) + int(1e9 * seconds)
        return _sleep(self._place, ctypes.byref(_Time(*divmod(until, 10**9)))) == 0


class _Time(ctypes.Structure):
    """``struct timespec``."""

    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def _sleeper(libc: Any) -> tuple[int, Callable[[object, object], int]]:
    """Return a clock, and a function that sleeps on a semaphore until a time of it."""
    if hasattr(libc, "sem_clockwait"):
        clock = time.CLOCK_MONOTONIC
        return clock, lambda place, until: libc.sem_clockwait(place, clock, until)
    # Before glibc 2.30. If this clock is set back, a sleep without a post is longer.
    return time.CLOCK_REALTIME, libc.sem_timedwait


# `PyDLL` keeps the GIL during a call, `CDLL` releases it, which takes half as long as a
# call that does not block. During a sleep other threads run.
_libc = ctypes.PyDLL(None)
_CLOCK, _sleep = _sleeper(ctypes.CDLL(None))
