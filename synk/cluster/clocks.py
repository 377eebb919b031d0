"""Comparison of the nodes' clocks, which differ in their zero and their rate.

Node 0 asks each other node for its time, several times, and uses the answer with the
shortest round trip. The answer was given at some time within the round trip, so node 0
takes the middle, with an error of half the round trip at most (Cristian, "Probabilistic
clock synchronization", 1989, as NTP does). This is done twice, and clocks are taken to
have a constant rate in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

ROUND_TRIPS = 32
"""Questions to each node: if other programs use the cores, most answers come late."""


class Sample(NamedTuple):
    """The times of node 0's clock and a node's clock at one moment, in seconds."""

    here: float  # node 0's
    there: float  # the node's
    error: float  # the largest possible error of `here`

    @property
    def ahead(self) -> float:
        """The seconds that the node's clock is ahead of node 0's."""
        return self.there - self.here


def compare(link: Any) -> list[Sample]:
    """Compare the nodes' clocks; all masters call this, right after a round.

    Node 0 returns a sample for each node, itself first; others return none.
    """
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
    """Converts a node's times to node 0's clock, by two samples.

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
        """Return node 0's time for the node's time `there`, between the samples."""
        return self.begin.here + (there - self.begin.there) * self._rate

    @property
    def ahead(self) -> list[float]:
        """The seconds that the node's clock is ahead, at the first and last sample."""
        return [self.begin.ahead, self.end.ahead]

    @property
    def error(self) -> float:
        """The largest error of `here`, if the clock's rate is constant."""
        return max(self.begin.error, self.end.error)


def between(begin: Sequence[Sample], end: Sequence[Sample]) -> list[Clock]:
    """Return the clocks of all nodes, by the results of two comparisons."""
    return [Clock(*pair) for pair in zip(begin, end, strict=True)]
