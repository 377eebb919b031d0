"""Comparing clocks: the least of round trips, its middle, and what is in between."""

from __future__ import annotations

import numpy as np
import pytest

from synk.cluster import clocks
from synk.cluster.clocks import ROUND_TRIPS, Clock, between


class Wire:
    """Plays both ends of a link whose messages take as long as they like.

    Parameters
    ----------
    monkeypatch : pytest.MonkeyPatch
    clocks : list of callable
        What the clocks of nodes 1 and up say at a true time.
    seed : int
    """

    node = 0

    def __init__(self, monkeypatch, others, seed):
        self.size = 1 + len(others)
        self.now, self.trips = 1000.0, []
        self._others, self._random = others, np.random.default_rng(seed)
        monkeypatch.setattr(clocks, "perf_counter", lambda: self.now)

    def send_to(self, array, node):
        self._passes()
        self._said = self._others[node - 1](self.now)

    def receive_from(self, array, node):
        self._passes()
        array[0] = self._said

    def _passes(self):
        """A message may wait for a long time, on one way alone."""
        self.trips.append(1e-6 * (1 + self._random.pareto(0.7)))
        self.now += self.trips[-1]


@pytest.mark.parametrize("seed", range(50))
def test_a_comparison_is_wrong_by_half_of_the_least_round_trip_at_most(
    monkeypatch, seed
):
    truths = [lambda t: t + 7e4, lambda t: t - 900.0]
    wire = Wire(monkeypatch, truths, seed)
    itself, *found = clocks.compare(wire)
    assert (itself.ahead, itself.error) == (0, 0)
    trips = np.array(wire.trips).reshape(2, ROUND_TRIPS, 2).sum(-1)
    rounded = 1e-9
    for sample, truth, of_node in zip(found, truths, trips, strict=True):
        assert sample.error == pytest.approx(of_node.min() / 2, abs=rounded)
        assert abs(sample.ahead - truth(0.0)) <= sample.error + rounded


def test_a_clock_that_goes_faster_is_followed_between_two_comparisons(monkeypatch):
    def truth(t):
        return 1.001 * t + 50.0

    wire = Wire(monkeypatch, [truth], 0)
    begin = clocks.compare(wire)
    wire.now += 100.0
    clock = between(begin, clocks.compare(wire))[1]
    gained = 0.001 * (clock.end.here - clock.begin.here)
    assert clock.ahead[1] - clock.ahead[0] == pytest.approx(gained, abs=3 * clock.error)
    for true in np.linspace(begin[1].here, wire.now, 9):
        assert abs(clock.here(truth(true)) - true) <= clock.error + 1e-9


def test_a_clock_that_was_seen_at_one_time_alone_is_taken_to_go_as_ours_does():
    sample = clocks.Sample(1.0, 5.0, 0.0)
    assert Clock(sample, sample).here(6.0) == 2.0
