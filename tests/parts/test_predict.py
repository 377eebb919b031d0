"""Predicted times of training by a rule, beside what they must be."""

from __future__ import annotations

import numpy as np
import pytest

from synk.rules import (
    ASGD,
    EASGD,
    Costs,
    DiLoCo,
    Downpour,
    Gossip,
    LocalSGD,
    predict,
    simulate,
)
from synk.rules.staleness import may_come

START = np.ones(3)


def halfway(w, rank, k):
    return w - 0.01 * (w - rank)


def size(w):
    return float(np.abs(w).sum())


def told(rule, steps, workers, costs, **options):
    options = {"loss": size, "mode": "FAST_COMPILE", **options}
    return predict(rule, halfway, steps, workers, START, costs, **options)


def speeds(costs, workers):
    """Return what a step of each worker takes: the one draw that is documented."""
    drawn = np.random.default_rng(costs.seed).standard_normal(workers)
    factors = np.exp(costs.spread * drawn)
    return costs.step * factors / factors.mean()


def test_all_that_meet_wait_for_the_slowest():
    costs = Costs(step=2.0, exchange=lambda n: 0.1 * n, spread=0.5, seed=3)
    found = told(LocalSGD(5), 20, 4, costs)
    took = speeds(costs, 4)
    assert took.mean() == pytest.approx(2.0)
    assert found.seconds[-1] == pytest.approx(20 * took.max() + 4 * 0.4)
    waited = (20 * (took.max() - took)).sum()
    assert found.waiting == pytest.approx(waited / (4 * found.seconds[-1]))
    assert (found.steps, found.exchanges, found.staleness) == (80, 4, 0)


def test_who_comes_when_ready_waits_for_nobody():
    costs = Costs(step=1.0, exchange=0.5, busy=0.0, spread=1.0, seed=1)
    found = told(ASGD(2, order="free"), 30, 5, costs)
    assert found.waiting == 0
    # The slowest one is the last.
    assert found.seconds[-1] == pytest.approx(30 * speeds(costs, 5).max() + 15 * 0.5)


@pytest.mark.parametrize("order", ["turns", "free"])
def test_a_centre_that_is_always_busy_sets_the_pace(order):
    costs = Costs(step=0.01, exchange=1.0)
    found = told(EASGD(1, order=order), 50, 8, costs)
    assert found.seconds[-1] == pytest.approx(8 * 50, rel=0.01)
    assert found.waiting == pytest.approx(1 - 1 / 8, rel=0.02)
    # The others come once between two exchanges of one; the first have none before.
    others = [min(k, 7) if k < 8 else 7 for k in range(8 * 50)]
    assert found.staleness == pytest.approx(np.mean(others), rel=0.01)


def test_ranks_that_follow_one_another_through_blocks_wait_less():
    each = [
        told(EASGD(1, order="free"), 50, 8, Costs(0.01, 1.0, busy=busy)).seconds[-1]
        for busy in (1.0, 0.25, 0.0)
    ]
    assert each[0] > 3.5 * each[1] > 3.5 * each[2]
    assert each[2] == pytest.approx(50 * 1.01, rel=0.03)


def test_staleness_is_bounded_by_waiting():
    costs = Costs(step=1.0, spread=1.5, seed=2)
    free = told(Downpour(1, order="free"), 40, 6, costs)
    most = told(Downpour(1, max_staleness=5, order="free"), 40, 6, costs)
    assert free.waiting == 0 < most.waiting
    assert most.staleness <= 5
    assert free.seconds[-1] == pytest.approx(40 * speeds(costs, 6).max())
    assert most.seconds[-1] == pytest.approx(free.seconds[-1])
    assert most.steps == free.steps == 240


def test_an_exchange_that_is_waited_for_later_costs_less():
    costs = Costs(step=1.0, exchange=3.0)
    at_once = told(DiLoCo(8), 32, 4, costs).seconds[-1]
    later = told(DiLoCo(8, delay=4), 36, 4, costs).seconds[-1]
    assert at_once == 32 + 4 * 3
    assert later == 36  # four steps go by while three seconds do


def test_steps_that_vary_have_the_mean_that_was_given():
    costs = Costs(step=0.1, jitter=0.6)
    found = told(ASGD(1, order="free"), 4000, 1, costs)
    error = 0.1 * np.sqrt(np.exp(0.36) - 1) / np.sqrt(4000)
    assert abs(found.seconds[-1] / 4000 - 0.1) < 4 * error


@pytest.mark.parametrize(
    "rule",
    [
        LocalSGD(3),
        EASGD(2, order="turns"),
        DiLoCo(4, fragments=2, delay=1),
        Gossip(0.5, order="turns"),
    ],
    ids=repr,
)
def test_what_is_computed_is_the_simulators(rule):
    found = told(rule, 12, 3, Costs(1.0, 0.1, spread=0.3))
    plain = simulate(rule, halfway, 12, 3, START, mode="FAST_COMPILE")
    assert found.losses[-1] == size(plain.result())
    assert found.exchanges == len(plain.exchanges)
    assert len(found.losses) == 12


def test_training_ends_at_a_loss():
    def towards_0(w, rank, k):
        return 0.5 * w

    costs = Costs(step=1.0)
    found = predict(LocalSGD(1), towards_0, 100, 2, START, costs, loss=size, until=0.1)
    # 3 / 2**5 is the first that is not more.
    assert found.steps == 2 * 5
    assert found.time_to(0.1) == 5.0
    assert found.time_to(0.75) == 2.0
    assert found.time_to(0.01) == np.inf
    assert predict(
        LocalSGD(1), towards_0, 7, 2, START, costs, loss=size, every=3
    ).seconds == [3.0, 6.0, 7.0]


@pytest.mark.parametrize(
    ("n", "most"), [(2, 1), (2, 3), (3, 2), (3, 4), (4, 3), (4, 5), (5, 4)]
)
def test_somebody_may_always_come_and_nobody_comes_too_late(n, most):
    # Of each: how many moves ago it came last; all ways to go on.
    states, known = [(0,) * n], set()
    while states:
        state = states.pop()
        if state in known:
            continue
        known.add(state)
        assert max(state) <= most
        others = [[*state[:i], *state[i + 1 :]] for i in range(n)]
        came = [[10_000 - ago for ago in of_others] for of_others in others]
        able = [i for i in range(n) if may_come(10_000, came[i], most)]
        assert state.index(max(state)) in able
        for i in able:
            after = [ago + 1 for ago in state]
            after[i] = 0
            states.append(tuple(after))
    if most > n - 1:  # the bound is reached, and more than taking turns is allowed
        assert max(map(max, known)) == most
