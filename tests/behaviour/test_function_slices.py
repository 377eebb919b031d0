"""num_slices: the numbers of one call with the memory of a part of it (S1)."""

from __future__ import annotations

import time

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from reference import COMPLEX, KINDS, PY, assert_same, cut, ops_of, reduced, values_of
from world_sizes import one_and_three_ranks

import synk

SLICES = (1, 2, 3, 4, 7)


@one_and_three_ranks
@pytest.mark.parametrize("kind", KINDS)
def test_slices_of_every_op_equal_the_serial_run(ranks, kind):
    for dtype in KINDS[kind]:
        check_slices(ranks, dtype)


def check_slices(ranks, dtype):
    x = pt.matrix("x", dtype=dtype)
    if dtype == "bool":
        pairs = [(x.any(axis=0), "max"), (x.all(axis=0), "min"), (~x, "gather")]
        pairs += [(x.any(axis=0), "sum"), (x.all(axis=0), "prod")]
    else:
        pairs = [
            (pt.sum(x, axis=0, dtype=dtype), "sum"),
            (pt.prod(x, axis=0, dtype=dtype), "prod"),
            (x + x, "gather"),
        ]
        if dtype in COMPLEX:
            pairs.append((x.sum(axis=0) / x.shape[0].astype(dtype), "avg"))
        else:
            pairs.append((x.astype("float64").mean(axis=0), "avg"))
            pairs += [(x.max(axis=0), "max"), (x.min(axis=0), "min")]
    f = synk.function([x], pairs, mode=PY)
    plain = pytensor.function([x], [y for y, _ in pairs], mode=PY)
    for rows in (1, 2 * ranks + 1, 13):
        value = values_of(dtype, (rows, 3), rows)
        expected = plain(value)
        for slices in SLICES:
            results = f(value, num_slices=slices)
            for got, right, (_, op) in zip(results, expected, pairs, strict=True):
                what = f"{op} of {rows} {dtype} rows in {slices} slices"
                scale = float(np.abs(value).max())
                assert_same(got, right, 60, scale, err_msg=what)


def test_an_op_combines_what_the_slices_computed(ranks):
    for dtype in ("float32", "float64", "int8", "int64", "complex64"):
        check_first_rows(ranks, dtype)


def check_first_rows(ranks, dtype):
    x = pt.matrix("x", dtype=dtype)
    ops = ops_of(dtype)
    f = synk.function([x], [(x[0], op) for op in ops], mode=PY)
    value = values_of(dtype, (13, 3), 1)
    for slices in SLICES:
        pieces = [p for part in cut(value, ranks) for p in cut(part, slices) if len(p)]
        scale = float(np.abs(value).max())
        for op, got in zip(ops, f(value, num_slices=slices), strict=True):
            right = reduced(op, [p[0] for p in pieces], [len(p) for p in pieces])
            if op == "avg" and value.dtype.kind in "iu":
                right = right.astype("float64")
            assert_same(got, right, 8, scale, err_msg=f"{op} of {dtype} in {slices}")


@one_and_three_ranks
def test_no_rows_in_slices_give_what_no_rows_give(ranks):
    x = pt.vector("x")
    calls = pytensor.shared(0)
    f = synk.function(
        [x], [(x.sum(), "sum"), (x, "gather")], updates={calls: calls + 1}, mode=PY
    )
    total, rows = f(np.zeros(0), num_slices=4)
    assert total == 0
    assert_same(rows, np.zeros(0))
    for rank in range(ranks):
        assert synk.get_value(rank, calls) == 1


def serial_step(momentum, X, y, w, v):
    """One step of momentum for the mean of squared errors, in numpy."""
    gradient = 2 * X.T @ (X @ w - y) / len(X)
    v = momentum * v - 0.1 * gradient
    return w + v, v


def momentum_function(w, v):
    X, y = pt.matrix("X"), pt.vector("y")
    loss = ((X.dot(w) - y) ** 2).mean()
    new = 0.9 * v - 0.1 * pytensor.grad(loss, w)
    return synk.function([X, y], loss, updates=[(v, new), (w, w + new)], mode=PY)


@pytest.mark.parametrize("slices", SLICES)
def test_training_with_momentum_in_slices_equals_the_serial_run(slices):
    rng = np.random.default_rng(4)
    X, y = rng.normal(size=(7, 3)), rng.normal(size=7)
    w, v = pytensor.shared(np.zeros(3)), pytensor.shared(np.zeros(3))
    f = momentum_function(w, v)
    right_w = right_v = np.zeros(3)
    with synk.session(1):
        for rows in (7, 5, 1, 7, 6):
            loss = f(X, y, batch=rows, num_slices=slices)
            errors = X[:rows] @ right_w - y[:rows]
            assert_same(loss, (errors**2).mean(), 32, 1)
            right_w, right_v = serial_step(0.9, X[:rows], y[:rows], right_w, right_v)
            assert_same(w.get_value(), right_w, 64, 1)
            assert_same(v.get_value(), right_v, 64, 1)


@pytest.mark.parametrize("local", [False, True])
@one_and_three_ranks
def test_gradients_in_shared_variables_in_slices_train_as_the_serial_run(ranks, local):
    """The classical way: gradients to variables, all_reduce, then the update rule."""
    rng = np.random.default_rng(5)
    X, y = rng.normal(size=(2 * ranks + 1, 3)), rng.normal(size=2 * ranks + 1)
    w, v, g = (pytensor.shared(np.zeros(3), name=name) for name in "wvg")
    inputs = pt.matrix("X"), pt.vector("y")
    loss = ((inputs[0].dot(w) - inputs[1]) ** 2).mean()
    updates = {g: pytensor.grad(loss, w)}
    collect = synk.function(inputs, loss, updates=updates, mode=PY, local=local)
    new = 0.9 * v - 0.1 * g
    step = synk.function([], updates=[(v, new), (w, w + new)], mode=PY)
    data = synk.data(X), synk.data(y)
    right_w = right_v = np.zeros(3)
    for slices in SLICES:
        for rows in (len(X), 1, ranks):
            collect(*data, batch=rows, num_slices=slices)
            synk.all_reduce(g)
            step()
            right_w, right_v = serial_step(0.9, X[:rows], y[:rows], right_w, right_v)
            for rank in range(ranks):
                assert_same(synk.get_value(rank, w), right_w, 128, 1)
                assert_same(synk.get_value(rank, v), right_v, 128, 1)


@one_and_three_ranks
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_an_update_is_accumulated_by_its_op(ranks, dtype):
    x = pt.matrix("x", dtype=dtype)
    new_values = {
        "avg": x.sum(axis=0) // x.shape[0] if dtype == "int64" else x.mean(axis=0),
        "sum": pt.sum(x, axis=0, dtype=dtype),
        "prod": pt.prod(x, axis=0, dtype=dtype),
        "min": x.min(axis=0),
        "max": x.max(axis=0),
    }
    stores = {op: pytensor.shared(np.zeros(3, dtype)) for op in new_values}
    updates = [(stores[op], new, op) for op, new in new_values.items()]
    f = synk.function([x], updates=updates, mode=PY)
    value = values_of(dtype, (4 * ranks + 1, 3), 2)
    if dtype == "int64":  # equal rows have an integer mean, whatever the slices
        value = np.broadcast_to(np.array([3, -5, 2**40]), value.shape)
    expected = {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max}
    expected["avg"] = np.mean
    for slices in SLICES:
        f(value, num_slices=slices)
        for rank, part in enumerate(cut(value, ranks)):
            for op, store in stores.items():
                right = expected[op](part, axis=0).astype(dtype)
                what = f"{op} in {slices} slices"
                assert_same(synk.get_value(rank, store), right, 16, err_msg=what)


@one_and_three_ranks
def test_every_slice_starts_from_the_original_values(ranks):
    x = pt.vector("x")
    w = pytensor.shared(1.0)
    f = synk.function([x], [(x * w, "gather")], updates={w: w * 2}, mode=PY)
    value = np.arange(1.0, 2 * ranks + 2)
    for times in range(3):
        (rows,) = f(value, num_slices=3)
        assert_same(rows, value * 2**times)
    for rank in range(ranks):
        assert synk.get_value(rank, w) == 8


@one_and_three_ranks
def test_updates_that_depend_on_no_rows_are_made_once_and_exactly(ranks):
    x = pt.vector("x")
    start = 2**60
    n = pytensor.shared(np.int64(start))
    rate = pytensor.shared(np.float32(0.1))
    flag = pytensor.shared(np.array(False))
    f = synk.function(
        [x], (x.sum(), "sum"), updates={n: n + 1, rate: rate * 3, flag: ~flag}, mode=PY
    )
    right = np.float32(0.1)
    for times in range(1, 4):
        f(np.ones(7), num_slices=3)
        right = np.float32(right * np.float32(3))
        for rank in range(ranks):
            assert synk.get_value(rank, n) == start + times
            assert_same(synk.get_value(rank, rate), right)
            assert synk.get_value(rank, flag) == bool(times % 2)


def test_a_row_update_of_a_bool_takes_an_op_or_none(two_ranks):
    x = pt.vector("x")
    seen, missing = (pytensor.shared(np.array(flag)) for flag in (False, True))
    updates = [(seen, (x > 2).any(), "max"), (missing, (x < 3).all(), "min")]
    f = synk.function([x], updates=updates, mode=PY)
    f([0.0, 1, 5, 0, 0, 0, 0, 0], num_slices=2)
    assert synk.get_value(0, [seen, missing]) == [True, False]
    assert synk.get_value(1, [seen, missing]) == [False, True]


@one_and_three_ranks
def test_op_none_of_what_depends_on_no_rows_is_the_value_of_rank_0(ranks):
    x, b = pt.vector("x"), pt.scalar("b")
    w = pytensor.shared(0.0)
    f = synk.function([x], [(w + b, None), (x.sum(), "sum")], [b], mode=PY)
    synk.broadcast(w, -9.0)
    synk.set_value(0, w, 4.0)
    for slices in SLICES:
        own, total = f(np.ones(5), 3.0, num_slices=slices)
        assert own == 7
        assert total == 5


@one_and_three_ranks
def test_a_rank_without_rows_makes_its_updates_once_in_slices(ranks):
    x = pt.vector("x")
    mean, calls = pytensor.shared(-1.0), pytensor.shared(0)
    f = synk.function([x], updates={mean: x.mean(), calls: calls + 1}, mode=PY)
    f([6.0], num_slices=3)
    for rank in range(ranks):
        values = synk.get_value(rank, [mean, calls])
        assert values == [6, 1]


def test_row_wise_outputs_under_another_op_than_gather_are_refused():
    """Slices of 2, 1 and 1 rows must not be broadcast against each other."""
    x = pt.matrix("x")
    f = synk.function([x], (x.sum(axis=1), "sum"), mode=PY)
    with synk.session(1):
        with pytest.raises(synk.ShapeMismatch, match=r"\(2,\) and \(1,\)"):
            f(np.ones((4, 2)), num_slices=3)
        assert_same(f(np.ones((4, 2))), np.full(4, 2.0))


@one_and_three_ranks
def test_local_updates_by_rows_hold_those_of_all_slices(ranks):
    x = pt.vector("x")
    w = pytensor.shared(np.zeros(0))
    f = synk.function([x], updates={w: x * 1}, mode=PY, local=True)
    value = np.arange(4.0 * ranks)
    f(value, num_slices=3)
    for rank, part in enumerate(cut(value, ranks)):
        assert_same(synk.get_value(rank, w), part)


def test_slices_of_inputs_and_shared_rows_of_other_lengths_use_all_rows():
    x = pt.vector("x")
    s = pytensor.shared(np.arange(6.0))
    f = synk.function(
        [x],
        [(x.sum() + s.sum(), "sum"), (s, "gather"), (x, "gather"), x.mean()],
        sliceable_shareds=[s],
        mode=PY,
        on_unused_input="ignore",
    )
    with synk.session(1):
        for slices in SLICES:
            total, shared, rows, mean = f(np.array([1.0, 3.0]), num_slices=slices)
            assert total == 19
            assert_same(shared, np.arange(6.0))
            assert_same(rows, np.array([1.0, 3.0]))
            assert mean == 2


@one_and_three_ranks
def test_slices_use_a_subset_of_the_outputs(ranks):
    x = pt.vector("x")
    w = pytensor.shared(0.0)
    f = synk.function(
        [x],
        [x.mean(), (x.max(), "max"), (x, "gather")],
        updates={w: x.sum() / x.shape[0]},
        mode=PY,
    )
    value = np.arange(11.0)
    rows, mean = f(value, num_slices=2, output_subset=[2, 0])
    assert_same(rows, value)
    assert_same(mean, np.float64(5), 4)
    synk.all_reduce(w)
    assert_same(w.get_value(), np.float64(5), 4)


@one_and_three_ranks
def test_slices_of_rows_gathered_by_number_equal_the_serial_run(ranks):
    x = pt.matrix("x")
    f = synk.function([x], [(x, "gather"), x.mean(axis=0)], mode=PY)
    value = values_of("float64", (11, 2), 9)
    batch = np.array([10, 0, -1, 3, 3, 7, 1])
    for given in (value, synk.data(value)):
        for slices in SLICES:
            rows, mean = f(given, batch=batch, num_slices=slices)
            assert_same(rows, value[batch])
            assert_same(mean, value[batch].mean(axis=0), 16)


@one_and_three_ranks
def test_broadcast_inputs_are_whole_in_every_slice(ranks):
    x, b = pt.vector("x"), pt.vector("b")
    f = synk.function([x], (x + b.sum(), "gather"), [b], mode=PY)
    value = np.arange(7.0)
    for slices in SLICES:
        assert_same(f(value, [1.0, 2.0, 4.0], num_slices=slices), value + 7)


def test_slices_in_the_default_mode_equal_the_serial_run(two_ranks):
    x = pt.matrix("x", dtype="float32")
    w = pytensor.shared(np.ones(3, "float32"))
    f = synk.function([x], [x.dot(w).mean()], updates={w: w - x.mean(axis=0)})
    value = values_of("float32", (11, 3), 3)
    plain = pytensor.function([x], [x.dot(w).mean(), x.mean(axis=0)])
    expected, _ = plain(value)  # first: ranks find what numba compiled
    (mean,) = f(value, num_slices=3)
    assert_same(mean, expected, 8)
    assert_same(mean, value.sum(axis=1).mean(dtype="float64").astype("float32"), 8)
    right = (1 - value.astype("float64").mean(axis=0)).astype("float32")
    for rank in range(2):
        assert_same(synk.get_value(rank, w), right, 8, 1)


def test_more_slices_than_rows_cost_nothing(two_ranks):
    x = pt.vector("x")
    f = synk.function([x], (x.sum(), "sum"), mode=PY)
    values = np.arange(5.0)
    start = time.monotonic()
    assert f(values, num_slices=10**9) == 10
    assert time.monotonic() - start < 10  # 10**9 turns of a loop take a minute
