"""What a rank reduces itself it takes from where it is: the numbers are the same.

Values have to be large for that; here the limit is lowered, so that small ones take the
same way.
"""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from reference import PY, assert_same, ops_of, values_of

import synk
from synk.comm import divided, flat_layout

SHAPES = [(700,), (3, 5), (0, 4), (129, 7), (1,), (2, 64, 3)]


@pytest.fixture(params=[1, 2, 3, 5])
def size(request, monkeypatch):
    """A session of ranks that copy nothing of what they reduce themselves."""
    monkeypatch.setattr(divided, "LARGE", 1)
    monkeypatch.setattr(flat_layout, "small_for", lambda size: 0)
    with synk.session(request.param):
        yield request.param


def serial(op: str, values: list[np.ndarray]) -> np.ndarray:
    """Return what the reduction must give, for values that no rounding can change."""
    stacked = np.stack(values)
    if op == "avg":
        return stacked.sum(axis=0) / len(values)
    of_op = {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max}[op]
    return np.asarray(of_op(stacked, axis=0)).astype(stacked.dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "bool", "complex64"])
def test_all_reduce_of_a_list_of_values_that_lie_elsewhere(size, dtype):
    variables = [pytensor.shared(np.zeros((1,) * len(s), dtype)) for s in SHAPES]
    for turn, op in enumerate(ops_of(dtype)):
        by_rank = []
        for rank in range(size):
            values = [values_of(dtype, s, i, rank, turn) for i, s in enumerate(SHAPES)]
            if np.dtype(dtype).kind in "fci":  # small whole numbers: sums are exact
                values = [np.rint(v.real % 8 * 2).astype(dtype) for v in values]
            by_rank.append(values)
        for to_all in (True, False):
            for rank, values in enumerate(by_rank):
                synk.set_value(rank, variables, values)
            if to_all:
                synk.all_reduce(variables, op)
            else:
                results = synk.reduce(variables, op, in_place=False)
            for i, var in enumerate(variables):
                own = [values[i] for values in by_rank]
                right = serial(op, own)
                if op == "avg" and dtype == "int64":
                    right = np.rint(right).astype(dtype)
                right = right.astype(dtype)
                tolerance = {"rtol": 1e-6} if op == "avg" else {"rtol": 0}
                if not to_all:
                    np.testing.assert_allclose(results[i], right, **tolerance)
                for rank in range(size):
                    expected = right if to_all else own[rank]
                    got = synk.get_value(rank, var)
                    np.testing.assert_allclose(got, expected, **tolerance)
                    assert got.dtype == np.dtype(dtype)


def test_some_values_moved_and_others_stayed(size):
    variables = [pytensor.shared(np.full(300, float(i))) for i in range(4)]
    synk.all_reduce(variables, "sum")
    for rank in range(size):
        synk.set_value(rank, variables[1::2], [np.full(300, 10.0 + rank)] * 2)
    synk.all_reduce(variables, "sum")
    moved = float(sum(10 + rank for rank in range(size)))
    for i, var in enumerate(variables):
        right = moved if i % 2 else float(i) * size**2
        for rank in range(size):
            assert_same(synk.get_value(rank, var), np.full(300, right))


def test_variables_of_one_run_with_weights_of_their_own(size):
    x = pt.matrix("x")
    a, b = pytensor.shared(np.zeros(200)), pytensor.shared(np.zeros(200))
    update = synk.function([x], updates={a: x.mean(axis=0)}, mode=PY)
    rows = np.arange(7.0)[:, None] * np.ones(200)
    for _ in range(2):
        update(rows)
        for rank in range(size):
            synk.set_value(rank, b, np.full(200, float(rank)))
        synk.all_reduce([a, b])
        for rank in range(size):
            np.testing.assert_allclose(synk.get_value(rank, a), np.full(200, 3.0))
            right = np.full(200, (size - 1) / 2)
            np.testing.assert_allclose(synk.get_value(rank, b), right)


def test_reductions_in_a_graph_by_several_ops_and_of_transposed_values(size):
    x = pt.matrix("x")
    reduced = [
        synk.ops.all_reduce((x[:, :, None] * x[:, None, :]).sum(axis=0).T, "sum"),
        synk.ops.all_reduce(x.max(axis=0), "max"),
        synk.ops.all_reduce(pt.cast(x, "float32").sum(axis=0), "sum"),
        synk.ops.all_reduce(x.mean(axis=0)),
    ]
    f = synk.function([x], [(r, None) for r in reduced], mode=PY)
    random = np.random.default_rng(0)
    for rows in (11, 2, 5):
        values = random.integers(-8, 8, (rows, 40)).astype("float64")
        got = f(values)
        np.testing.assert_array_equal(got[0], values.T @ values)
        np.testing.assert_array_equal(got[1], values.max(axis=0))
        np.testing.assert_array_equal(got[2], values.sum(axis=0))
        np.testing.assert_allclose(got[3], values.mean(axis=0), atol=1e-12)
