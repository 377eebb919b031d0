"""``check="serial"``: what passes, what is reported, and that nothing is changed."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from on_ranks import one_and_three_ranks
from reference import PY, assert_same

import synk

ROWS = np.random.default_rng(0).normal(size=(23, 3)) + 0.5


@pytest.fixture
def x():
    return pt.matrix("x")


@one_and_three_ranks
def test_results_that_agree_are_returned_as_without_a_check(ranks, x):
    outputs = [x.mean(), x.sum(axis=1), x.max(), (x > 0.5).sum(), x.sum(axis=0)]
    f = synk.function([x], outputs, mode=PY)
    for options in (
        {},
        {"batch": np.arange(0, 20, 3)},
        {"batch": 1},
        {"batch": 7, "num_slices": 3},
        {"output_subset": [3, 0]},
        {"output_subset": [2, 2]},
    ):
        plain = f(ROWS, **options)
        checked = f(ROWS, check="serial", **options)
        assert type(checked) is type(plain)
        for got, right in zip(checked, plain, strict=True):
            assert_same(got, right)
    one = synk.function([x], x.mean(), name="one", mode=PY)
    assert one(x=synk.data(ROWS), check="serial") == one(ROWS)


@one_and_three_ranks
def test_a_training_step_agrees_and_is_made_once(ranks):
    for dtype in ("float32", "float64"):
        x, w = pt.matrix("x", dtype=dtype), pytensor.shared(np.ones(3, dtype), "w")
        loss = ((x @ w - 1) ** 2).mean()
        rule = synk.updates.adam(loss, [w], learning_rate=0.1)
        f = synk.function([x], loss, updates=rule, mode=PY)
        rows = ROWS.astype(dtype)
        starts = [var.get_value() for var in rule]
        for _ in range(3):
            f(rows)
        right = [var.get_value() for var in rule]
        for var, start in zip(rule, starts, strict=True):
            synk.broadcast(var, start)
        for _ in range(3):
            f(rows, check="serial")
        for var, value in zip(rule, right, strict=True):
            np.testing.assert_array_equal(var.get_value(), value)


def test_an_op_that_does_not_fit_is_reported_with_both_differences(two_ranks, x):
    f = synk.function([x], [x.mean(), (x.std(), "avg")], name="spread", mode=PY)
    parts = [ROWS[:12], ROWS[12:]]
    right = ROWS.std()
    gap = abs(sum(len(p) * p.std() for p in parts) / 23 - right)
    with pytest.raises(synk.SerialMismatch) as caught:
        f(ROWS, check="serial")
    text = str(caught.value)
    assert isinstance(caught.value, (AssertionError, synk.SynkError))
    assert "spread" in text
    assert "output 1" in text
    assert "'avg'" in text
    assert "output 0" not in text
    assert f"difference is {gap:.3g}, {gap / right:.3g} of the largest" in text
    assert "the tolerance is 1e-09 of it" in text
    assert f(ROWS, check="serial", output_subset=[0])[0] == f(ROWS)[0]


def test_a_gradient_with_local_statistics_is_reported_and_its_update_stays(two_ranks):
    x, w = pt.matrix("x"), pytensor.shared(np.ones(3), "w")
    z = x @ w
    cost = ((z - z.mean()) ** 2).mean()  # each rank takes its own mean
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", synk.SplitWarning)
        updates = {w: w - 0.1 * synk.grad(cost, w)}
        f = synk.function([x], updates=updates, mode=PY, local=True)
    with pytest.raises(synk.SerialMismatch, match="the new value of w on rank 0"):
        f(ROWS, check="serial")
    shares = [12 / 23, 11 / 23]
    step = sum(
        share * 2 * ((p - p.mean(0)).T @ (p - p.mean(0))).sum(axis=1) / len(p)
        for share, p in zip(shares, (ROWS[:12], ROWS[12:]), strict=True)
    )
    for rank in range(2):
        np.testing.assert_allclose(synk.get_value(rank, w), 1 - 0.1 * step, 1e-12)


def test_a_rank_with_another_value_of_a_variable_is_named(two_ranks):
    x, w = pt.vector("x"), pytensor.shared(np.zeros(4), "w")
    f = synk.function([x], updates={w: w + synk.ops.all_reduce(x.mean())}, mode=PY)
    rows = np.arange(5.0)
    f(rows, check="serial")
    w.get_value(borrow=True)[3] = 1  # in place: nothing tells the other rank
    with pytest.raises(synk.SerialMismatch) as caught:
        f(rows, check="serial")
    assert "w on rank 1: the largest difference is 1" in str(caught.value)
    assert "rank 0" not in str(caught.value)
    w.set_value(w.get_value())
    f(rows, check="serial")


def test_integers_are_exact_and_floats_have_the_tolerance_of_their_dtype(two_ranks):
    x = pt.lvector("x")
    f = synk.function([x], [(x.sum(), "max"), x.sum()], mode=PY)
    with pytest.raises(synk.SerialMismatch, match="1 of 1 values differ, the first is"):
        f(np.array([1000000000, 1]), check="serial")
    for dtype, near, far in (("float32", 5e-6, 2e-5), ("float64", 5e-10, 2e-9)):
        y, off = pt.vector("y", dtype=dtype), pt.vector("off", dtype=dtype)
        f = synk.function([y, off], ((y + off)[0] * 1, "max"), mode=PY)
        rows = np.ones(2, dtype)  # rank 1's is the largest, and rank 0's the serial one
        f(rows, np.array([0, near], dtype), check="serial")
        with pytest.raises(synk.SerialMismatch, match="the largest difference is"):
            f(rows, np.array([0, far], dtype), check="serial")


def test_what_is_not_finite_has_to_be_so_in_the_same_places(two_ranks):
    x = pt.matrix("x")
    f = synk.function([x], [(x[0], "max"), x.sum(axis=1)], mode=PY)
    rows = np.array([[np.nan, np.inf, 1.0], [0, 0, 0]])
    f(rows, check="serial")
    rows[1, 2] = np.inf
    with pytest.raises(synk.SerialMismatch, match="1 of 3 values"):
        f(rows, check="serial")
    g = synk.function([x], (x.sum(axis=1), "max"), mode=PY)
    with pytest.raises(
        synk.SerialMismatch, match=r"shape is \(1,\), and serially \(2,"
    ):
        g(rows, check="serial")


@one_and_three_ranks
def test_a_double_that_was_computed_in_single_has_the_tolerance_of_single(ranks):
    x = pt.vector("x", dtype="float32")
    f = synk.function([x], (x.exp().sum().astype("float64"), "sum"), mode=PY)
    values = np.random.default_rng(1).normal(size=5000).astype("float32")
    f(values, check="serial")


# -- rounding errors -------------------------------------------------------------------


def in_its_minimum(dtype):
    """Return a function of a loss and its gradient, and data that it fits exactly."""
    random = np.random.default_rng(0)
    rows, best = random.normal(size=(500, 20)), random.normal(size=20)
    rows, best = rows.astype(dtype), best.astype(dtype)
    targets = (rows.astype("float64") @ best).astype(dtype)
    x, t = pt.matrix("x", dtype=dtype), pt.vector("t", dtype=dtype)
    w = pytensor.shared(best, "w")
    loss = ((x @ w - t) ** 2).mean()
    f = synk.function([x, t], [loss, synk.grad(loss, w)], mode=PY)
    return f, w, (rows, targets)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_loss_and_gradient_that_are_rounding_errors_pass(two_ranks, dtype):
    f, w, data = in_its_minimum(dtype)
    (_, parallel), (_, serial) = f(*data), f.as_theano(*data)
    # There is something to explain.
    assert np.abs(parallel - serial).max() > 1e-3 * np.abs(serial).max()
    assert np.abs(serial).max() < 100 * np.finfo(dtype).eps
    f(*data, check="serial")
    before = w.get_value()
    f(*data, check="serial")
    np.testing.assert_array_equal(w.get_value(), before)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_mistakes_larger_than_rounding_errors_are_reported(two_ranks, dtype):
    f, w, data = in_its_minimum(dtype)
    off = 100 * np.finfo(dtype).eps  # in units of the last digit, on one rank
    f(*data)
    w.get_value(borrow=True)[...] *= 1 + off  # in place: the other rank is not told
    with pytest.raises(synk.SerialMismatch) as caught:
        f(*data, check="serial")
    assert "output 1" in str(caught.value)
    assert "rounding errors explain" in str(caught.value)
    # Nearly there, and with an op that does not fit. The errors are those of the values
    # of variables before the call, and not after it.
    synk.broadcast(w, (w.get_value() * (1 + off)).astype(dtype))
    x, t = pt.matrix("x", dtype=dtype), pt.vector("t", dtype=dtype)
    loss, update = ((x @ w - t) ** 2).mean(), {w: (9 * w).astype(dtype)}
    halves = synk.function([x, t], (loss, "sum"), updates=update, mode=PY)
    with pytest.raises(synk.SerialMismatch, match="output 0"):
        halves(*data, check="serial")


def cubes_that_cancel():
    """Return a sum of cubes of a whole column around its mean: 0, but for rounding."""
    rows = pt.matrix("rows")
    normalised = (rows - rows.mean(axis=0)) / pt.sqrt(rows.var(axis=0) + 1e-4)
    return rows, (normalised**3).sum()


@pytest.mark.parametrize("n", [5, 13])
def test_what_cancels_passes_where_all_that_goes_into_it_is_whole(two_ranks, n):
    rows, total = cubes_that_cancel()
    f = synk.function([rows], total, mode=PY)
    f(np.arange(2.0 * n).reshape(n, 2), check="serial")


def test_a_mistake_is_reported_where_all_that_goes_into_it_is_whole(two_ranks):
    rows, total = cubes_that_cancel()
    f = synk.function([rows], (total + 1e-12 * rows.sum(), "avg"), mode=PY)
    with pytest.raises(synk.SerialMismatch, match="output 0"):
        f(np.arange(10.0).reshape(5, 2), check="serial")


# -- what is not compared --------------------------------------------------------------


def test_rank_0s_own_values_and_local_updates_are_not_compared(two_ranks, x):
    w = pytensor.shared(np.zeros(3), "w")
    outputs = [(x.sum(axis=0), None), x.mean()]
    f = synk.function([x], outputs, updates={w: x.sum(axis=0)}, mode=PY, local=True)
    own, _ = f(ROWS, check="serial")
    assert_same(own, ROWS[:12].sum(axis=0), 8)
    assert_same(synk.get_value(1, w), ROWS[12:].sum(axis=0), 8)
    with pytest.raises(
        ValueError, match=r"nothing in .* is meant to equal the serial run"
    ):
        f(ROWS, check="serial", output_subset=[0])


@pytest.mark.filterwarnings("ignore:RandomStream is deprecated")
def test_random_functions_are_refused_and_draw_nothing(two_ranks, x):
    mask = pt.random.RandomStream(3).bernoulli(0.5, size=x.shape)
    rng = mask.owner.inputs[0]
    f = synk.function([x], (x * mask).mean(), mode=PY)
    state = rng.get_value().bit_generator.state
    with pytest.raises(ValueError, match="random, and each rank draws numbers"):
        f(ROWS, check="serial")
    assert rng.get_value().bit_generator.state == state


def test_sliceable_shared_variables_are_refused(two_ranks):
    s = pytensor.shared(np.ones((4, 2)), "s")
    f = synk.function([], s.sum(), sliceable_shareds=[s], mode=PY)
    with pytest.raises(ValueError, match="sliceable"):
        f(check="serial")


def test_other_checks_and_wrong_arguments_are_refused(two_ranks, x):
    f = synk.function([x], x.mean(), mode=PY)
    for check in ("parallel", True, 1, ""):
        with pytest.raises(
            ValueError, match="check must be None, 'serial' or 'finite', got"
        ):
            f(ROWS, check=check)
    with pytest.raises(TypeError, match="misses a value for x"):
        f(check="serial")
    with pytest.raises(IndexError, match="24"):
        f(ROWS, check="serial", batch=24)


def test_a_check_needs_a_session(x):
    f = synk.function([x], x.mean(), mode=PY)
    with pytest.raises(synk.StateError):
        f(ROWS, check="serial")


def test_the_serial_run_has_all_cores_and_is_timed_once_its_code_is_loaded():
    cores = len(os.sched_getaffinity(0))
    x = pt.matrix("x")
    f = synk.function([x], x.sum(), mode=PY)
    with synk.session(2):
        for rows in (23, 5):
            before = f.explain().to_dict()["serial"]
            f(ROWS[:rows], check="serial")
        timed = f.explain().to_dict()["serial"]
    assert before is None
    assert (timed["rows"], timed["cores"]) == (5, cores)
    assert timed["milliseconds"] > 0
