"""Parts of training rules: loops, beside their graphs, and whose turn it may be."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
import pytest

from synk.rules import EASGD, GEM, DiLoCo, Downpour, LocalSGD, Rule
from synk.rules.graphs import Functions
from synk.rules.loops import Loops
from synk.rules.staleness import may_come

RULES = [
    (LocalSGD(2), "float64"),
    (EASGD(1), "float32"),
    (GEM(1, 0.5), "float64"),
    (DiLoCo(3, delay=1), "float32"),
    (Downpour(1, "adamax", learning_rate=0.1), "float64"),
    (Downpour(1, "adadelta", learning_rate=0.1), "float64"),
]
"""Those with all the operations that there are: others have some of these."""


def states(functions, seed, dtype):
    random = np.random.default_rng(seed)
    found = []
    for state in functions.start(random.normal(size=1001).astype(dtype)):
        found.append(
            {
                name: (
                    random.uniform(0.1, 2, value.shape).astype(value.dtype)
                    if value.ndim
                    else np.asarray(value + 3)
                )
                for name, value in state.items()
            }
        )
    return found


def copies(state):
    return {name: np.array(value) for name, value in state.items()}


@pytest.mark.parametrize(("rule", "dtype"), RULES, ids=str)
def test_loops_are_the_rules_functions_in_place(rule, dtype):
    functions = Functions(rule, dtype, "FAST_COMPILE")
    loops = Loops(functions)
    worker, centre = states(functions, 0, dtype)
    given = np.random.default_rng(1).normal(size=1001).astype(dtype)

    def same(found, expected):
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-30)
            assert found[name].dtype == value.dtype

    new, moved = functions.exchange(worker, centre, 3, 0.25)
    mine, out = copies(worker), copies(centre)
    loops.exchange(mine, centre, out, 3, 0.25)
    same(mine, worker | new)
    same(out, centre | moved)

    new, sent = functions.give(worker, centre, 3, 0.25)
    mine, found = copies(worker), np.empty_like(given)
    loops.give(mine, centre, found, 3, 0.25)
    same(mine, worker | new)
    same({"given": found}, {"given": sent})

    out = copies(centre)
    loops.move(centre, given, out)
    same(out, centre | functions.move(centre, given))

    mine = copies(worker)
    loops.take(mine, centre)
    same(mine, worker | functions.take(worker, centre))


class Curved(Rule):
    """With an Op that loops do not know, and a state that NumPy has a dtype for."""

    def start(self, w):
        worker, centre = super().start(w)
        return worker | {"half": np.ones_like(w)}, centre

    def give(self, worker, centre, group):
        d = worker["half"] * pt.tanh(worker["w"] - centre["c"])
        return {"w": worker["w"] - d}, d

    def move(self, centre, given):
        return {"c": centre["c"] + given}


def test_a_rule_with_other_ops_and_any_names_is_computed_by_pytensor():
    functions = Functions(Curved(), "float64", "FAST_COMPILE")
    loops = Loops(functions)
    worker, centre = states(functions, 0, "float64")
    new, moved = functions.exchange(worker, centre, 1, 1.0)
    given = worker["half"] * np.tanh(worker["w"] - centre["c"])
    np.testing.assert_allclose(new["w"], worker["w"] - given)
    np.testing.assert_allclose(moved["c"], centre["c"] + given)
    mine, out = copies(worker), copies(centre)
    loops.exchange(mine, centre, out, 1, 1.0)
    np.testing.assert_array_equal(mine["w"], new["w"])
    np.testing.assert_array_equal(out["c"], moved["c"])


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
