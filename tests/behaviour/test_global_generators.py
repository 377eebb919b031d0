"""Ops that draw from np.random or random: no two ranks draw the same."""

from __future__ import annotations

import random

import numpy as np
import pytensor.tensor as pt
import pytest
from processes import DEATHS, PY, acting, die
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

import synk

ROWS = np.zeros((12, 2))


class Noise(Op):
    """Adds to each row a draw from NumPy's global generator, and one from Python's."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        drawn = [(np.random.normal(), random.random()) for _ in inputs[0]]
        outputs[0][0] = inputs[0] + np.reshape(drawn, inputs[0].shape)


def noisy() -> synk.Function:
    x = pt.matrix("x", dtype="float64")
    return synk.function([x], (Noise()(x), "gather"), mode=PY)


@pytest.fixture(autouse=True)
def as_before():
    """Leave the generators of the tests' process as they were."""
    before = np.random.get_bit_generator()
    states = np.random.get_state(), random.getstate()
    yield
    np.random.set_bit_generator(before)
    np.random.set_state(states[0])
    random.setstate(states[1])


def seed(number: int) -> None:
    np.random.seed(number)
    random.seed(number)


def drawn(number: int, n: int) -> np.ndarray:
    """Return what a session of n ranks draws in two calls, after seeding."""
    seed(number)
    with synk.session(n):
        f = noisy()
        return np.concatenate([f(ROWS), f(ROWS)])


@pytest.mark.parametrize("n", [1, 2, 3])
def test_ranks_draw_different_numbers_and_a_script_the_same_again(n):
    first = drawn(3, n)
    assert len(np.unique(first)) == first.size
    np.testing.assert_array_equal(drawn(3, n), first)
    other = drawn(4, n)
    assert len(np.unique([first, other])) == 2 * first.size


def test_rank_0_draws_what_the_script_would(two_ranks):
    seed(5)  # after the fork
    made = noisy()(ROWS)[:6]
    after = np.random.normal(), random.random()
    numpy, python = np.random.RandomState(5), random.Random(5)
    expected = [(numpy.normal(), python.random()) for _ in range(7)]
    np.testing.assert_array_equal(made, expected[:6])
    assert after == expected[6]


def test_a_fork_leaves_the_scripts_generators_as_they_are():
    seed(6)
    before = np.random.get_state(legacy=False)["state"]["key"].copy(), random.getstate()
    with synk.session(3):
        noisy()
    np.testing.assert_array_equal(
        np.random.get_state(legacy=False)["state"]["key"], before[0]
    )
    assert random.getstate() == before[1]


def test_ranks_that_come_back_draw_no_number_again(monkeypatch):
    made = []
    for _ in range(2):
        seed(7)
        with synk.session(2):
            f = noisy()
            drawn = [f(ROWS)[6:]]
            for _ in range(2):
                seed(7)  # so that rank 0 is where it was when they were started
                with pytest.raises(synk.WorkerDied):
                    acting(1, die, next(iter(DEATHS)))(ROWS)
                synk.recover()
                drawn.append(f(ROWS)[6:])
        assert len(np.unique(drawn)) == np.size(drawn)
        made.append(drawn)
    np.testing.assert_array_equal(*made)


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.Philox])
def test_a_bit_generator_that_the_script_has_put_there(kind):
    made = []
    for number in (1, 1, 2):
        np.random.set_bit_generator(kind(number))
        random.seed(number)
        with synk.session(3):
            made.append(noisy()(ROWS))
    np.testing.assert_array_equal(made[0], made[1])
    assert len(np.unique(made[1:])) == 2 * made[0].size
