"""Loops of training rules, beside what PyTensor computes of the same graphs."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
import pytest

import synk
from synk.rules import ASGD, EASGD, GEM, DiLoCo, Downpour, LocalSGD, Rule
from synk.rules.graphs import Functions
from synk.rules.loops import Loops

RULES = [
    LocalSGD(2),
    EASGD(1),
    ASGD(1),
    GEM(1, 0.5),
    DiLoCo(3),
    DiLoCo(3, delay=1),
    *[Downpour(1, name, learning_rate=0.1) for name in synk.updates.__all__],
]


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


@pytest.mark.parametrize(
    ("rule", "dtype"),
    [
        pytest.param(rule, dtype, id=f"{dtype}, {rule}")
        for rule in RULES
        for dtype in ("float64", "float32")
        if dtype == "float64" or not isinstance(rule, Downpour)
    ],
)
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
    """With an Op that loops do not know."""

    def give(self, worker, centre, group):
        d = pt.tanh(worker["w"] - centre["c"])
        return {"w": worker["w"] - d}, d

    def move(self, centre, given):
        return {"c": centre["c"] + given}


def test_a_rule_with_other_ops_is_computed_by_pytensor():
    functions = Functions(Curved(), "float64", "FAST_COMPILE")
    loops = Loops(functions)
    worker, centre = states(functions, 0, "float64")
    new, moved = functions.exchange(worker, centre, 1, 1.0)
    mine, out = copies(worker), copies(centre)
    loops.exchange(mine, centre, out, 1, 1.0)
    np.testing.assert_array_equal(mine["w"], new["w"])
    np.testing.assert_array_equal(out["c"], moved["c"])


class Named(Curved):
    """A state of it has a name that NumPy has for a dtype, too."""

    def start(self, w):
        worker, centre = super().start(w)
        return worker | {"half": np.ones_like(w)}, centre

    def give(self, worker, centre, group):
        d = worker["half"] * (worker["w"] - centre["c"])
        return {"w": worker["w"] - d}, d


def test_what_a_rule_keeps_has_any_name():
    functions = Functions(Named(), "float64", "FAST_COMPILE")
    worker, centre = states(functions, 0, "float64")
    new, moved = functions.exchange(worker, centre, 1, 1.0)
    given = worker["half"] * (worker["w"] - centre["c"])
    np.testing.assert_allclose(new["w"], worker["w"] - given)
    np.testing.assert_allclose(moved["c"], centre["c"] + given)
