"""Parts of training: loops of rules, whose turn it is, a thread that reads ahead."""

from __future__ import annotations

import threading

import numpy as np
import pytensor.tensor as pt
import pytest
from random_alarms import alarms

from synk.rules import EASGD, GEM, DiLoCo, Downpour, LocalSGD, Rule
from synk.rules.graphs import Functions
from synk.rules.loops import Loops
from synk.rules.staleness import may_come
from synk.threads.helper import Helper

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


# -- a thread that does jobs: in order, and wherever an interrupt comes

NAME = "synk-test"


def threads():
    return [thread for thread in threading.enumerate() if thread.name == NAME]


def test_jobs_are_done_one_after_the_other_in_one_thread():
    helper, seen = Helper(NAME), []
    assert not threads()
    for k in range(5):
        helper.begin(lambda k: seen.append(threading.get_ident()) or k * k, k)
        assert helper.wait() == k * k
    assert len(set(seen)) == 1
    assert seen[0] != threading.get_ident()
    helper.begin(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        helper.wait()
    helper.begin(str, 3)
    assert helper.wait() == "3"
    helper.close()
    assert not threads()


def test_close_waits_for_the_job_that_has_begun():
    helper, goes_on, seen = Helper(NAME), threading.Event(), []
    begun = threading.Event()

    def job():
        begun.set()
        assert goes_on.wait(30)
        seen.append(1)

    helper.begin(job)
    assert begun.wait(30)
    threading.Timer(0.05, goes_on.set).start()
    helper.close()
    assert seen == [1]
    Helper(NAME).close()  # that has begun nothing
    assert not threads()


def test_an_interrupt_at_any_point_leaves_no_lock_taken(monkeypatch):
    begun, ended, stops = [], [], 0

    def job(k):
        begun.append(k)
        ended.append(k)
        return k

    def use(helper):
        for k in range(4):
            helper.begin(job, k)
            assert helper.wait() == k

    with alarms(monkeypatch) as interrupted:
        for _ in range(1500):
            helper = Helper(NAME)
            stops += interrupted(400e-6, lambda: use(helper))  # noqa: B023
            helper.close()
            assert begun == ended
            begun.clear(), ended.clear()
    assert stops > 50
    assert not threads()
