"""Outputs, whole and in slices: every op, dtype and number of rows."""

import time
import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from on_ranks import one_and_three_ranks, three_ranks
from reference import COMPLEX, KINDS, PY, assert_same, cut, ops_of, reduced, values_of

import synk

SLICES = (1, 2, 7)


def serial_pairs(x, dtype: str) -> list[tuple]:
    """Return (expression, op) pairs whose serial value is that of all rows."""
    if dtype == "bool":
        return [
            (x.any(axis=0), "sum"),
            (x.any(axis=0), "max"),
            (x.all(axis=0), "prod"),
            (x.all(axis=0), "min"),
            (~x, "gather"),
        ]
    pairs = [
        (pt.sum(x, axis=0, dtype=dtype), "sum"),
        (pt.prod(x, axis=0, dtype=dtype), "prod"),
        (x + x, "gather"),
    ]
    if dtype not in COMPLEX:
        pairs += [(x.max(axis=0), "max"), (x.min(axis=0), "min")]
    if np.dtype(dtype).kind in "fc":
        pairs.append((x.sum(axis=0) / x.shape[0].astype(dtype), "avg"))
    else:
        # In float64, or the serial sum of large integers would wrap around.
        pairs.append((x.astype("float64").mean(axis=0), "avg"))
    return pairs


@three_ranks
@pytest.mark.parametrize("kind", KINDS)
def test_every_op_and_dtype_equals_the_serial_run_in_any_slices(ranks, kind):
    for dtype in KINDS[kind]:
        check_against_pytensor(dtype)
        check_what_is_combined(ranks, dtype)


def check_against_pytensor(dtype):
    x = pt.matrix("x", dtype=dtype)
    pairs = serial_pairs(x, dtype)
    f = synk.function([x], pairs, mode=PY)
    assert f.output_modes == [op for _, op in pairs]
    plain = pytensor.function([x], [y for y, _ in pairs], mode=PY)
    for rows in (1, 2, 3, 4, 7, 23):
        value = values_of(dtype, (rows, 3), rows)
        with np.errstate(all="ignore"):
            expected = plain(value)
        scale = float(np.abs(value).max())
        for slices in SLICES if rows in (1, 7) else (1,):
            results = f(value, num_slices=slices)
            for got, right, (_, op) in zip(results, expected, pairs, strict=True):
                what = f"{op} of {rows} {dtype} rows in {slices} slices"
                # PyTensor itself rounds the serial sum of float16 at every step.
                assert_same(got, right, 60, scale, err_msg=what)


def check_what_is_combined(ranks, dtype):
    x = pt.matrix("x", dtype=dtype)
    ops = ops_of(dtype)
    # The first of a rank's rows: it fails on a rank that has none, and would spoil
    # every op but "max" if such a rank contributed zeros.
    f = synk.function([x], [(x[0], op) for op in ops], mode=PY)
    for rows, slices in ((1, 1), (4, 1), (13, 1), (13, 3)):
        value = values_of(dtype, (rows, 4), rows)
        pieces = [p for part in cut(value, ranks) for p in cut(part, slices) if len(p)]
        scale = float(np.abs(value).max())
        for op, got in zip(ops, f(value, num_slices=slices), strict=True):
            right = reduced(op, [p[0] for p in pieces], [len(p) for p in pieces])
            if op == "avg" and value.dtype.kind in "iu":
                right = right.astype("float64")
            what = f"{op} of {rows} {dtype} rows in {slices} slices"
            assert_same(got, right, 8, scale, err_msg=what)


@one_and_three_ranks
def test_no_rows_at_all_give_what_the_serial_run_gives(ranks):
    x = pt.matrix("x")
    calls = pytensor.shared(0)
    outputs = [
        (x.sum(axis=0), "sum"),
        (x.prod(axis=0), "prod"),
        (x * 2, "gather"),
        (x.shape[0], "sum"),
    ]
    f = synk.function([x], outputs, updates={calls: calls + 1}, mode=PY)
    for slices in (1, 4):
        total, product, rows, count = f(np.zeros((0, 3)), num_slices=slices)
        assert_same(total, np.zeros(3))
        assert_same(product, np.ones(3))
        assert_same(rows, np.zeros((0, 3)))
        assert count == 0
    assert_same(f(np.ones((2, 3)), batch=0)[2], np.zeros((0, 3)))
    assert synk.gather(calls).tolist() == [3] * ranks
    mean = synk.function([x], x.mean(axis=0), mode=PY)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert_same(mean(np.zeros((0, 3))), np.full(3, np.nan))
    largest = synk.function([x], (x.max(axis=0), "max"), mode=PY)
    with pytest.raises(ValueError, match="zero-size"):
        largest(np.zeros((0, 3)))
    assert_same(largest(np.ones((1, 3))), np.ones(3))


def test_nan_and_infinity_pass_through_as_in_numpy(two_ranks):
    x = pt.matrix("x")
    outputs = [(x.max(axis=0), "max"), (x.min(axis=0), "min"), (x.sum(axis=0), "sum")]
    within = [synk.ops.all_reduce(y, op) for y, op in outputs]
    f = synk.function([x], [*outputs, *((y, None) for y in within)], mode=PY)
    for row in range(5):
        value = np.ones((5, 3))
        value[row, 0], value[0, 1], value[-1, 2] = np.nan, np.inf, -np.inf
        right = value.max(0), value.min(0), value.sum(0)
        for got, expected in zip(f(value), [*right, *right], strict=True):
            assert_same(got, expected)


@one_and_three_ranks
def test_op_none_is_the_value_of_rank_0(ranks):
    x, b = pt.vector("x"), pt.scalar("b")
    w = pytensor.shared(0.0)
    outputs = [(x, None), (w, None), (w + b, None), (x * w, None)]
    f = synk.function([x], outputs, [b], mode=PY)
    synk.broadcast(w, -1.0)
    synk.set_value(0, w, 5.0)
    value = np.arange(7.0)
    mine, own, shifted, product = f(value, 1.0)
    assert_same(mine, cut(value, ranks)[0])
    assert (own, shifted) == (5, 6)
    assert_same(product, 5 * cut(value, ranks)[0])
    assert f(value, 3.0, num_slices=2, output_subset=[2]) == [8]
    assert f.output_modes == [None] * 4


@one_and_three_ranks
def test_gather_stacks_what_ranks_computed_once(ranks):
    x = pt.matrix("x")
    f = synk.function([x], [(x.sum(), "gather"), (x[:, :1], "gather")], mode=PY)
    value = np.arange(14.0).reshape(7, 2)
    sums, columns = f(value)
    assert_same(sums, [p.sum() for p in cut(value, ranks)])
    assert_same(columns, value[:, :1])
    sums, columns = f(value[:1])
    assert_same(sums, [1.0])
    assert_same(columns, value[:1, :1])


def test_outputs_come_back_as_they_were_given(two_ranks):
    x = pt.vector("x")
    value = np.arange(3.0)
    one = synk.function([x], (x.sum(), "sum"), mode=PY)(value)
    assert isinstance(one, np.ndarray)
    assert one == 3
    nothing = {"mode": PY, "on_unused_input": "ignore"}
    for outputs, expected in (
        ([(x.sum(), "sum")], [3]),
        ((x.sum(), x.max()), [3, 2]),
        (((x.sum(), "sum"), (x.max(), "max")), [3, 2]),
        ((x.sum(), x.max(), x.min()), [3, 2, 0]),
        ((x.sum(),), [3]),
        ([], []),
        (None, None),
    ):
        got = synk.function([x], outputs, **nothing)(value)
        assert got == expected
        assert type(got) is type(expected)
    assert synk.function([], mode=PY)() is None


@one_and_three_ranks
def test_a_subset_of_the_outputs_in_any_order_and_repeated(ranks):
    x = pt.vector("x")
    w = pytensor.shared(0.0)
    outputs = [(x.sum(), "sum"), x.mean(), (x, "gather"), (x.max(), "max")]
    f = synk.function([x], outputs, updates={w: w + x.sum()}, mode=PY)
    value = np.arange(7.0)
    right = [value.sum(), value.mean(), value, value.max()]
    subsets = [None, [3, 0], [2], [1, 1, 2, 1], [-1, 0], [], (0,), np.array([1, 0])]
    for subset in subsets:
        for slices in (1, 3):
            got = f(value, output_subset=subset, num_slices=slices)
            assert isinstance(got, list)
            wanted = range(4) if subset is None else subset
            for output, i in zip(got, wanted, strict=True):
                assert_same(output, np.asarray(right[i]), ulps=8)
    # Updates are made whatever outputs are asked for.
    assert synk.get_value(ranks - 1, w) == 2 * len(subsets) * value.sum()
    one = synk.function([x], (x.sum(), "sum"), mode=PY)
    assert one(value, output_subset=[]) == []
    assert one(value, output_subset=[0, -1]) == [21, 21]


def test_averages_of_integers_are_float64_and_small_floats_are_rounded_once(two_ranks):
    n, h = pt.vector("n", dtype="int32"), pt.vector("h", dtype="float16")
    f = synk.function([n, h], [(n.max(), "avg"), (h.max(), "sum")], mode=PY)
    # In float16, 2048 + 1 is 2048, and so would be the sum of these, one by one.
    mean, total = f(np.int32([1, 2]), np.float16([2048, 3]))
    assert_same(mean, np.float64(1.5))
    assert_same(total, np.float16(2052))


def test_the_default_mode_equals_pytensor_in_the_default_mode(two_ranks):
    x, y = pt.matrix("x"), pt.vector("y")
    w = pytensor.shared(np.ones(3), name="w")
    loss = ((x.dot(w) - y) ** 2).mean()
    gradient = pytensor.grad(loss, w)
    updates = {w: w - x.mean(axis=0)}
    f = synk.function([x, y], [loss, gradient, (pt.exp(x), "gather")], updates=updates)
    plain = pytensor.function([x, y], [loss, gradient, pt.exp(x)])
    X, Y = values_of("float64", (11, 3)), values_of("float64", (11,))
    right = np.ones(3)
    for rows, slices in ((11, 1), (1, 1), (11, 3)):
        # First: ranks find what numba compiled.
        expected = plain(X[:rows], Y[:rows])
        found = f(synk.data(X), Y, batch=rows, num_slices=slices)
        for got, exact in zip(found, expected, strict=True):
            assert_same(got, exact, ulps=64, scale=1)
        right = right - X[:rows].mean(axis=0)
        assert_same(synk.get_value(1, w), right, 64, 1)


# -- slices ----------------------------------------------------------------------------


def test_more_slices_than_rows_cost_nothing(two_ranks):
    x = pt.vector("x")
    f = synk.function([x], (x.sum(), "sum"), mode=PY)
    start = time.process_time()
    assert f(np.arange(5.0), num_slices=10**9) == 10
    assert time.process_time() - start < 10  # 10**9 turns of a loop take a minute


def test_the_same_ranks_and_inputs_give_the_same_bits(two_ranks):
    x = pt.dmatrix("x")
    outputs = [
        (synk.ops.all_reduce(y.sum(axis=0), op), None)
        for y in (x, pt.cast(x, "float32"))
        for op in ("avg", "sum", "prod")
    ]
    f = synk.function([x], outputs, mode=PY)
    values = np.random.default_rng(0).normal(size=(11, 5000))
    whole = f(values)
    for columns in (5000, 900, 1):  # few values are reduced in another way
        for _ in range(2):
            for got, right in zip(f(values[:, :columns]), whole, strict=True):
                np.testing.assert_array_equal(got, right[:columns])
