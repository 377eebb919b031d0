"""The clocks of nodes: each has begun at another time, at its own rate.

Node 0 asks each other node what time it is there, several times, and takes the answer
that came back first: it was given between the question and its coming, so that half of
the round trip is the most that the middle can be wrong (Cristian, "Probabilistic clock
synchronization", 1989, as NTP does). That is done twice, and in between clocks are
taken to go evenly.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

ROUND_TRIPS = 32
"""Questions to each node: with other programs on the cores, most answers come late."""


class Sample(NamedTuple):
    """What a clock said when node 0's said something, in seconds."""

    here: float
    there: float
    error: float  # the most by which `here` can be wrong

    @property
    def ahead(self) -> float:
        """How far that clock is ahead of node 0's."""
        return self.there - self.here


def compare(link: Any) -> list[Sample]:
    """Compare the nodes' clocks, after a round in which all have met."""
    # Node 0 returns a sample of each node, itself first; others return none.
    answer = np.zeros(1)
    if link.node:
        for _ in range(ROUND_TRIPS):
            link.receive_from(answer, 0)
            answer[0] = perf_counter()
            link.send_to(answer, 0)
        return []
    now = perf_counter()
    found = [Sample(now, now, 0.0)]
    for node in range(1, link.size):
        samples = []
        for _ in range(ROUND_TRIPS):
            asked = perf_counter()
            link.send_to(answer, node)
            link.receive_from(answer, node)
            half = (perf_counter() - asked) / 2
            samples.append(Sample(asked + half, float(answer[0]), half))
        found.append(min(samples, key=lambda sample: sample.error))
    return found


class Clock:
    """A node's clock, by what it has said when node 0's said something.

    Examples
    --------
    >>> clock = Clock(Sample(1.0, 101.0, 0.0), Sample(3.0, 103.5, 0.0))
    >>> clock.here(101.0), clock.here(102.25), clock.here(103.5)
    (1.0, 2.0, 3.0)
    """

    def __init__(self, begin: Sample, end: Sample) -> None:
        self.begin, self.end = begin, end
        passed = end.there - begin.there
        self._rate = (end.here - begin.here) / passed if passed > 0 else 1.0

    def here(self, there: float) -> float:
        """Return what node 0's clock said when this one said something in between."""
        return self.begin.here + (there - self.begin.there) * self._rate

    @property
    def ahead(self) -> list[float]:
        """How far it is ahead of node 0's, in the beginning and in the end."""
        return [self.begin.ahead, self.end.ahead]

    @property
    def error(self) -> float:
        """The most by which `here` is wrong, of a clock that goes evenly."""
        return max(self.begin.error, self.end.error)


def between(begin: Sequence[Sample], end: Sequence[Sample]) -> list[Clock]:
    """Return the clocks of all nodes, which were compared twice."""
    return [Clock(*pair) for pair in zip(begin, end, strict=True)]
