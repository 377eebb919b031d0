"""The reduce ops: `combine` in the master, the kernels on the ranks, one meaning."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import (
    DTYPES,
    INTEGERS,
    REDUCE_OPS,
    assert_same,
    ops_of,
    reduced,
    values_of,
)

import synk
from synk.call.rounding import MARGIN, Rounding
from synk.comm.kernels import Reduction
from synk.reduce_ops import (
    AT_ONCE,
    Accumulator,
    accumulator,
    check_dtype,
    check_op,
    combine,
    finish,
    result_dtype,
    shares,
)


def right_of(op, values, weights=None):
    right = reduced(op, values, weights)
    is_average_of_integers = op == "avg" and values[0].dtype.kind in "iu"
    return right.astype("float64") if is_average_of_integers else right


@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (2, 3), (40_000,), (300, 70)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_combine_is_exact_for_every_op_and_dtype(dtype, shape):
    for n in (1, 2, 3, 5):
        values = [values_of(dtype, shape, rank) for rank in range(n)]
        scale = max((float(np.abs(v).max(initial=0)) for v in values), default=0)
        for op in ops_of(dtype):
            weights = list(range(1, n + 1)) if op == "avg" else [1] * n
            got = combine(op, values, weights)
            assert_same(got, right_of(op, values, weights), 4, scale, f"{op}, {n}")


def test_combine_takes_transposed_values():
    for shape in ((3, 4), (200, 300)):
        values = [values_of("float32", shape, rank).T for rank in range(3)]
        assert_same(combine("sum", values, [1, 1, 1]), reduced("sum", values))


@pytest.mark.parametrize("op", REDUCE_OPS)
def test_combine_does_not_change_its_values(op):
    values = [np.arange(3.0) + 1, np.arange(3.0) + 5]
    result = combine(op, values, [1, 1])
    result[:] = -1
    assert_same(values[0], np.arange(3.0) + 1)
    assert_same(values[1], np.arange(3.0) + 5)


def test_a_value_without_weight_is_left_out_of_an_average():
    for shape in ((), (3,), (30_000,)):
        values = [np.full(shape, np.nan), np.full(shape, 4.0), np.full(shape, np.inf)]
        assert_same(combine("avg", values, [0, 3, 0]), values[1])


def test_without_any_weight_all_values_count_alike():
    assert combine("avg", [np.array(1.0), np.array(4.0)], [0, 0]) == 2.5
    assert shares([0, 0, 0, 0]) == [0.25] * 4
    assert shares([1, 3]) == [0.25, 0.75]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_narrow_floats_are_rounded_once(dtype):
    """Adding up in the dtype itself would lose every small value."""
    one = np.ones(4, dtype)
    small = np.full(4, np.finfo(dtype).eps / 4, dtype)
    values = [one, *[small] * 8]
    right = one + np.finfo(dtype).eps * np.dtype(dtype).type(2)
    assert_same(combine("sum", values, [1] * 9), right, 0)
    scalars = [np.asarray(value[0]) for value in values]
    assert_same(combine("sum", scalars, [1] * 9), right[0], 0)


def test_large_sums_of_narrow_floats_do_not_overflow_on_the_way():
    values = [np.full(2, 60000, "float16"), np.full(2, 60000, "float16")]
    assert_same(combine("avg", values, [1, 1]), values[0])
    huge = np.full(2, 3e38, "float32")
    assert_same(combine("avg", [huge, huge], [1, 1]), huge)
    assert_same(combine("sum", [huge, huge, -huge], [1] * 3), huge)


def test_sums_of_bools_are_any_and_products_all():
    a, b = np.array([True, True, False]), np.array([True, False, False])
    assert_same(combine("sum", [a, b], [1, 1]), a | b)
    assert_same(combine("max", [a, b], [1, 1]), a | b)
    assert_same(combine("prod", [a, b], [1, 1]), a & b)
    assert_same(combine("min", [a, b], [1, 1]), a & b)


def test_values_of_different_shapes_are_not_broadcast():
    accumulator = Accumulator("sum", "float64")
    accumulator.add(np.zeros(3), 1)
    with pytest.raises(synk.ShapeMismatch, match=r"\(3,\) and \(1,\).*'sum'"):
        accumulator.add(np.zeros(1), 1)
    with pytest.raises(synk.ShapeMismatch, match=r"\(3,\) and \(\)"):
        accumulator.add(np.float64(1), 1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_adding_one_by_one_is_combining_at_once(dtype):
    values = [values_of(dtype, (5,), rank) for rank in range(4)]
    weights = [3, 1, 2, 2]
    for op in ops_of(dtype):
        one_by_one = Accumulator(op, dtype)
        for value, share in zip(values, shares(weights), strict=True):
            one_by_one.add(value, share)
        got = one_by_one.result(result_dtype(op, np.dtype(dtype)))
        assert_same(got, combine(op, values, weights), 0)


def test_integers_are_rounded_to_the_nearest_and_ties_to_even():
    for dtype in INTEGERS:
        got = finish(np.array([0.4, 0.5, 0.6, 1.5, 2.5, 100.49]), np.dtype(dtype))
        assert_same(got, np.array([0, 0, 1, 2, 2, 100], dtype))
    signed = finish(np.array([-0.5, -0.6, -1.5]), np.dtype("int8"))
    assert_same(signed, np.array([0, -1, -2], "int8"))


def test_result_dtypes():
    for dtype in DTYPES:
        for op in (*ops_of(dtype), "gather", None):
            integer_average = op == "avg" and dtype in INTEGERS
            assert result_dtype(op, dtype) == ("float64" if integer_average else dtype)
            if op not in ("gather", None):
                assert np.can_cast(
                    dtype,
                    accumulator(op, dtype),
                    "same_kind" if integer_average else "safe",
                )


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_op_without_meaning_for_a_dtype_is_refused(dtype):
    for op in REDUCE_OPS:
        if op in ops_of(dtype):
            check_dtype(op, dtype, "x")
        else:
            with pytest.raises(TypeError, match=f"^x: .*{op}"):
                check_dtype(op, dtype, "x")
    check_dtype("gather", dtype, "x")
    check_dtype(None, dtype, "x")


def test_other_kinds_of_values_are_only_gathered():
    for dtype in ("U3", "M8[s]", [("a", "f4")]):
        check_dtype("gather", np.dtype(dtype), "x")
        with pytest.raises(TypeError, match="cannot reduce"):
            check_dtype("sum", np.dtype(dtype), "x")


def test_an_unknown_op_is_refused_with_the_known_ones():
    check_op("avg", REDUCE_OPS, "x")
    for op in ("mean", "AVG", "", None, 0):
        with pytest.raises(ValueError, match=r"^x: .*'avg', 'sum', 'prod'"):
            check_op(op, REDUCE_OPS, "x")


# -- the kernels ----------------------------------------------------------------------


def reduce_part(op, buffers, shares, start, stop, targets):
    """Reduce a part of the buffers into the first of them, as rank 0."""
    Reduction(op, buffers, buffers[:targets], 0).run(shares, start, stop)


def assert_reduced(op, got, expected, scale, what):
    """Allow for the rounding of 64-bit integers to float64 in between."""
    if op == "avg" and got.dtype.name in ("int64", "uint64"):
        wrong = got.astype(np.longdouble) - expected.astype(np.longdouble)
        assert np.abs(wrong).max() <= 4 * 2.0**11
    else:
        assert_same(got, expected, 2, scale, what)


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernels_reduce_as_combine_does(dtype, n):
    size = 2100  # more than two blocks
    before = np.stack([values_of(dtype, (size,), rank) for rank in range(n)])
    weights = np.array([2, 1, 4][:n]) / sum([2, 1, 4][:n])
    scale = float(np.abs(before).max()) if before.dtype.kind in "fc" else 0
    for op in ops_of(dtype):
        right = combine(op, list(before), list(weights))
        right = finish(right, np.dtype(dtype))
        for start, stop, targets in (
            (0, size, n),
            (5, 1500, n),
            (1030, 1031, 1),
            (7, 7, n),
        ):
            what = f"{op} {start}:{stop}"
            buffers = before.copy()
            reduce_part(op, buffers, weights, start, stop, targets)
            expected = before.copy()
            expected[:targets, start:stop] = right[start:stop]
            assert_reduced(op, buffers, expected, scale, what)
            # Results that lie apart, and the values of the rank that calls elsewhere.
            buffers, results = before.copy(), before[:1].copy()
            own = buffers[n - 1, start:stop].copy()
            buffers[n - 1] = before[0]
            reduction = Reduction(op, buffers, results, n - 1)
            reduction.run(weights, start, stop, (own, start))
            expected = before[:1].copy()
            expected[:, start:stop] = right[start:stop]
            assert_reduced(op, results, expected, scale, what)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "complex64"])
def test_the_kernels_leave_out_a_rank_without_weight(dtype):
    buffers = np.full((3, 5), np.nan, dtype)
    buffers[1] = np.arange(5)
    reduce_part("avg", buffers, np.array([0.0, 1.0, 0.0]), 0, 5, 3)
    assert_same(buffers, np.tile(np.arange(5), (3, 1)).astype(dtype))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_kernels_compare_nan_as_numpy_does(dtype):
    values = np.array([[1, np.nan, 3], [np.nan, 2, 2], [0, 0, 5]], dtype)
    for op, numpy_op in (("min", np.min), ("max", np.max)):
        buffers = values.copy()
        reduce_part(op, buffers, np.ones(3), 0, 3, 3)
        right = numpy_op(values, axis=0)
        assert_same(buffers, np.stack([right] * 3))


def test_the_kernels_work_on_a_part_of_wider_rows():
    wide = values_of("float32", (2, 50), 1)
    before = wide.copy()
    part = wide[:, 10:20]
    reduce_part("sum", part, np.ones(2), 2, 8, 2)
    expected = before.copy()
    expected[:, 12:18] = reduced("sum", list(before[:, 12:18]))
    assert_same(wide, expected)


@settings(max_examples=50, deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=6),
    st.integers(-(10**9), 10**9).map(lambda value: value / 1000),
)
def test_equal_values_average_to_themselves_whatever_the_weights(weights, value):
    for dtype in ("float32", "float64"):
        values = [np.full(2, value, dtype)] * len(weights)
        assert_same(combine("avg", values, weights), values[0], 4)
        assert_same(combine("avg", [v[0] for v in values], weights), values[0][0], 4)
    whole = [np.full(2, int(value), "int32")] * len(weights)
    got = finish(combine("avg", whole, weights), np.dtype("int32"))
    assert_same(got, whole[0])


# -- values of many ranks are combined at once -----------------------------------------


def one_after_the_other(op: str, values: list, weights: list) -> np.ndarray:
    """Add values in their order, in float64."""
    total = np.zeros(values[0].shape)
    for i, (value, share) in enumerate(zip(values, shares(weights), strict=True)):
        if op == "avg" and not share:
            continue
        term = value.astype(float) * (share if op == "avg" else 1)
        total = total + term if i else term
    return total.astype(values[0].dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", ["sum", "avg"])
@pytest.mark.parametrize("shape", [(1,), (2,), (3,), (24,), (1, 2), (2, 1), (3, 4, 2)])
def test_the_bits_are_those_of_the_order_of_ranks(dtype, op, shape):
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 9, 300):
        sizes = 10.0 ** rng.integers(-6, 6, n)
        values = [(rng.normal(size=shape) * size).astype(dtype) for size in sizes]
        if n % 2:
            values = [np.asfortranarray(value) for value in values]
        weights = rng.integers(0, 3, n).tolist()
        weights[0] = 1
        found = combine(op, values, weights)
        right = one_after_the_other(op, values, weights)
        assert found.dtype == right.dtype
        assert found.shape == right.shape
        assert found.tobytes() == right.tobytes(), n


def test_many_large_values_take_no_array_of_all():
    values = [np.full(AT_ONCE // 4, i, np.float32) for i in range(5)]
    np.testing.assert_array_equal(combine("sum", values, [1] * 5), np.full(1 << 18, 10))


# -- mistakes are told from rounding errors, by what was computed ----------------------


def total(*arrays):
    return [sum(array.sum() for array in arrays)]


def test_rounding_errors_are_those_of_what_was_summed():
    values = np.array([1e6 / 3, -1e6 / 3, 0.1])
    of_sum = Rounding(total, [values], total(values))
    one = values[2:]
    steep = Rounding(lambda x: [np.exp(20 * x)], [one], [np.exp(20 * one)])
    for unit in (1e-13, 1e-10, 1e-7):
        # A term x changes by up to 2 * unit * x, and exp(x) by x times its value.
        most = 2 * MARGIN * unit * np.abs(values).sum()
        assert most / 20 < of_sum.allowed(0, unit) <= most
        most = 2 * MARGIN * unit * 2 * np.exp(2)
        assert most / 20 < steep.allowed(0, unit) < 1.01 * most


def test_whole_numbers_integers_and_what_is_not_finite_are_not_rounded_anew():
    exact = [np.array([0.0, 1, -7, 1e5]), np.arange(3), np.array([True]), np.float32(2)]
    assert Rounding(total, exact, total(*exact)).allowed(0, 1e-7) == 0
    edge = np.array([0.5, 1 - 2**-53])
    with np.errstate(invalid="ignore"):
        over = Rounding(lambda x: [np.sqrt(1 - x)], [edge], [np.sqrt(1 - edge)])
        assert 0 < over.allowed(0, 2.0**-52) < 1e-6
