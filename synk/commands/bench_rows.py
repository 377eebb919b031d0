"""A line of the table of ``python -m synk bench``, and how its times are taken."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """One line of the table: two times of one run, and their ratio.

    ``better`` says which way the ratio is good: synk's time over the other's should be
    small ("<"), or a speed-up large (">").
    """

    what: str
    synk: float  # seconds
    beside: str
    other: float  # seconds
    better: str
    target: float | None
    rate: str = ""

    @property
    def ratio(self) -> float:
        """Synk's time over the other, or the speed-up."""
        if self.better == "<":
            return self.synk / self.other
        return self.other / self.synk

    @property
    def reached(self) -> bool | None:
        """Whether the target is met, if there is one."""
        if self.target is None:
            return None
        good = self.ratio <= self.target
        return good if self.better == "<" else self.ratio >= self.target


def interleave(
    functions: Sequence[Callable[[], object]],
    repeats: int,
    number: int = 1,
    pause: float = 0,
) -> list[float]:
    """Return the median seconds of each function, run in turns.

    Turns, because the speed of a machine that others use drifts: what is compared
    must be measured at the same time.

    Parameters
    ----------
    functions : sequence of callable
    repeats : int
        How often each one has its turn.
    number : int
        Calls in one turn; a turn's time is divided by it.
    pause : float
        Seconds before each turn, for what the last one has left running: BLAS threads
        look out for more work for some time after a call.
    """
    times: list[list[float]] = [[] for _ in functions]
    for function in functions:
        function()
    for _ in range(repeats):
        for function, of_function in zip(functions, times, strict=True):
            time.sleep(pause)
            start = time.perf_counter()
            for _ in range(number):
                function()
            of_function.append((time.perf_counter() - start) / number)
    return [statistics.median(of_function) for of_function in times]
