"""Collectives on shared variables: every op, dtype, shape and number of ranks."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytensor
import pytensor.tensor as pt
import pytest
from reference import (
    COMPLEX,
    DTYPES,
    KINDS,
    PY,
    assert_same,
    cut,
    ops_of,
    reduced,
    refused,
    values_of,
)

import synk
from synk.session import SESSION

SHAPES = [
    (),
    (4,),
    (0,),
    (3, 2),
    (5, 5),
    (2, 0, 3),
    (2, 3, 2),
    (1, 2, 3, 2),
    (2, 1, 3, 1, 2),
    (1500,),
]
"""0 to 5 dimensions; as many rows as ranks, fewer, more; more than a kernel's block."""


def shared_of(dtype: str, shape: tuple, name: str | None = None):
    """Return a shared variable of a dtype and of as many dimensions as `shape`."""
    return pytensor.shared(np.zeros((1,) * len(shape), dtype), name=name)


def give(variables, ranks: int, dtype: str, shapes, seed: int) -> list[list]:
    """Give every rank values of its own; return them by variable and rank."""
    values = [
        [values_of(dtype, shape, seed, i, rank) for rank in range(ranks)]
        for i, shape in enumerate(shapes)
    ]
    for rank in range(ranks):
        synk.set_value(rank, variables, [of_var[rank] for of_var in values])
    return values


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
            for var, of_var in zip(variables, values, strict=True):
                right = right_reduction(op, of_var)
                for rank in range(ranks):
                    what = f"{op} of {dtype} {right.shape} on rank {rank}, {turn}"
                    check(synk.get_value(rank, var), right, dtype, what)


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
                    assert_same(synk.get_value(rank, var), of_var[rank])


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
    in_place = synk.function([], updates={a: pt.inc_subtensor(a[0], 1)})
    anew = synk.function([x], updates={a: a * 2 + x.sum() * 0}, mode=PY)
    right = np.zeros(3)
    for _ in range(2):
        in_place()
        right = (right + [1, 0, 0]) * ranks
        synk.all_reduce(a, "sum")
        anew(np.zeros(ranks))
        right = right * 2 * ranks
        synk.all_reduce(a, "sum")
        a.set_value(a.get_value() + 5)
        right = right * ranks + 5
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
    f = synk.function(
        [x], updates={mean: x.mean(axis=0), total: x.sum(axis=0)}, mode=PY
    )
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


def test_a_list_of_values_from_different_rows_is_weighed_one_by_one(ranks):
    x = pt.vector("x")
    a, b, c = (pytensor.shared(0.0, name=name) for name in "abc")
    f = synk.function([x], updates={a: x.mean()}, mode=PY)
    g = synk.function([x], updates={b: x.mean()}, mode=PY)
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
    from_rows = synk.function([x], updates={a: x.mean()}, mode=PY)
    from_none = synk.function([], updates={a: a * 2}, mode=PY)
    X = np.arange(2.0 * ranks + 1)
    means = [part.mean() for part in cut(X, ranks)]

    def average():
        synk.all_reduce(a)
        return synk.get_value(ranks - 1, a)

    from_rows(X)
    assert_same(average(), X.mean(), 8)
    assert_same(average(), X.mean(), 8)  # all hold the average: it stays
    from_rows(X)
    from_none()
    assert_same(average(), 2 * np.mean(means), 8)
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
    f = synk.function([x], updates={a: x.mean()}, mode=PY)
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
    f = synk.function([x], updates={a: x.mean()}, mode=PY)
    f([4.0])
    synk.all_reduce(a)
    for rank in range(ranks):
        assert synk.get_value(rank, a) == 4


# -- broadcast, scatter, gather -------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_every_dtype_and_shape_arrive_exactly(ranks, kind):
    for dtype in KINDS[kind]:
        variables = [shared_of(dtype, shape) for shape in SHAPES]
        values = [values_of(dtype, shape, i) for i, shape in enumerate(SHAPES)]
        synk.broadcast(variables, values)
        for rank in range(ranks):
            got = synk.get_value(rank, variables)
            for one, right in zip(got, values, strict=True):
                assert_same(one, right)
        for var, value in zip(variables, values, strict=True):
            assert_same(synk.gather(var), np.stack([value] * ranks))
            if value.ndim:
                rows = np.concatenate([value] * ranks)
                assert_same(synk.gather(var, nd_up=0), rows)
                assert_same(synk.all_gather(var), rows)
                synk.scatter(var, rows)
                for rank, part in enumerate(cut(rows, ranks)):
                    assert_same(synk.get_value(rank, var), part)


def test_broadcast_without_values_sends_the_masters(ranks):
    a, b = pytensor.shared(np.arange(3.0)), pytensor.shared(np.int8(4))
    synk.broadcast([a, b])
    a.set_value(np.arange(4.0))
    synk.set_value(ranks - 1, b, np.int8(5))
    b.set_value(np.int8(6))
    synk.broadcast([a, b])
    for rank in range(ranks):
        assert_same(synk.get_value(rank, a), np.arange(4.0))
        assert_same(synk.get_value(rank, b), np.int8(6))


def test_a_variable_starts_with_the_masters_value(ranks):
    a = pytensor.shared(np.arange(3.0))
    for rank in range(ranks):
        assert_same(synk.get_value(rank, a), np.arange(3.0))


VALUE = np.arange(14.0).reshape(7, 2)

WAYS = {
    "array": VALUE,
    "Fortran": np.asfortranarray(VALUE),
    "strided": np.repeat(VALUE, 2, axis=1)[:, ::2],
    "other byte order": VALUE.astype(">f8"),
    "narrower": VALUE.astype("float32"),
    "integers": VALUE.astype("int16"),
    "read-only": np.broadcast_to(VALUE, VALUE.shape),
    "list": VALUE.tolist(),
    "pandas": pd.DataFrame(VALUE),
}


def test_values_are_whatever_numpy_takes_or_data(ranks):
    a = pytensor.shared(np.zeros((1, 1)))
    ways = {
        **WAYS,
        "Data": synk.data(VALUE),
        "Data of float32": synk.data(VALUE.astype("float32")),
        "Data of int8": synk.data(VALUE.astype("int8")),
    }
    for way, value in ways.items():
        synk.broadcast(a, value)
        assert_same(synk.gather(a), np.stack([VALUE] * ranks), err_msg=way)
        synk.scatter(a, value)
        assert_same(synk.gather(a, nd_up=0), VALUE, err_msg=way)
        synk.scatter(a, value, batch=[5, 5, -1, 0])
        assert_same(synk.gather(a, nd_up=0), VALUE[[5, 5, -1, 0]], err_msg=way)
        for rank in range(ranks):
            synk.set_value(rank, a, value, batch=slice(rank, None))
            assert_same(synk.get_value(rank, a), VALUE[rank:], err_msg=way)
            synk.set_value(rank, a, value)
            assert_same(synk.get_value(rank, a), VALUE, err_msg=way)
            assert synk.get_value(rank, a).dtype == np.float64
        np.testing.assert_array_equal(np.asarray(value), VALUE)


def test_lists_of_values_may_mix_arrays_and_data(ranks):
    a, b, c = (pytensor.shared(np.zeros(1, "float32")) for _ in range(3))
    one, two = np.arange(5, dtype="float32"), np.arange(5, dtype="float32") + 5
    synk.broadcast([a, b, c], [one, synk.data(two), [1, 2]])
    for rank in range(ranks):
        for got, right in zip(
            synk.get_value(rank, [a, b, c]), (one, two, [1, 2]), strict=True
        ):
            assert_same(got, np.array(right, "float32"))
    synk.scatter([a, b], [synk.data(one), two], batch=slice(None, None, -1))
    assert_same(synk.gather(a, nd_up=0), one[::-1])
    assert_same(synk.gather(b, nd_up=0), two[::-1])
    synk.set_value(ranks - 1, [a, b], [two, synk.data(one)], batch=2)
    assert_same(synk.get_value(ranks - 1, a), two[:2])
    assert_same(synk.get_value(ranks - 1, b), one[:2])


@pytest.mark.parametrize(
    "batch",
    [None, 4, slice(1, 6, 2), slice(None, None, -1), [6, 0, 0], np.arange(7) > 4, 0],
    ids=str,
)
def test_scatter_cuts_a_batch_as_a_function_does(ranks, batch):
    a = pytensor.shared(np.zeros((0, 2)))
    own = pytensor.shared(np.zeros((0, 2)))
    x = pt.matrix("x")
    f = synk.function([x], updates={own: x}, mode=PY)
    synk.scatter(a, VALUE, batch=batch)
    f(VALUE, batch=batch)
    index = slice(batch) if isinstance(batch, int) else batch
    rows = VALUE if batch is None else VALUE[index]
    assert synk.get_lengths(a) == [len(part) for part in cut(rows, ranks)]
    for rank, part in enumerate(cut(rows, ranks)):
        assert_same(synk.get_value(rank, a), part)
        if len(part):
            assert_same(synk.get_value(rank, own), part)


def test_gather_concatenates_differing_lengths_exactly(ranks):
    a = pytensor.shared(np.zeros((1, 2)))
    parts = [values_of("float64", (rank, 2), rank) for rank in range(ranks)]
    for rank, part in enumerate(parts):
        synk.set_value(rank, a, part)
    rows = np.concatenate(parts)
    assert synk.get_lengths(a) == list(range(ranks))
    assert_same(synk.gather(a, nd_up=0), rows)
    assert synk.get_lengths(a) == list(range(ranks))  # nothing was changed
    assert_same(synk.all_gather(a), rows)
    for rank in range(ranks):
        assert_same(synk.get_value(rank, a), rows)


def test_what_is_returned_is_a_copy(ranks):
    a = pytensor.shared(np.zeros(3))
    for take in (
        lambda: synk.get_value(0, a),
        lambda: synk.get_value(ranks - 1, a),
        lambda: synk.gather(a),
        lambda: synk.gather(a, nd_up=0),
        lambda: synk.reduce(a, "sum", in_place=False),
    ):
        take()[...] = 5
        for rank in range(ranks):
            assert_same(synk.get_value(rank, a), np.zeros(3))
    synk.reduce(a, "sum")[...] = 5
    synk.all_gather(a)[...] = 5
    for rank in range(ranks):
        assert_same(synk.get_value(rank, a), np.zeros(3 * ranks))


def test_results_of_one_call_survive_the_next(ranks):
    a = pytensor.shared(np.zeros(3))
    give([a], ranks, "float64", [(3,)], 1)
    kept = [synk.get_value(rank, a) for rank in range(ranks)]
    stacked, total = synk.gather(a), synk.reduce(a, "sum", in_place=False)
    copies = [value.copy() for value in (*kept, stacked, total)]
    synk.broadcast(a, np.full(3, 9.0))
    synk.gather(a)
    synk.all_reduce(a)
    for value, before in zip((*kept, stacked, total), copies, strict=True):
        assert_same(value, before)


def test_values_that_are_given_are_copied(ranks):
    a = pytensor.shared(np.zeros(3))
    for value in (np.arange(3.0), synk.data(np.arange(3.0))):
        synk.broadcast(a, value)
        value[:] = -1
        for rank in range(ranks):
            assert_same(synk.get_value(rank, a), np.arange(3.0))
        synk.set_value(0, a, value)
        value[:] = -2
        assert_same(synk.get_value(0, a), np.full(3, -1.0))


def test_a_fixed_length_is_that_of_each_rank(ranks):
    a = pytensor.shared(np.zeros((2, 3)), shape=(2, 3))
    rows = np.arange(6.0 * ranks).reshape(-1, 3)
    synk.scatter(a, rows)
    for rank, part in enumerate(cut(rows, ranks)):
        assert_same(synk.get_value(rank, a), part)
    if ranks > 1:
        with refused(ValueError, "fixed length"):
            synk.scatter(a, rows[1:])
        with refused(TypeError, "shape"):
            synk.broadcast(a, rows)
        with refused((TypeError, ValueError), "fixed length|shape"):
            synk.all_gather(a)


def test_variables_outlive_sessions_with_the_masters_value():
    a = pytensor.shared(np.ones(3))
    for n in (3, 2, 1, 5):
        before = a.get_value()
        with synk.session(n):
            synk.all_reduce(a, "sum")
            assert_same(synk.get_value(n - 1, a), before * n)
            synk.set_value(n - 1, a, before * 0 if n > 1 else before)
        assert_same(a.get_value(), before * n)
    assert_same(a.get_value(), np.full(3, 30.0))


# -- shapes that differ ----------------------------------------------------------------


def _uneven(ranks):
    a = pytensor.shared(np.zeros((1, 2)), name="a")
    parts = [np.full((rank + 1, 2), float(rank)) for rank in range(ranks)]
    for rank, part in enumerate(parts):
        synk.set_value(rank, a, part)
    return a, parts


@pytest.mark.parametrize("homed", [False, True])
def test_a_reduction_of_differing_shapes_names_every_ranks_shape(homed):
    with synk.session(3) as ranks:
        b = pytensor.shared(np.ones(4), name="b")
        a = pytensor.shared(np.zeros((1, 2)), name="a")
        if homed:
            synk.all_reduce([a, b])
        parts = [np.full((rank + 1, 2), float(rank)) for rank in range(ranks)]
        for rank, part in enumerate(parts):
            synk.set_value(rank, a, part)
        for reduction in (synk.all_reduce, synk.reduce):
            for op in ("avg", "max"):
                with pytest.raises(synk.ShapeMismatch) as caught:
                    reduction([b, a], op)
                text = str(caught.value)
                assert "reduce a" in text or "'a'" in text or f"{op!r} a" in text
                for rank in range(ranks):
                    assert f"rank {rank} ({rank + 1}, 2)" in text
        for rank, part in enumerate(parts):  # nobody's value was touched
            assert_same(synk.get_value(rank, a), part)
            assert_same(synk.get_value(rank, b), np.ones(4))
        synk.broadcast(a, np.ones((5, 2)))
        synk.all_reduce([a, b], "sum")
        for rank in range(ranks):
            assert_same(synk.get_value(rank, a), np.full((5, 2), 3.0))
            assert_same(synk.get_value(rank, b), np.full(4, 3.0))


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_one_rank_of_another_shape_is_named_whichever_it_is(odd):
    with synk.session(3):
        a = pytensor.shared(np.zeros(4), name="a")
        synk.all_reduce(a)
        synk.set_value(odd, a, np.zeros(5))
        with pytest.raises(ValueError, match=rf"rank {odd} \(5,\)") as caught:
            synk.all_reduce(a)
        assert str(caught.value).count("(4,)") == 2


def test_stacking_differing_shapes_names_them_and_points_to_nd_up():
    with synk.session(2):
        a, _ = _uneven(2)
        with pytest.raises(synk.ShapeMismatch, match=r"1 \(2, 2\); try nd_up=0"):
            synk.gather(a)
        synk.set_value(1, a, np.zeros((1, 3)))
        for collect in (lambda: synk.gather(a, nd_up=0), lambda: synk.all_gather(a)):
            with pytest.raises(
                synk.ShapeMismatch, match=r"0 \(1, 2\), rank 1 \(1, 3\)"
            ):
                collect()
        assert synk.get_shapes(a) == [(1, 2), (1, 3)]


# -- bad calls -------------------------------------------------------------------------


def _calls_with_bad_variables():
    value = np.zeros(3)
    return {
        "all_reduce": synk.all_reduce,
        "reduce": synk.reduce,
        "gather": synk.gather,
        "all_gather": synk.all_gather,
        "get_shapes": synk.get_shapes,
        "get_lengths": synk.get_lengths,
        "get_value": lambda v: synk.get_value(0, v),
        "broadcast": synk.broadcast,
        "scatter": lambda v: synk.scatter(v, [value, value]),
        "set_value": lambda v: synk.set_value(1, v, [value, value]),
    }


@pytest.mark.parametrize("seen", [False, True])
def test_what_is_no_list_of_shared_variables_is_refused(two_ranks, seen):
    a = pytensor.shared(np.zeros(3), name="a")
    if seen:
        synk.broadcast(a)
    for call in _calls_with_bad_variables().values():
        with refused(TypeError, "shared variables, got"):
            call([a, pt.vector("x")])
        with refused(TypeError, "shared variables, got"):
            call([a, np.zeros(3)])
        with refused(ValueError, "twice"):
            call([a, a])
        with refused(TypeError, "int"):
            call(3)
    assert_same(synk.gather(a), np.zeros((2, 3)))


@pytest.mark.parametrize("seen", [False, True])
def test_bad_arguments_are_refused_before_any_rank_is_told(two_ranks, seen):
    a, c = pytensor.shared(np.zeros(3), name="a"), pytensor.shared(0.0, name="c")
    flags = pytensor.shared(np.zeros(3, bool), name="flags")
    z = pytensor.shared(np.zeros(3, complex), name="z")
    rng = pytensor.shared(np.random.default_rng(0), name="rng")
    if seen:
        synk.broadcast([a, c, flags, z, rng])
    four = np.zeros(4)
    for reduction in (synk.all_reduce, synk.reduce):
        for op in ("mean", None, "gather", 3):
            with refused(ValueError, "must be one of 'avg', 'sum'"):
                reduction(a, op)
        with refused(TypeError, "flags.*no 'avg' of bools"):
            reduction([a, flags])
        with refused(TypeError, "z: complex numbers .* have no 'max'"):
            reduction([a, z], "max")
        with refused(TypeError, "rng.*not a tensor"):
            reduction(rng)
    for rank in (2, -1, 100):
        with refused(IndexError, f"no rank {rank}: ranks are 0 to 1"):
            synk.get_value(rank, a)
        with refused(IndexError, f"no rank {rank}"):
            synk.set_value(rank, a, four)
    for rank in (0.5, "0", None):
        with refused(TypeError, "integer"):
            synk.get_value(rank, a)
    for store in (
        lambda *args: synk.set_value(1, *args),
        synk.broadcast,
        synk.scatter,
    ):
        with refused(TypeError, "shared variable a .*imensions"):
            store(a, np.zeros((2, 2)))
        with refused(TypeError, "shared variable a"):
            store(a, four.astype(complex))
        with refused(TypeError, "shared variable a"):
            store(a, ["x", "y"])
        with refused(ValueError, "2 values for 1 variables"):
            store([a], [four, four])
        with refused(ValueError, "holds nothing"):
            store(a, synk.data(dtype="float64", ndim=1))
    with refused((TypeError, ValueError), "no rows|dimensions"):
        synk.scatter(c, 1.0)
    with refused(ValueError, "different lengths.*'a': 4.*'z': 3"):
        synk.scatter([a, z], [four, np.zeros(3)])
    for call in (
        lambda batch: synk.scatter(a, four, batch=batch),
        lambda batch: synk.set_value(1, a, four, batch=batch),
    ):
        with refused(IndexError, "row 4, out of range for 4"):
            call([4])
        with refused(IndexError, "row -5"):
            call([-5])
        with refused(IndexError, "first 5 of 4"):
            call(5)
        with refused(IndexError, "mask of 3"):
            call([True] * 3)
    with refused((TypeError, ValueError, IndexError), "."):
        synk.set_value(1, c, 1.0, batch=[0])
    with refused(ValueError, "nd_up must be 0 or 1, got 2"):
        synk.gather(a, nd_up=2)
    with refused(ValueError, "c has no (rows|dimensions)"):
        synk.gather(c, nd_up=0)
    with refused(ValueError, "c has no (rows|dimensions)"):
        synk.all_gather(c)
    with refused(ValueError, "c has no rows"):
        synk.get_lengths(c)
    with refused(TypeError, "rng.*not a tensor"):
        synk.gather(rng)
    synk.all_reduce([a, c], "sum")
    assert_same(synk.get_value(1, a), np.zeros(3))


def test_a_collective_without_a_session_says_what_to_do():
    a = pytensor.shared(np.zeros(3))
    for call in (
        lambda: synk.all_reduce(a),
        lambda: synk.reduce(a),
        lambda: synk.gather(a),
        lambda: synk.all_gather(a),
        lambda: synk.broadcast(a),
        lambda: synk.scatter(a, np.zeros(3)),
        lambda: synk.set_value(0, a, np.zeros(3)),
        lambda: synk.get_value(0, a),
        lambda: synk.get_shapes(a),
        lambda: synk.get_lengths(a),
    ):
        with pytest.raises(synk.StateError, match=r"synk\.fork\(\)"):
            call()
    with synk.session(2):
        synk.all_reduce(a)
    with pytest.raises(synk.StateError, match="closed"):
        synk.all_reduce(a)


def test_no_collective_warns(two_ranks):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for dtype in DTYPES:
            a = pytensor.shared(values_of(dtype, (5,), 1))
            for op in ops_of(dtype):
                if dtype not in COMPLEX or op != "prod":
                    synk.all_reduce(a, op)
            synk.gather(a)
            synk.broadcast(a)
    assert SESSION.state == "running"
