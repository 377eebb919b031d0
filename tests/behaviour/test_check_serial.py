"""``check="serial"``: what passes, what is reported, and that nothing is changed."""

from __future__ import annotations

import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from reference import PY, assert_same, refused
from world_sizes import one_and_three_ranks

import synk
from synk.call.rounding import MARGIN, TOLERANCES, Rounding, difference
from synk.call.serial import SerialRun
from synk.ranks.session import SESSION

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
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_training_step_agrees_and_is_made_once(ranks, dtype):
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
    single, double = np.float32([1, 1000]), np.array([1.0, 1000])
    for value, near, far, tolerance in (
        (single, 5e-3, 2e-2, 1e-5),
        (double, 5e-7, 2e-6, 1e-9),
    ):
        shift = np.array([1, 0], value.dtype)
        assert (
            difference(value + shift * value.dtype.type(near), value, tolerance) is None
        )
        assert difference(value + shift * value.dtype.type(far), value, tolerance)
    nan = np.array([np.nan, np.inf, 1])
    assert difference(nan, nan, 1e-9) is None
    assert "1 of 3" in difference(np.array([0, np.inf, 1]), nan, 1e-9)
    assert "shape is (2,), and serially ()" in difference(double, single[0], 1e-9)
    assert difference(np.zeros((0, 3)), np.zeros((0, 3)), 1e-9) is None


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
    parallel, serial = f(*data), f.as_theano(*data)
    # There is something to explain.
    assert difference(parallel[1], serial[1], TOLERANCES[dtype])
    assert np.abs(serial[1]).max() < 100 * np.finfo(dtype).eps
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
    # Nearly there, and with an op that does not fit.
    synk.broadcast(w, (w.get_value() * (1 + off)).astype(dtype))
    x, t = f._spec.inputs
    halves = synk.function([x, t], (((x @ w - t) ** 2).mean(), "sum"), mode=PY)
    with pytest.raises(synk.SerialMismatch, match="output 0"):
        halves(*data, check="serial")


def test_rounding_starts_from_the_values_of_variables_before_the_call(two_ranks):
    x, w = pt.vector("x"), pytensor.shared(np.full(3, 0.1), "w")
    f = synk.function([x], (x.sum() * w, None), updates={w: 3 * w}, mode=PY)
    values = np.random.default_rng(0).normal(size=100)
    *_, rounding = SerialRun(f._spec, "f").expect("serial", [values], None, ())
    w.get_value(borrow=True)[:] = 9  # as an update in place does
    assert 0 < rounding.allowed(0, 1e-7) < 2 * MARGIN * 2e-7 * 0.3


def test_rounding_errors_are_those_of_what_was_summed():
    values = np.array([1e6 / 3, -1e6 / 3, 0.1])
    total = Rounding(lambda x: [x.sum()], [values], [values.sum()])
    steep = Rounding(
        lambda x: [np.exp(20 * x)], [values[2:]], [np.exp(20 * values[2:])]
    )
    for unit in (1e-13, 1e-10, 1e-7):
        # A term x changes by up to 2 * unit * x, and exp(x) by x times its value.
        most = 2 * MARGIN * unit * np.abs(values).sum()
        assert most / 20 < total.allowed(0, unit) <= most
        most = 2 * MARGIN * unit * 2 * np.exp(2)
        assert most / 20 < steep.allowed(0, unit) < 1.01 * most


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


def test_errors_of_steps_are_those_of_what_cancels_and_no_more():
    rows, total = cubes_that_cancel()
    values = np.arange(10.0).reshape(5, 2)
    run = SerialRun(synk.function([rows], total, mode=PY)._spec, "f")
    with synk.session(1):
        rounding = run.expect("serial", [values], None, (0,)).rounding
    eps = 2.0**-52
    assert rounding.allowed(0, eps) == 0
    terms = np.sum(np.abs((values - 4.5) / np.sqrt(8.0001)) ** 3)
    assert eps < rounding.allowed_by_steps(0, eps) < 10 * MARGIN * eps * terms


def test_a_mistake_is_reported_where_all_that_goes_into_it_is_whole(two_ranks):
    rows, total = cubes_that_cancel()
    f = synk.function([rows], (total + 1e-12 * rows.sum(), "avg"), mode=PY)
    with pytest.raises(synk.SerialMismatch, match="output 0"):
        f(np.arange(10.0).reshape(5, 2), check="serial")


def test_whole_numbers_integers_and_what_is_not_finite_are_not_rounded_anew():
    exact = [np.array([0.0, 1, -7, 1e5]), np.arange(3), np.array([True]), np.float32(2)]
    result = [sum(a.sum() for a in exact)]
    assert (
        Rounding(lambda *a: [sum(v.sum() for v in a)], exact, result).allowed(0, 1e-7)
        == 0
    )
    edge = np.array([0.5, 1 - 2**-53])
    with np.errstate(invalid="ignore"):
        over = Rounding(lambda x: [np.sqrt(1 - x)], [edge], [np.sqrt(1 - edge)])
        assert 0 < over.allowed(0, 2.0**-52) < 1e-6


# -- what is not compared --------------------------------------------------------------


def test_rank_0s_own_values_and_local_updates_are_not_compared(two_ranks, x):
    w = pytensor.shared(np.zeros(3), "w")
    outputs = [(x.sum(axis=0), None), x.mean()]
    f = synk.function([x], outputs, updates={w: x.sum(axis=0)}, mode=PY, local=True)
    own, _ = f(ROWS, check="serial")
    assert_same(own, ROWS[:12].sum(axis=0), 8)
    assert_same(synk.get_value(1, w), ROWS[12:].sum(axis=0), 8)
    with refused(ValueError, "nothing in .* is meant to equal the serial run"):
        f(ROWS, check="serial", output_subset=[0])


@pytest.mark.filterwarnings("ignore:RandomStream is deprecated")
def test_random_functions_are_refused_and_draw_nothing(two_ranks, x):
    mask = pt.random.RandomStream(3).bernoulli(0.5, size=x.shape)
    rng = mask.owner.inputs[0]
    f = synk.function([x], (x * mask).mean(), mode=PY)
    state = rng.get_value().bit_generator.state
    with refused(ValueError, "random, and each rank draws numbers"):
        f(ROWS, check="serial")
    assert rng.get_value().bit_generator.state == state


def test_sliceable_shared_variables_are_refused(two_ranks):
    s = pytensor.shared(np.ones((4, 2)), "s")
    f = synk.function([], s.sum(), sliceable_shareds=[s], mode=PY)
    with refused(ValueError, "sliceable"):
        f(check="serial")


def test_other_checks_and_wrong_arguments_are_refused(two_ranks, x):
    f = synk.function([x], x.mean(), mode=PY)
    for check in ("parallel", True, 1, ""):
        with refused(ValueError, "check must be None, 'serial' or 'finite', got"):
            f(ROWS, check=check)
    with refused(TypeError, "misses a value for x"):
        f(check="serial")
    with refused(IndexError, "24"):
        f(ROWS, check="serial", batch=24)


def test_a_check_needs_a_session(x):
    f = synk.function([x], x.mean(), mode=PY)
    with pytest.raises(synk.StateError):
        f(ROWS, check="serial")


def test_the_serial_run_has_all_cores_and_changes_no_variable(two_ranks):
    x, w = pt.matrix("x"), pytensor.shared(np.ones(3), "w")
    f = synk.function([x], (x @ w).sum(), updates={w: w * 2}, mode=PY)
    before = SESSION.control.command
    run = SerialRun(f._spec, "f")
    total, new = run.run([ROWS], None, (0,))
    assert SESSION.control.command == before
    assert_same(total, ROWS.sum(), 64)
    np.testing.assert_array_equal(new, np.full(3, 2.0))
    np.testing.assert_array_equal(w.get_value(), np.ones(3))
    assert run.timed is None  # the first run loads code
    run.run([ROWS], 5, (0,))
    assert run.timed.rows == 5
    assert run.timed.cores == len(SESSION.context._confinement._affinity)
    assert run.timed.seconds > 0
