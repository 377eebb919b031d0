"""One way to wait, used everywhere: watch for a while, then sleep, always look about.

What is waited for is a word in shared memory; a semaphore only wakes who sleeps, see
`semaphore`. A rank that is still watching sees the word within a microsecond; waking a
sleeper takes fifteen. Watching is only done where every rank has a core of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from .semaphore import Semaphore

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
    """Return when a word has come to a number; until then `look_about` at each tick.

    `look_about` ends the wait by raising, and so does a signal handler: at once, or at
    the end of the tick where another thread of the process took the signal. There must
    be one waiter per semaphore.

    Parameters
    ----------
    words : memoryview of int64
    index : int
        Which of them is waited for. It only grows.
    number : int
    semaphore : Semaphore
        Posted after the word is written.
    spins : int
        Further looks at the word before a sleep: at first, and after a post. There are
        none after a tick in which nothing came: who has long to wait is not to take the
        time of a core from those who compute.
    look_about : callable
    longest : float
        Seconds up to which each tick is twice as long as the one before. The first one
        lasts `TICK`, and by default all do.
    """
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
