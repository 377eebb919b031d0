"""The outputs of a function: every op, dtype and number of rows."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from reference import (
    COMPLEX,
    KINDS,
    PY,
    assert_same,
    cut,
    ops_of,
    reduced,
    values_of,
)
from world_sizes import one_and_three_ranks

import synk


def row_counts(n: int) -> list[int]:
    """Return numbers of rows: fewer than ranks, as many, uneven, many."""
    return sorted({1, max(1, n - 1), n, n + 1, 2 * n + 1, 23})


def _per_row_ops(x, dtype: str) -> list[tuple]:
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


@functools.cache
def _graph(dtype: str):
    x = pt.matrix("x", dtype=dtype)
    pairs = _per_row_ops(x, dtype)
    return x, pairs, pytensor.function([x], [y for y, _ in pairs], mode=PY)


@pytest.mark.parametrize("kind", KINDS)
def test_every_op_and_dtype_equals_the_serial_run_for_any_number_of_rows(ranks, kind):
    for dtype in KINDS[kind]:
        check_against_pytensor(ranks, dtype)


def check_against_pytensor(ranks, dtype):
    x, pairs, plain = _graph(dtype)
    f = synk.function([x], pairs, mode=PY)
    assert f.output_modes == [op for _, op in pairs]
    for rows in row_counts(ranks):
        value = values_of(dtype, (rows, 3), rows)
        with np.errstate(all="ignore"):
            expected = plain(value)
            results = f(value)
        for got, right, (_, op) in zip(results, expected, pairs, strict=True):
            # The serial sum of float16 is rounded at every step by PyTensor itself.
            scale = float(np.abs(value).max())
            assert_same(got, right, 40, scale, err_msg=f"{op} of {rows} {dtype} rows")


@one_and_three_ranks
@pytest.mark.parametrize("kind", KINDS)
def test_an_op_combines_what_the_ranks_with_rows_computed(ranks, kind):
    for dtype in KINDS[kind]:
        check_first_rows(ranks, dtype)


def check_first_rows(ranks, dtype):
    x = pt.matrix("x", dtype=dtype)
    ops = ops_of(dtype)
    # The first of a rank's rows: it fails on a rank that has none, and would spoil
    # every op but "max" if such a rank contributed zeros.
    f = synk.function([x], [(x[0], op) for op in ops], mode=PY)
    for rows in row_counts(ranks):
        value = values_of(dtype, (rows, 4), rows)
        parts = [part for part in cut(value, ranks) if len(part)]
        for op, got in zip(ops, f(value), strict=True):
            right = reduced(op, [p[0] for p in parts], [len(p) for p in parts])
            if op == "avg" and value.dtype.kind in "iu":
                right = right.astype("float64")
            scale = float(np.abs(value).max())
            assert_same(got, right, 4, scale, err_msg=f"{op} of {rows} {dtype} rows")


@one_and_three_ranks
def test_no_rows_at_all_give_what_the_serial_run_gives(ranks):
    x = pt.matrix("x")
    outputs = [
        (x.sum(axis=0), "sum"),
        (x.prod(axis=0), "prod"),
        (x * 2, "gather"),
        (x.shape[0], "sum"),
    ]
    f = synk.function([x], outputs, mode=PY)
    total, product, rows, count = f(np.zeros((0, 3)))
    assert_same(total, np.zeros(3))
    assert_same(product, np.ones(3))
    assert_same(rows, np.zeros((0, 3)))
    assert count == 0
    assert_same(f(np.ones((2, 3)), batch=0)[2], np.zeros((0, 3)))
    mean = synk.function([x], x.mean(axis=0), mode=PY)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert_same(mean(np.zeros((0, 3))), np.full(3, np.nan))
    largest = synk.function([x], (x.max(axis=0), "max"), mode=PY)
    with pytest.raises(ValueError, match="zero-size"):
        largest(np.zeros((0, 3)))
    assert_same(largest(np.ones((1, 3))), np.ones(3))


@one_and_three_ranks
def test_a_rank_without_rows_yields_no_nan(ranks):
    x = pt.matrix("x")
    w = pytensor.shared(np.zeros(3))
    f = synk.function(
        [x],
        [x.mean(axis=0), (x.std(axis=0), "max"), (1 / x.shape[0], "sum")],
        updates={w: x.mean(axis=0)},
        mode=PY,
    )
    mean, spread, inverse = f(np.full((1, 3), 7.0))
    assert_same(mean, np.full(3, 7.0))
    assert_same(spread, np.zeros(3))
    assert inverse == 1
    for rank in range(ranks):
        assert_same(synk.get_value(rank, w), np.full(3, 7.0))


@one_and_three_ranks
def test_large_and_transposed_outputs_are_combined_exactly(ranks):
    x = pt.matrix("x")
    outputs = [(x.sum(axis=0).reshape((200, 300)).T, op) for op in ("sum", "max")]
    outputs.append((x.T.mean(axis=1), "avg"))
    f = synk.function([x], outputs, mode=PY)
    value = values_of("float64", (7, 60_000))
    total, largest, mean = f(value)
    sums = [p.sum(axis=0) for p in cut(value, ranks) if len(p)]
    assert_same(total, value.sum(axis=0).reshape(200, 300).T, ulps=16)
    assert_same(largest, np.max(sums, axis=0).reshape(200, 300).T, ulps=16)
    assert_same(mean, value.mean(axis=0), ulps=16)


@one_and_three_ranks
def test_nan_and_infinity_pass_through_as_in_numpy(ranks):
    x = pt.matrix("x")
    outputs = [(x.max(axis=0), "max"), (x.min(axis=0), "min"), (x.sum(axis=0), "sum")]
    f = synk.function([x], outputs, mode=PY)
    value = np.ones((2 * ranks + 1, 3))
    value[-1, 0], value[0, 1], value[-1, 2] = np.nan, np.inf, -np.inf
    for got, right in zip(
        f(value), (value.max(0), value.min(0), value.sum(0)), strict=True
    ):
        assert_same(got, right)


@one_and_three_ranks
def test_op_none_is_the_value_of_rank_0(ranks):
    x = pt.vector("x")
    w = pytensor.shared(0.0)
    outputs = [(x, None), (w, None), (w + 1, None), (x * w, None)]
    f = synk.function([x], outputs, mode=PY)
    synk.broadcast(w, -1.0)
    synk.set_value(0, w, 5.0)
    value = np.arange(7.0)
    mine, own, shifted, product = f(value)
    assert_same(mine, cut(value, ranks)[0])
    assert own == 5
    assert shifted == 6
    assert_same(product, 5 * cut(value, ranks)[0])
    assert f.output_modes == [None, None, None, None]


@one_and_three_ranks
def test_without_an_op_rows_are_averaged_and_constants_are_left(ranks):
    x, b = pt.vector("x"), pt.scalar("b")
    w = pytensor.shared(2.0)
    f = synk.function([x], [x.mean(), b * w, w], [b], mode=PY)
    assert f.output_modes == ["avg", None, None]
    mean, product, own = f(np.arange(11.0), 3.0)
    assert_same(mean, np.float64(5), ulps=4)
    assert (product, own) == (6, 2)


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
    listed = synk.function([x], [(x.sum(), "sum")], mode=PY)(value)
    assert isinstance(listed, list)
    assert listed == [3]
    assert synk.function([x], [], mode=PY, on_unused_input="ignore")(value) == []
    assert synk.function([x], None, mode=PY, on_unused_input="ignore")(value) is None
    assert synk.function([], mode=PY)() is None


@one_and_three_ranks
def test_float32_is_kept_throughout(ranks):
    x = pt.matrix("x", dtype="float32")
    w = pytensor.shared(np.ones(3, "float32"))
    f = synk.function(
        [x],
        [x.dot(w).mean(), (x.sum(), "sum"), (x.dot(w), "gather"), x.max()],
        updates={w: w - x.mean(axis=0)},
        mode=PY,
    )
    value = values_of("float32", (7, 3))
    for slices in (1, 2):
        for output in f(value, num_slices=slices):
            assert output.dtype == np.float32
        assert synk.get_value(ranks - 1, w).dtype == np.float32
    synk.all_reduce(w)
    assert w.get_value().dtype == np.float32


def test_the_default_mode_equals_pytensor_in_the_default_mode(two_ranks):
    x, y = pt.matrix("x"), pt.vector("y")
    w = pytensor.shared(np.zeros(3), name="w")
    loss = ((x.dot(w) - y) ** 2).mean()
    gradient = pytensor.grad(loss, w)
    outputs = [loss, gradient, ((x > 1).sum(axis=0), "sum"), (pt.exp(x), "gather")]
    f = synk.function([x, y], outputs)
    plain = pytensor.function(
        [x, y], [o[0] if isinstance(o, tuple) else o for o in outputs]
    )
    X, Y = values_of("float64", (11, 3)), values_of("float64", (11,))
    for rows in (11, 1, 2):
        expected = plain(X[:rows], Y[:rows])  # first: ranks find what numba compiled
        found = f(synk.data(X), Y, batch=rows)
        for got, right in zip(found, expected, strict=True):
            assert_same(got, right, ulps=32)


def test_outputs_may_be_a_tuple_as_in_pytensor():
    x = pt.vector("x")
    rows = np.arange(7.0)
    with synk.session(2):
        for outputs in ((x.sum(), x.max()), ((x.sum(), "sum"), (x.max(), "max"))):
            assert synk.function([x], outputs, mode=PY)(rows) == [21, 6]
        assert synk.function([x], (x.sum(), x.max(), x.min()), mode=PY)(rows)[2] == 0
        assert synk.function([x], (x.sum(),), mode=PY)(rows) == [21]
        assert synk.function([x], (x.sum(), "sum"), mode=PY)(rows) == 21
