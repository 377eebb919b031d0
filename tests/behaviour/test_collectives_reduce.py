"""all_reduce and reduce: every op, dtype, shape and number of ranks; weights."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from reference import (
    DTYPES,
    KINDS,
    PY,
    SHAPES,
    assert_same,
    cut,
    give,
    ops_of,
    reduced,
    shared_of,
    values_of,
)

import synk


def right_reduction(op: str, values) -> np.ndarray:
    """Return what a reduction stores: integers rounded to the nearest."""
    right = reduced(op, values)
    dtype = values[0].dtype
    if op == "avg" and dtype.kind in "iu":
        # The accumulator is a float64: 64-bit integers lose their last digits.
        return np.rint(right.astype("float64")).astype(dtype)
    return right


def check(got, right, dtype, what):
    """Compare; the averages of large integers as the float64 that they went through."""
    if np.dtype(dtype).kind in "iu" and what.startswith("avg"):
        assert got.dtype == right.dtype, what
        ulp = 4 * np.finfo("float64").eps * np.iinfo(dtype).max
        wrong = np.abs(got.astype(np.longdouble) - right.astype(np.longdouble))
        assert wrong.max(initial=0) <= max(ulp, 1), what
    else:
        assert_same(got, right, 4, 1, err_msg=what)


# -- all_reduce and reduce -------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_all_reduce_is_exact_for_every_op_dtype_and_shape(ranks, kind):
    for dtype in KINDS[kind]:
        check_all_reduce(ranks, dtype)


def check_all_reduce(ranks, dtype):
    variables = [shared_of(dtype, shape) for shape in SHAPES]
    for seed, op in enumerate(ops_of(dtype)):
        # At the second turn the variables have homes: in the order of the first list.
        for turn in (0, 10):
            values = give(variables, ranks, dtype, SHAPES, seed + turn)
            if turn == 0:
                synk.all_reduce(variables, op)
            else:
                synk.all_reduce(variables[2], op)
                synk.all_reduce([*variables[:1:-1][:-1], *variables[:2]], op)
            rights = [right_reduction(op, of_var) for of_var in values]
            for rank in range(ranks):
                found = synk.get_value(rank, variables)
                for got, right in zip(found, rights, strict=True):
                    what = f"{op} of {dtype} {right.shape} on rank {rank}, {turn}"
                    check(got, right, dtype, what)


@pytest.mark.parametrize("kind", KINDS)
def test_reduce_is_exact_and_changes_rank_0_at_the_most(ranks, kind):
    for dtype in KINDS[kind]:
        check_reduce(ranks, dtype)


def check_reduce(ranks, dtype):
    shapes = SHAPES[:4] + SHAPES[-1:]
    variables = [shared_of(dtype, shape) for shape in shapes]
    for seed, op in enumerate(ops_of(dtype)):
        for in_place in (False, True):
            values = give(variables, ranks, dtype, shapes, seed)
            results = synk.reduce(variables, op, in_place=in_place)
            for var, of_var, got in zip(variables, values, results, strict=True):
                what = f"{op} of {dtype} {of_var[0].shape}"
                right = right_reduction(op, of_var)
                check(got, right, dtype, what)
                mine = synk.get_value(0, var)
                if in_place:
                    check(mine, right, dtype, what)
                else:
                    assert_same(mine, of_var[0])
                assert not np.shares_memory(got, var.get_value(borrow=True))
            for rank in range(1, ranks):
                found = synk.get_value(rank, variables)
                for other, of_var in zip(found, values, strict=True):
                    assert_same(other, of_var[rank])


def test_one_variable_gives_one_result_and_a_list_a_list(ranks):
    a, b = pytensor.shared(np.ones(2)), pytensor.shared(1.0)
    assert_same(synk.reduce(a, "sum"), np.full(2, float(ranks)))
    assert isinstance(synk.reduce([a], "max"), list)
    assert synk.all_reduce([a, b], "sum") is None
    assert synk.get_value(0, [b]) == [ranks]
    assert synk.get_shapes(b) == [()] * ranks
    assert synk.get_shapes([a, b]) == [[(2,)] * ranks, [()] * ranks]
    assert synk.get_lengths(a) == [2] * ranks
    assert synk.get_lengths([a]) == [[2] * ranks]
    assert synk.gather(b).shape == (ranks,)
    assert isinstance(synk.gather([a, b]), list)
    assert isinstance(synk.all_gather([a]), list)


def test_nothing_to_do_is_no_error(ranks):
    assert synk.all_reduce([]) is None
    assert synk.reduce([]) == synk.gather([]) == synk.all_gather([]) == []
    assert synk.get_value(0, []) == synk.get_shapes([]) == synk.get_lengths([]) == []
    synk.broadcast([])
    synk.broadcast([], [])
    synk.set_value(0, [], [])


def test_dtypes_and_shapes_are_reduced_together_in_one_list(ranks):
    variables = [
        shared_of(dtype, shape) for dtype in DTYPES for shape in ((3,), (), (2, 9))
    ]
    shapes = [np.zeros(0), *variables][1:]
    by_rank = [
        [
            values_of(var.type.dtype, shape, rank)
            for var, shape in zip(
                variables, [(3,), (), (2, 9)] * len(DTYPES), strict=True
            )
        ]
        for rank in range(ranks)
    ]
    assert len(shapes) == len(variables)
    for rank, values in enumerate(by_rank):
        synk.set_value(rank, variables, values)
    synk.all_reduce(variables, "sum")
    for i, var in enumerate(variables):
        right = reduced("sum", [values[i] for values in by_rank])
        for rank in range(ranks):
            assert_same(synk.get_value(rank, var), right, 4, 1)


def test_integers_wrap_and_averages_round_to_the_nearest(ranks):
    a = pytensor.shared(np.int8([100, -100, 7]))
    synk.all_reduce(a, "sum")
    expected = (np.array([100, -100, 7]) * ranks).astype("int8")
    assert_same(a.get_value(), expected)
    b = pytensor.shared(np.zeros(3, "int32"))
    synk.scatter(b, np.arange(3 * ranks, dtype="int32") ** 2)
    synk.all_reduce(b, "avg")
    rows = np.arange(3 * ranks).reshape(ranks, 3) ** 2
    assert_same(b.get_value(), np.rint(rows.mean(axis=0)).astype("int32"))


def test_nan_wins_a_comparison_as_in_numpy(ranks):
    for dtype in ("float16", "float32", "float64"):
        a = pytensor.shared(np.zeros(3, dtype))
        for op in ("min", "max"):
            for who in range(ranks):
                synk.broadcast(a, np.ones(3, dtype))
                synk.set_value(who, a, np.array([np.nan, np.inf, -np.inf], dtype))
                values = synk.gather(a)
                synk.all_reduce(a, op)
                right = {"min": np.min, "max": np.max}[op](values, axis=0)
                for rank in range(ranks):
                    assert_same(synk.get_value(rank, a), right)


def test_the_same_values_give_the_same_bits(ranks):
    a = pytensor.shared(np.zeros(3000, "float32"))
    results = []
    for _ in range(3):
        give([a], ranks, "float32", [(3000,)], 7)
        synk.all_reduce(a, "avg")
        results += [synk.get_value(rank, a).tobytes() for rank in range(ranks)]
    assert len(set(results)) == 1


def test_a_variable_is_reduced_again_after_every_kind_of_change(ranks):
    a = pytensor.shared(np.zeros(3))
    x = pt.vector("x")
    one_more = synk.function([], updates={a: pt.inc_subtensor(a[0], 1)})
    anew = synk.function([x], updates={a: a * 2 + x.sum() * 0}, mode=PY, local=True)
    right = np.zeros(3)
    for _ in range(2):
        one_more()
        right = (right + [1, 0, 0]) * ranks
        synk.all_reduce(a, "sum")
        anew(np.zeros(ranks))
        right = right * 2 * ranks
        synk.all_reduce(a, "sum")
        a.set_value(a.get_value() + 5)  # all ranks get it
        right = (right + 5) * ranks
        synk.all_reduce(a, "sum")
        synk.set_value(ranks - 1, a, np.ones(3))
        right = right * (ranks - 1) + 1
        synk.all_reduce(a, "sum")
        for rank in range(ranks):
            assert_same(synk.get_value(rank, a), right)


def test_a_variable_can_change_its_shape_between_reductions(ranks):
    a = pytensor.shared(np.zeros((1, 1)))
    for shape in ((2, 3), (3, 2), (0, 2), (40, 50), (2, 3)):
        synk.broadcast(a, np.ones(shape))
        synk.all_reduce(a, "sum")
        for rank in range(ranks):
            assert_same(synk.get_value(rank, a), np.full(shape, float(ranks)))


# -- weights ---------------------------------------------------------------------------


def test_avg_weighs_a_rank_by_the_rows_behind_its_value(ranks):
    x = pt.matrix("x")
    mean, total = pytensor.shared(np.zeros(3)), pytensor.shared(np.zeros(3))
    updates = {mean: x.mean(axis=0), total: x.sum(axis=0)}
    f = synk.function([x], updates=updates, mode=PY, local=True)
    value = values_of("float64", (4 * ranks, 3), 1)
    for rows in (2 * ranks + 1, 1, max(1, ranks - 1), ranks, 4 * ranks):
        for slices in (1, 3):
            f(value, batch=rows, num_slices=slices)
            synk.all_reduce(mean)
            for rank in range(ranks):
                right = value[:rows].mean(axis=0)
                assert_same(synk.get_value(rank, mean), right, 16)
    f(value, batch=ranks)
    synk.all_reduce(total, "sum")
    assert_same(total.get_value(), value[:ranks].sum(axis=0), 16)


def test_a_local_function_makes_a_variable_that_was_of_all_rows_a_ranks_own(two_ranks):
    x = pt.vector("x")
    total = pytensor.shared(0.0)
    of_all = synk.function([x], updates={total: x.sum()}, mode=PY)
    own = synk.function([x], updates={total: x.sum()}, mode=PY, local=True)
    for _ in range(2):
        of_all([1.0, 2.0, 4.0])
        with pytest.raises(synk.SplitError, match="count it 2 times"):
            synk.all_reduce(total, "sum")
        own([1.0, 2.0, 4.0])
        synk.all_reduce(total, "sum")
        assert synk.get_value(0, total) == synk.get_value(1, total) == 7


def test_a_list_of_values_from_different_rows_is_weighed_one_by_one(ranks):
    x = pt.vector("x")
    a, b, c = (pytensor.shared(0.0, name=name) for name in "abc")
    f = synk.function([x], updates={a: x.mean()}, mode=PY, local=True)
    g = synk.function([x], updates={b: x.mean()}, mode=PY, local=True)
    X, Y = np.arange(2.0 * ranks + 1) ** 2, np.arange(1.0) + 3
    f(X)
    g(Y)
    for rank in range(ranks):
        synk.set_value(rank, c, rank**2)
    synk.all_reduce([a, b, c])
    squares = np.arange(float(ranks)) ** 2
    for rank in range(ranks):
        for var, right in ((a, X.mean()), (b, Y.mean()), (c, squares.mean())):
            assert_same(synk.get_value(rank, var), right, 16)


def test_the_weight_is_that_of_the_last_to_write(ranks):
    x = pt.vector("x")
    a = pytensor.shared(0.0)
    from_rows = synk.function([x], updates={a: x.mean()}, mode=PY, local=True)
    from_none = synk.function([], updates={a: a * 2}, mode=PY, local=True)
    X = np.arange(2.0 * ranks + 1)
    means = [part.mean() for part in cut(X, ranks)]

    def average():
        synk.all_reduce(a)
        return synk.get_value(ranks - 1, a)

    from_rows(X)
    assert_same(average(), X.mean(), 8)
    assert_same(average(), X.mean(), 8)  # all hold the average: it stays
    from_rows(X)
    from_none()  # of what these rows gave
    assert_same(average(), 2 * X.mean(), 8)
    from_rows(X)
    for rank in range(ranks):
        synk.set_value(rank, a, rank)
    assert_same(average(), np.mean(np.arange(ranks)), 8)
    for who in {0, ranks - 1}:  # one value that no rows are behind: all count alike
        from_rows(X)
        synk.set_value(who, a, -3.0)
        values = [-3.0 if rank == who else means[rank] for rank in range(ranks)]
        assert_same(average(), np.mean(values), 8)
    from_rows(X)
    synk.scatter(s := pytensor.shared(np.zeros(0)), X)  # another variable's business
    assert_same(average(), X.mean(), 8)
    assert synk.get_lengths(s) == [len(part) for part in cut(X, ranks)]


def test_reduce_not_in_place_keeps_the_weights(ranks):
    x = pt.vector("x")
    a = pytensor.shared(0.0)
    f = synk.function([x], updates={a: x.mean()}, mode=PY, local=True)
    X = np.arange(2.0 * ranks + 1) ** 2
    f(X)
    for _ in range(2):
        assert_same(synk.reduce(a, in_place=False), X.mean(), 8)
    synk.all_reduce(a)
    assert_same(synk.get_value(ranks - 1, a), X.mean(), 8)


def test_a_nan_of_a_rank_without_rows_is_left_out(ranks):
    """Such a rank keeps its old value, whatever that is."""
    x = pt.vector("x")
    a = pytensor.shared(np.nan)
    f = synk.function([x], updates={a: x.mean()}, mode=PY, local=True)
    f([4.0])
    synk.all_reduce(a)
    for rank in range(ranks):
        assert synk.get_value(rank, a) == 4
