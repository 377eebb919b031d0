"""Few values of any dtypes and ops are reduced in one meeting, to serial numbers."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
import pytest
from reference import PY

import synk
from synk.comm import flat_layout
from synk.comm.sync import number_after
from synk.ranks.session import SESSION


def statistics(x):
    """Return reductions of a matrix, of every op and of three dtypes."""
    single, whole = pt.cast(x, "float32"), pt.cast(x, "int64")
    return [
        synk.ops.all_reduce(x.sum(axis=0), "sum"),
        synk.ops.all_reduce(whole.min(), "min"),
        synk.ops.all_reduce(x.mean()),
        synk.ops.all_reduce(single.sum(axis=0), "sum"),
        synk.ops.all_reduce(x.prod(axis=0), "prod"),
        synk.ops.all_reduce(whole.sum(axis=1).sum(), "sum"),
        synk.ops.all_reduce(single.max(axis=0), "max"),
        synk.ops.all_reduce(x.min(axis=0), "min"),
    ]


def serial(x: np.ndarray) -> list[np.ndarray]:
    """Return the same of all rows."""
    single, whole = x.astype("float32"), x.astype("int64")
    return [
        *(x.sum(axis=0), whole.min(), x.mean(), single.sum(axis=0), x.prod(axis=0)),
        *(whole.sum(), single.max(axis=0), x.min(axis=0)),
    ]


def assert_serial(results, x: np.ndarray) -> None:
    """Assert that results are those of all rows, in their dtypes."""
    for got, right in zip(results, serial(x), strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-12)
        assert got.dtype == right.dtype


def test_several_dtypes_and_ops(ranks):
    x = pt.dmatrix("x")
    f = synk.function([x], [(r, None) for r in statistics(x)], mode=PY)
    random = np.random.default_rng(0)
    for rows in (12, 1, 2, 7, 7):  # a rank without rows gives nothing
        values = random.integers(-3, 4, (rows, 3)).astype(float)
        assert_serial(f(values), values)
    # The two sets of slots take turns.
    batches = [slice(start, start + 5) for start in range(9)]
    values = random.integers(-3, 4, (13, 3)).astype(float)
    made = f.run(batches, values)
    for call, batch in enumerate(batches):
        assert_serial([of_output[call] for of_output in made], values[batch])


def test_nan_wins_a_comparison(ranks):
    x = pt.dmatrix("x")
    outputs = [synk.ops.all_reduce(x.min(axis=0), "min"), synk.ops.all_reduce(x.mean())]
    f = synk.function([x], [(r, None) for r in outputs], mode=PY)
    for row in range(5):
        values = np.arange(10.0).reshape(5, 2)
        values[row, 1] = np.nan
        least, mean = f(values)
        np.testing.assert_array_equal(least, [0, np.nan])
        assert np.isnan(mean)


def test_ranks_meet_once(two_ranks):
    x = pt.dmatrix("x")
    f = synk.function([x], [(r, None) for r in statistics(x)], mode=PY)
    values = np.arange(12.0).reshape(4, 3)
    f(values)
    # As many meetings as a call has whose values are of one kind.
    assert_serial(f(values), values)
    first = number_after(0, SESSION.control.command)
    assert SESSION.context.comm.number == first


def test_values_that_no_longer_fit(ranks):
    x = pt.dmatrix("x")
    outputs = [
        (synk.ops.all_reduce(x.sum(axis=0), "sum"), None),
        (synk.ops.all_reduce(pt.cast(x, "float32").max(axis=0), "max"), None),
    ]
    f = synk.function([x], outputs, mode=PY)
    for width in (3, 5, 2, 5000):  # the last is not few
        values = np.arange(4.0 * width).reshape(4, width)
        total, largest = f(values)
        np.testing.assert_array_equal(total, values.sum(axis=0))
        np.testing.assert_array_equal(largest, values[-1])


@pytest.mark.parametrize("n", [2, 3])
def test_to_divide_gives_the_same_bits(n, monkeypatch):
    x = pt.dmatrix("x")
    single = pt.cast(x, "float32")
    outputs = [
        *(synk.ops.all_reduce(x.sum(axis=0), op) for op in ("avg", "sum", "prod")),
        *(synk.ops.all_reduce(single.sum(axis=0), op) for op in ("avg", "sum", "prod")),
        synk.ops.all_reduce(pt.cast(100 * x, "int32").sum(axis=0), "sum"),
    ]
    functions = [synk.function([x], [(each, None)], mode=PY) for each in outputs]
    values = np.random.default_rng(0).normal(size=(11, 900))  # 7.2 kB
    found = []
    for limit in (1 << 30, 0):
        monkeypatch.setattr(flat_layout, "small_for", lambda size, limit=limit: limit)
        with synk.session(n):
            found.append([f(values[:, :k]) for f in functions for k in (900, 1, 40)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


def test_few_values_are_fewer_where_there_are_more_ranks():
    few = list(map(flat_layout.small_for, (1, 2, 3, 5, 16, 17, 1000)))
    assert few == [32768, 32768, 16384, 8192, 2184, 2048, 2048]


SERIAL = {"avg": np.mean, "sum": np.sum, "prod": np.prod, "min": min, "max": max}


def test_single_numbers_of_functions_in_turns(ranks):
    """They are told on the same cache lines, whichever function they are of."""
    x, n = pt.dmatrix("x"), pt.dvector("n")
    kinds = [(op, dtype) for op in SERIAL for dtype in ("float32", "float64", "int32")]
    numbers = [synk.ops.all_reduce(pt.cast(x.sum(), d), op) for op, d in kinds]
    functions = [synk.function([x], (number, None), mode=PY) for number in numbers]
    g = synk.function([n], (synk.ops.all_reduce(n.sum(), "sum"), None), mode=PY)
    random = np.random.default_rng(1)
    for _ in range(3):
        values = random.integers(1, 4, (2 * ranks, 3)).astype(float)
        of_ranks = values.reshape(ranks, -1).sum(axis=1)
        for f, (op, _) in zip(functions, kinds, strict=True):
            assert f(values) == pytest.approx(SERIAL[op](of_ranks), rel=1e-6)
            assert g(values[:, 0]) == values[:, 0].sum()


def test_one_rank_alone_has_values_that_no_longer_fit(two_ranks):
    x = pt.dvector("x")
    f = synk.function([x], (synk.ops.all_reduce(x, "sum"), None), mode=PY)
    np.testing.assert_array_equal(f(np.array([1.0, 2, 3, 4])), [4, 6])
    with pytest.raises(synk.ShapeMismatch):
        f(np.array([1.0, 2, 3]))
    np.testing.assert_array_equal(f(np.array([1.0, 2, 3, 4])), [4, 6])
