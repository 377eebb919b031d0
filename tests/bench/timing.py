"""How every peer takes the time of a call."""

from __future__ import annotations

import time
from collections.abc import Callable

Question = Callable[[int], object]


def timed(
    call: Callable[[], object],
    together: Callable[[], object] | None = None,
    done: Callable[[], object] | None = None,
) -> Callable[[int], float]:
    """Return a function that makes so many calls and returns the seconds of one.

    Parameters
    ----------
    call : callable
    together : callable, optional
        A barrier, where several processes begin together.
    done : callable, optional
        Waits for what the last call has left running.
    """

    def measure(number: int) -> float:
        call()  # wakes threads and fills caches after the others' turns
        if done is not None:
            done()
        if together is not None:
            together()
        start = time.perf_counter()
        for _ in range(number):
            call()
        if done is not None:
            done()
        return (time.perf_counter() - start) / number

    return measure
