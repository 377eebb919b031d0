"""The reduce ops in the master: `combine`, values one by one, and trees of blocks."""

import itertools

import numpy as np
import pytest
from reference import REDUCE_OPS, assert_same, reduced, values_of

from synk.memory.partition import cuts
from synk.reduce_ops import check_dtype, combine, shares
from synk.reduce_tree import Columns, Stack, block_cut, combined


@pytest.mark.parametrize("op", REDUCE_OPS)
def test_combine_takes_transposed_values_and_does_not_change_them(op):
    for shape in ((3, 4), (200, 300)):
        values = [values_of("float32", shape, rank).T for rank in range(3)]
        result = combine(op, values, [1, 1, 1])
        assert_same(result, reduced(op, values))
        result[:] = -1
        assert all((value > 0).all() for value in values)


def test_a_value_without_weight_is_left_out_and_without_any_all_count_alike():
    for shape in ((), (3,), (30_000,)):
        values = [np.full(shape, np.nan), np.full(shape, 4.0), np.full(shape, np.inf)]
        assert_same(combine("avg", values, [0, 3, 0]), values[1])
    assert combine("avg", [np.array(1.0), np.array(4.0)], [0, 0]) == 2.5
    assert shares([0, 0, 0, 0]) == [0.25] * 4
    assert shares([1, 3]) == [0.25, 0.75]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_narrow_floats_are_rounded_once_and_do_not_overflow_on_the_way(dtype):
    """Adding up in the dtype itself would lose every small value."""
    one, info = np.ones(4, dtype), np.finfo(dtype)
    values = [one, *[np.full(4, info.eps / 4, dtype)] * 8]
    right = one + info.eps * np.dtype(dtype).type(2)
    assert_same(combine("sum", values, [1] * 9), right, 0)
    scalars = [np.asarray(value[0]) for value in values]
    assert_same(combine("sum", scalars, [1] * 9), right[0], 0)
    huge = np.full(2, 0.9 * info.max, dtype)
    assert_same(combine("avg", [huge, huge], [1, 1]), huge)
    assert_same(combine("sum", [huge, huge, -huge], [1] * 3), huge)


def test_other_kinds_of_values_are_only_gathered():
    for dtype in ("U3", "M8[s]", [("a", "f4")]):
        check_dtype("gather", np.dtype(dtype), "x")
        with pytest.raises(TypeError, match="cannot reduce"):
            check_dtype("sum", np.dtype(dtype), "x")


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


SMALL = [(1,), (2,), (3,), (24,), (1, 2), (2, 1), (3, 4, 2)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", ["sum", "avg"])
def test_the_bits_are_those_of_the_order_of_ranks(dtype, op):
    rng = np.random.default_rng(0)
    for shape, n in itertools.product(SMALL, (1, 2, 3, 9, 300)):
        sizes = 10.0 ** rng.integers(-6, 6, n)
        values = [(rng.normal(size=shape) * size).astype(dtype) for size in sizes]
        if n % 2:
            values = [np.asfortranarray(value) for value in values]
        weights = rng.integers(0, 3, n).tolist()
        weights[0] = 1
        found = combine(op, values, weights)
        right = one_after_the_other(op, values, weights)
        assert_same(found, right, 0)
        assert found.tobytes() == right.tobytes(), n


# -- in a tree over blocks of rows


COLUMNS = Columns([((3,), "f8", "sum"), ((), "f4", "avg"), ((2,), "f8", "prod")])


def added(values: np.ndarray, rows: int, block: int, ranks: int) -> list:
    """Return what blocks' values come to, by so many ranks."""
    cut = block_cut(tuple(cuts(rows, ranks, block)), block)
    stacks = []
    for rank in range(ranks):
        first, stop = cut.first(rank), cut.first(rank + 1)
        stack = Stack(first, stop - first, COLUMNS)
        for number in range(first, stop):
            stack.next[:] = values[number]
            stack.push()
        assert len(stack.entries) == cut.counts[rank] <= cut.most
        stacks.append(stack.entries)
    return combined(cut, stacks, COLUMNS)


def in_pairs(values: list) -> np.ndarray:
    """Add up neighbours, and neighbours of these; what is left over comes last."""
    while len(values) > 1:
        pairs = itertools.zip_longest(values[::2], values[1::2])
        values = [a if b is None else a + b for a, b in pairs]
    return values[0]


def test_all_ranks_add_up_the_same_pairs():
    rng = np.random.default_rng(1)
    for rows, block in itertools.product((17, 1000, 1001, 20_000), (1, 8, 16)):
        values = 1 + 1e-3 * rng.normal(size=(-(-rows // block), 6))
        first = added(values, rows, block, 1)
        for ranks in (2, 3, 5, 7, 16, 64, 200):
            again = added(values, rows, block, ranks)
            for one, other in zip(again, first, strict=True):
                assert one.tobytes() == other.tobytes(), (rows, block, ranks)
        total, mean, product = first
        assert (total == in_pairs([*values[:, :3]])).all()
        assert mean == np.float32(in_pairs([*values[:, 3]]) / rows)
        np.testing.assert_allclose(product, values[:, 4:].prod(axis=0), rtol=1e-12)


def test_rows_that_are_cut_otherwise_are_in_no_tree():
    assert block_cut((0, 10, 20), 4) is None  # ranks that do not begin at blocks
    assert block_cut((0, 20, 20), 32) is None  # one block
    assert block_cut((0, 20), 0) is None
    assert block_cut((0, 8, 8, 19), 4).rows == 19
