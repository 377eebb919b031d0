"""``check="serial"``: what passes, what is reported, and that nothing is changed."""

import os

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from on_ranks import one_and_three_ranks, three_ranks
from reference import PY, assert_same

import synk

pytestmark = pytest.mark.usefixtures("scans_in_python")  # what allows for rounding

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


@three_ranks
def test_a_training_step_agrees_and_is_made_once(ranks):
    x, w = pt.fmatrix("x"), pytensor.shared(np.ones(3, "float32"), "w")
    loss = ((x @ w - 1) ** 2).mean()
    rule = synk.updates.adam(loss, [w], learning_rate=0.1)
    f = synk.function([x], loss, updates=rule, mode=PY)
    starts, ends = [var.get_value() for var in rule], []
    for options in ({}, {"check": "serial"}):
        for var, start in zip(rule, starts, strict=True):
            synk.broadcast(var, start)
        for _ in range(3):
            f(ROWS.astype("float32"), **options)
        ends.append([var.get_value() for var in rule])
    for value, right in zip(*ends, strict=True):
        np.testing.assert_array_equal(value, right)


def test_an_op_that_does_not_fit_is_reported_with_both_differences(two_ranks, x):
    f = synk.function([x], [x.mean(), (x.std(), "avg")], name="spread", mode=PY)
    parts = [ROWS[:12], ROWS[12:]]
    right = ROWS.std()
    gap = abs(sum(len(p) * p.std() for p in parts) / 23 - right)
    with pytest.raises(synk.SerialMismatch) as caught:
        f(ROWS, check="serial")
    text = str(caught.value)
    assert isinstance(caught.value, (AssertionError, synk.SynkError))
    difference = f"difference is {gap:.3g}, {gap / right:.3g} of the largest"
    tolerance = "the tolerance is 1e-09 of it"
    for words in ("spread", "output 1", "'avg'", difference, tolerance):
        assert words in text
    assert "output 0" not in text
    assert f(ROWS, check="serial", output_subset=[0])[0] == f(ROWS)[0]


def test_a_gradient_with_local_statistics_is_reported_and_its_update_stays(two_ranks):
    x, w = pt.matrix("x"), pytensor.shared(np.ones(3), "w")
    cost = (x @ w).var()  # each rank takes its own mean
    updates = {w: w - 0.1 * synk.grad(cost, w)}
    with pytest.warns(synk.SplitWarning):
        f = synk.function([x], updates=updates, mode=PY, local=True)
    with pytest.raises(synk.SerialMismatch, match="the new value of w on rank 0"):
        f(ROWS, check="serial")
    centred = [part - part.mean(0) for part in (ROWS[:12], ROWS[12:])]
    step = sum(2 * (part.T @ part).sum(axis=1) for part in centred) / 23
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
    x = pt.vector("x", dtype="float32")  # a double that was computed in single
    f = synk.function([x], (x.exp().sum().astype("float64"), "sum"), mode=PY)
    values = np.random.default_rng(1).normal(size=5000).astype("float32")
    f(values, check="serial")


def test_what_is_not_finite_has_to_be_so_in_the_same_places(two_ranks):
    x = pt.matrix("x")
    f = synk.function([x], [(x[0], "max"), x.sum(axis=1)], mode=PY)
    rows = np.array([[np.nan, np.inf, 1.0], [0, 0, 0]])
    f(rows, check="serial")
    rows[1, 2] = np.inf
    with pytest.raises(synk.SerialMismatch, match="1 of 3 values"):
        f(rows, check="serial")
    g = synk.function([x], (x.sum(axis=1), "max"), mode=PY)
    shapes = r"shape is \(1,\), and serially \(2,"
    with pytest.raises(synk.SerialMismatch, match=shapes):
        g(rows, check="serial")


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
def test_rounding_errors_pass_and_larger_mistakes_are_reported(two_ranks, dtype):
    f, w, data = in_its_minimum(dtype)
    (_, parallel), (_, serial) = f(*data), f.as_theano(*data)
    # There is something to explain.
    assert np.abs(parallel - serial).max() > 1e-3 * np.abs(serial).max()
    assert np.abs(serial).max() < 100 * np.finfo(dtype).eps
    f(*data, check="serial")
    f(*data, check="serial")
    off = 100 * np.finfo(dtype).eps  # in units of the last digit, on one rank
    w.get_value(borrow=True)[...] *= 1 + off  # in place: the other rank is not told
    with pytest.raises(synk.SerialMismatch, match="output 1") as caught:
        f(*data, check="serial")
    assert "rounding errors explain" in str(caught.value)
    # Nearly there, and with an op that does not fit. The errors are those of the values
    # of variables before the call, and not after it.
    synk.broadcast(w, (w.get_value() * (1 + off)).astype(dtype))
    x, t = pt.matrix("x", dtype=dtype), pt.vector("t", dtype=dtype)
    loss, update = ((x @ w - t) ** 2).mean(), {w: (9 * w).astype(dtype)}
    halves = synk.function([x, t], (loss, "sum"), updates=update, mode=PY)
    with pytest.raises(synk.SerialMismatch, match="output 0"):
        halves(*data, check="serial")


def test_what_cancels_passes_where_all_that_goes_into_it_is_whole(two_ranks):
    rows = pt.matrix("rows")
    normalised = (rows - rows.mean(axis=0)) / pt.sqrt(rows.var(axis=0) + 1e-4)
    total = (normalised**3).sum()
    f = synk.function([rows], total, mode=PY)
    wrong = synk.function([rows], (total + 1e-12 * rows.sum(), "avg"), mode=PY)
    for n in (5, 13):
        values = np.arange(2.0 * n).reshape(n, 2)
        f(values, check="serial")
        with pytest.raises(synk.SerialMismatch, match="output 0"):
            wrong(values, check="serial")


def test_rank_0s_own_values_and_local_updates_are_not_compared(two_ranks, x):
    w = pytensor.shared(np.zeros(3), "w")
    outputs = [(x.sum(axis=0), None), x.mean()]
    f = synk.function([x], outputs, updates={w: x.sum(axis=0)}, mode=PY, local=True)
    own, _ = f(ROWS, check="serial")
    assert_same(own, ROWS[:12].sum(axis=0), 8)
    assert_same(synk.get_value(1, w), ROWS[12:].sum(axis=0), 8)
    nothing = "nothing in .* is meant to equal the serial run"
    with pytest.raises(ValueError, match=nothing):
        f(ROWS, check="serial", output_subset=[0])


def test_what_has_no_serial_run_and_wrong_arguments_are_refused(two_ranks, x):
    s = pytensor.shared(np.ones((4, 2)), "s")
    f = synk.function([], s.sum(), sliceable_shareds=[s], mode=PY)
    with pytest.raises(ValueError, match="sliceable"):
        f(check="serial")
    f = synk.function([x], x.mean(), mode=PY)
    for check in ("parallel", True, 1, ""):
        with pytest.raises(ValueError, match="must be None, 'serial' or 'finite', got"):
            f(ROWS, check=check)
    with pytest.raises(TypeError, match="misses a value for x"):
        f(check="serial")
    with pytest.raises(IndexError, match="24"):
        f(ROWS, check="serial", batch=24)


def test_the_serial_run_has_all_cores_and_needs_a_session(x):
    cores = len(os.sched_getaffinity(0))
    f = synk.function([x], x.sum(), mode=PY)
    with pytest.raises(synk.StateError):
        f(ROWS, check="serial")
    with synk.session(2):
        for _ in range(2):
            f(ROWS, check="serial")
        assert f.explain().to_dict()["serial"]["cores"] == cores
