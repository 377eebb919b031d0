"""The ways of going through a part's rows: the fastest is seen on real calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log2
from typing import Literal, TypeAlias

Way: TypeAlias = Literal["whole", "blocks", "loop"]
"""In one go; block by block, from Python; or block by block in one compiled loop."""

TRIALS = 8
"""Calls of each way that are timed, in turns."""

GAIN = 0.95
"""What blocks must take, at most, of the time in one go."""

COMPILING = 1.0
"""Seconds that a loop takes to be compiled, about. It is tried when calls have taken as
long: so it costs about what was computed before, at most."""


@dataclass
class Trial:
    """The times of a part, of so many rows, by the way in which it was run.

    Attributes
    ----------
    blocks : int
        How many are tried.
    can_loop : bool
        Whether there may be a compiled loop. It joins in later.
    seconds : dict of str to list of float
        Of the ways that are tried, or were when one was chosen.
    chosen : str or None
        The way; None while ways are tried.
    """

    blocks: int
    can_loop: bool = False
    seconds: dict[Way, list[float]] = field(
        default_factory=lambda: {"whole": [], "blocks": []}
    )
    chosen: Way | None = None
    calls: int = 0

    @property
    def is_over(self) -> bool:
        """Whether the way is chosen, and no other is to come."""
        return self.chosen is not None and not self.can_loop

    def next(self) -> Way:
        """Return how the next call is run."""
        if self.chosen is not None:
            if not self.can_loop or self.calls < self._loops_from():
                return self.chosen
            self.join_loop()
        return min(self.seconds, key=lambda way: len(self.seconds[way]))

    def join_loop(self) -> None:
        """Try a compiled loop as well.

        Others are timed anew beside it: the machine may be busier than it was.
        """
        self.seconds = {way: [] for way in ("loop", *self.seconds)}
        self.chosen, self.can_loop = None, False

    def _loops_from(self) -> int:
        """Return the number of calls after which a loop is tried.

        It is a power of two: ranks that take about the same time then wait for the
        compiler in the same call, and not one after the other.
        """
        return int(2 ** round(log2(COMPILING / self.least(*self.seconds))))

    def took(self, way: Way, seconds: float) -> None:
        """Take note of a call's time, and choose when there are enough."""
        self.calls += 1
        if self.chosen is not None:
            return
        self.seconds[way].append(seconds)
        if all(len(times) >= TRIALS for times in self.seconds.values()):
            least = {way: min(times) for way, times in self.seconds.items()}
            least["whole"] *= GAIN
            fastest: Way = min(least, key=lambda way: least[way])
            self.chosen = fastest

    def failed(self, way: Way) -> None:
        """Try a way no more."""
        self.seconds.pop(way, None)
        self.chosen = None

    def least(self, *ways: Way) -> float:
        """Return the least time of some ways that were timed, in seconds."""
        return min(min(self.seconds[way]) for way in ways if self.seconds.get(way))
