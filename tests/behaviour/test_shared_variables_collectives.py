"""Collectives: every op, dtype, shape and number of ranks; weights; what is refused."""

import functools

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from on_ranks import assert_on_ranks, by_rank, one_and_three_ranks, three_ranks
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
from samples import WAYS

import synk

pytestmark = [  # no collective warns
    pytest.mark.filterwarnings("error"),
    pytest.mark.filterwarnings("ignore::synk.OversubscriptionWarning"),
]

# -- values that move ------------------------------------------------------------------


@one_and_three_ranks
def test_values_of_every_dtype_and_shape_arrive_exactly(ranks):
    for dtype in DTYPES:
        variables = [shared_of(dtype, shape) for shape in SHAPES]
        values = [values_of(dtype, shape, i) for i, shape in enumerate(SHAPES)]
        synk.broadcast(variables, values)
        for got in by_rank(variables):
            for one, right in zip(got, values, strict=True):
                assert_same(one, right, err_msg=dtype)
        stacked = synk.gather(variables)
        for got, value in zip(stacked, values, strict=True):
            assert_same(got, np.stack([value] * ranks), err_msg=dtype)
        variables, values = variables[1:], values[1:]  # what has rows
        wholes = [np.concatenate([value] * ranks) for value in values]
        for collect in (lambda v: synk.gather(v, nd_up=0), synk.all_gather):
            for got, whole in zip(collect(variables), wholes, strict=True):
                assert_same(got, whole, err_msg=dtype)
        for var, whole in zip(variables, wholes, strict=True):
            synk.scatter(var, whole)
            assert_on_ranks(var, cut(whole, ranks), err_msg=dtype)


VALUE = np.arange(14.0).reshape(7, 2)


@one_and_three_ranks
def test_values_are_whatever_numpy_takes_or_data(ranks):
    a, b = (pytensor.shared(np.zeros((1, 1))) for _ in "ab")
    ways = WAYS | {"Data of int8": lambda a: synk.data(a.astype("int8"))}
    for way, make in ways.items():
        value = make(VALUE)
        synk.broadcast([a, b], [value, synk.data(VALUE)])
        for stacked in synk.gather([a, b]):
            assert_same(stacked, np.stack([VALUE] * ranks), err_msg=way)
        synk.scatter(a, value, batch=[5, 5, -1, 0])
        assert_same(synk.gather(a, nd_up=0), VALUE[[5, 5, -1, 0]], err_msg=way)
        for rank in range(ranks):
            synk.set_value(rank, a, value, batch=slice(rank, None))
            assert_same(synk.get_value(rank, a), VALUE[rank:], err_msg=way)
        np.testing.assert_array_equal(np.asarray(value), VALUE)


@one_and_three_ranks
def test_scatter_cuts_a_batch_as_a_function_does(ranks):
    a, own = (pytensor.shared(np.zeros((0, 2))) for _ in range(2))
    x = pt.matrix("x")
    f = synk.function([x], updates={own: x}, mode=PY, local=True)
    reverse, mask = slice(None, None, -1), np.arange(7) > 4
    for batch in (None, 4, slice(1, 6, 2), reverse, [6, 0, 0], mask, 0):
        synk.scatter(a, VALUE, batch=batch)
        f(VALUE, batch=batch)
        index = slice(batch) if isinstance(batch, int) else batch
        rows = VALUE if batch is None else VALUE[index]
        parts = cut(rows, ranks)
        assert synk.get_lengths(a) == [len(part) for part in parts]
        assert_on_ranks(a, parts)
        for part, of_rank in zip(parts, by_rank(own), strict=True):
            if len(part):
                assert_same(of_rank, part)


@one_and_three_ranks
def test_gather_concatenates_differing_lengths_exactly(ranks):
    a = pytensor.shared(np.zeros((1, 2)))
    parts = [values_of("float64", (rank, 2), rank) for rank in range(ranks)]
    for rank, part in enumerate(parts):
        synk.set_value(rank, a, part)
    rows = np.concatenate(parts)
    assert_same(synk.gather(a, nd_up=0), rows)
    assert synk.get_lengths(a) == list(range(ranks))  # nothing was changed
    assert_same(synk.all_gather(a), rows)
    assert_on_ranks(a, rows)


@one_and_three_ranks
def test_values_that_are_given_or_returned_are_copies(ranks):
    a = pytensor.shared(np.zeros(3))
    for value in (np.arange(3.0), synk.data(np.arange(3.0))):
        synk.broadcast(a, value)
        value[:] = -1
        assert_on_ranks(a, np.arange(3.0))
        synk.set_value(0, a, value)
        value[:] = -2
        assert_same(synk.get_value(0, a), np.full(3, -1.0))
    synk.broadcast(a, np.zeros(3))
    takes = [
        lambda: synk.get_value(0, a),
        lambda: synk.get_value(ranks - 1, a),
        lambda: synk.gather(a),
        lambda: synk.gather(a, nd_up=0),
        lambda: synk.reduce(a, "sum", in_place=False),
        lambda: synk.reduce(a, "sum"),
        lambda: synk.all_gather(a),
    ]
    taken = []
    for take in takes:
        taken.append(take())
        taken[-1][...] = len(taken)
        assert not np.concatenate(by_rank(a)).any()
    # Nor does a later call write to what an earlier one has returned.
    assert [np.unique(value).tolist() for value in taken] == [
        [i] for i in range(1, 1 + len(taken))
    ]


@one_and_three_ranks
def test_a_fixed_length_is_that_of_each_rank(ranks):
    a = pytensor.shared(np.zeros((2, 3)), shape=(2, 3))
    rows = np.arange(6.0 * ranks).reshape(-1, 3)
    synk.scatter(a, rows)
    assert_on_ranks(a, cut(rows, ranks))
    if ranks > 1:
        with pytest.raises(ValueError, match="fixed length"):
            synk.scatter(a, rows[1:])
        with pytest.raises(TypeError, match="shape"):
            synk.broadcast(a, rows)
        with pytest.raises((TypeError, ValueError), match=r"fixed length|shape"):
            synk.all_gather(a)
        assert_on_ranks(a, cut(rows, ranks))


@one_and_three_ranks
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
    # Lists of nothing are no error.
    assert synk.all_reduce([]) is None
    assert synk.reduce([]) == synk.gather([]) == synk.all_gather([]) == []
    assert synk.get_value(0, []) == synk.get_shapes([]) == synk.get_lengths([]) == []
    synk.broadcast([], [])


# -- reductions ------------------------------------------------------------------------


def right_reduction(op: str, values) -> np.ndarray:
    """Return what a reduction stores: integers rounded to the nearest."""
    right = reduced(op, values)
    dtype = values[0].dtype
    if op == "avg" and dtype.kind in "iu":
        # The accumulator is a float64: 64-bit integers lose their last digits.
        return np.rint(right.astype("float64")).astype(dtype)
    return right


def check(got, right, what):
    """Compare; the averages of large integers as the float64 that they went through."""
    if right.dtype.kind in "iu" and what.startswith("avg"):
        assert got.dtype == right.dtype, what
        ulp = 4 * np.finfo("float64").eps * np.iinfo(right.dtype).max
        wrong = np.abs(got.astype(np.longdouble) - right.astype(np.longdouble))
        assert wrong.max(initial=0) <= max(ulp, 1), what
    else:
        assert_same(got, right, 4, 1, err_msg=what)


def check_all(found, rights, what):
    for got, right in zip(found, rights, strict=True):
        check(got, right, f"{what} {right.shape}")


SOME = KINDS | {"integers": ("int8", "uint16", "int32", "uint64")}
"""Dtypes of all widths and signs: numba takes 1.5 s for each, where none is cached."""


@pytest.mark.parametrize("ranks", [1, 2, 3], ids="{}ranks".format, indirect=True)
@pytest.mark.parametrize("kind", SOME)
def test_reductions_are_exact_for_every_op_dtype_and_shape(ranks, kind):
    """Two ranks' values are combined in a way of their own: one dtype of each kind."""
    for dtype in SOME[kind] if ranks != 2 else SOME[kind][1:2]:
        variables = [shared_of(dtype, shape) for shape in SHAPES]
        for seed, op in enumerate(ops_of(dtype)):
            check_reductions(variables, op, ranks, dtype, seed)


def check_reductions(variables, op, ranks, dtype, seed):
    what = f"{op} of {dtype}"
    values = give(variables, ranks, dtype, SHAPES, seed)
    rights = [right_reduction(op, of_var) for of_var in values]
    results = synk.reduce(variables, op, in_place=False)
    check_all(results, rights, what)
    for var, before in zip(variables, values, strict=True):
        assert_on_ranks(var, before, err_msg=f"{what}: it was not to be changed")
    synk.all_reduce(variables, op)
    for found in by_rank(variables):
        check_all(found, rights, what)
    check_all(results, rights, what)  # nobody has written to these meanwhile
    # Other lists than those that were reduced together first.
    values = give(variables, ranks, dtype, SHAPES, seed + 10)
    rights = [right_reduction(op, of_var) for of_var in values]
    check(synk.reduce(variables[2], op), rights[2], what)
    first, *others = by_rank(variables[2])
    check(first, rights[2], what)
    for got, right in zip(others, values[2][1:], strict=True):
        assert_same(got, right, err_msg=f"{what}: reduce changes rank 0 alone")
    mixed = [*variables[:2:-1], *variables[:2]]
    synk.all_reduce(mixed, op)
    for found in by_rank(mixed):
        check_all(found, [*rights[:2:-1], *rights[:2]], what)


@one_and_three_ranks
def test_integers_wrap_averages_round_and_nan_wins_as_in_numpy(ranks):
    a = pytensor.shared(np.int8([100, -100, 7]))
    synk.all_reduce(a, "sum")
    assert_on_ranks(a, (np.array([100, -100, 7]) * ranks).astype("int8"))
    b = pytensor.shared(np.zeros(3, "int32"))
    synk.scatter(b, np.arange(3 * ranks, dtype="int32") ** 2)
    synk.all_reduce(b, "avg")
    rows = np.arange(3 * ranks).reshape(ranks, 3) ** 2
    assert_on_ranks(b, np.rint(rows.mean(axis=0)).astype("int32"))
    for dtype in ("float16", "float32", "float64"):
        a = pytensor.shared(np.zeros(3, dtype))
        for op, right in (("min", np.min), ("max", np.max)):
            for who in range(ranks):
                synk.broadcast(a, np.ones(3, dtype))
                synk.set_value(who, a, np.array([np.nan, np.inf, -np.inf], dtype))
                values = synk.gather(a)
                synk.all_reduce(a, op)
                assert_on_ranks(a, right(values, axis=0))


# -- weights ---------------------------------------------------------------------------


@one_and_three_ranks
def test_avg_weighs_a_rank_by_the_rows_behind_its_value(ranks):
    x = pt.matrix("x")
    mean, total = pytensor.shared(np.zeros(3)), pytensor.shared(np.zeros(3))
    updates = {mean: x.mean(axis=0), total: x.sum(axis=0)}
    f = synk.function([x], updates=updates, mode=PY, local=True)
    value = values_of("float64", (4 * ranks, 3), 1)
    for rows in (2 * ranks + 1, 1, max(1, ranks - 1), 4 * ranks):
        for slices in (1, 3):
            f(value, batch=rows, num_slices=slices)
            synk.all_reduce(mean)
            assert_on_ranks(mean, value[:rows].mean(axis=0), 16)
    f(value, batch=ranks)
    synk.all_reduce(total, "sum")
    assert_on_ranks(total, value[:ranks].sum(axis=0), 16)


# -- shapes that differ ----------------------------------------------------------------


@pytest.mark.parametrize("reduced_before", [False, True])
@three_ranks
def test_a_reduction_of_differing_shapes_names_every_ranks_shape(ranks, reduced_before):
    b = pytensor.shared(np.ones(4), name="b")
    a = pytensor.shared(np.zeros((1, 2)), name="a")
    if reduced_before:
        synk.all_reduce([a, b])
    parts = [np.full((rank + 1, 2), float(rank)) for rank in range(ranks)]
    for rank, part in enumerate(parts):
        synk.set_value(rank, a, part)
    for reduction in (synk.all_reduce, synk.reduce):
        for op in ("avg", "max"):
            with pytest.raises(synk.ShapeMismatch, match=rf"{op!r} a\b") as caught:
                reduction([b, a], op)
            for rank in range(ranks):
                assert f"rank {rank} ({rank + 1}, 2)" in str(caught.value)
    assert_on_ranks(a, parts)  # nobody's value was touched
    assert_on_ranks(b, np.ones(4))
    synk.broadcast(a, np.ones((5, 2)))
    synk.all_reduce([a, b], "sum")
    assert_on_ranks(a, np.full((5, 2), 3.0))
    assert_on_ranks(b, np.full(4, 3.0))


def test_stacking_differing_shapes_names_them_and_points_to_nd_up(two_ranks):
    a = pytensor.shared(np.zeros((1, 2)), name="a")
    synk.set_value(1, a, np.zeros((2, 2)))
    with pytest.raises(synk.ShapeMismatch, match=r"1 \(2, 2\); try nd_up=0"):
        synk.gather(a)
    synk.set_value(1, a, np.zeros((1, 3)))
    for collect in (lambda: synk.gather(a, nd_up=0), lambda: synk.all_gather(a)):
        with pytest.raises(synk.ShapeMismatch, match=r"0 \(1, 2\), rank 1 \(1, 3\)"):
            collect()
    assert synk.get_shapes(a) == [(1, 2), (1, 3)]


# -- what is refused -------------------------------------------------------------------


@pytest.mark.parametrize("seen", [False, True])
def test_what_is_no_list_of_shared_variables_is_refused(two_ranks, seen):
    a, value = pytensor.shared(np.zeros(3), name="a"), np.zeros(3)
    if seen:
        synk.broadcast(a)
    for call in (
        *(synk.all_reduce, synk.reduce, synk.gather, synk.all_gather),
        *(synk.get_shapes, synk.get_lengths, synk.broadcast),
        functools.partial(synk.get_value, 0),
        lambda v: synk.scatter(v, [value, value]),
        lambda v: synk.set_value(1, v, [value, value]),
    ):
        for bad, error, match in (
            ([a, pt.vector("x")], TypeError, "shared variables, got"),
            ([a, np.zeros(3)], TypeError, "shared variables, got"),
            ([a, a], ValueError, "twice"),
            (3, TypeError, "int"),
        ):
            with pytest.raises(error, match=match):
                call(bad)
    assert_on_ranks(a, np.zeros(3))


@pytest.mark.parametrize("seen", [False, True])
def test_bad_arguments_are_refused_and_nothing_is_changed(two_ranks, seen):
    a, c = pytensor.shared(np.zeros(3), name="a"), pytensor.shared(0.0, name="c")
    flags = pytensor.shared(np.zeros(3, bool), name="flags")
    z = pytensor.shared(np.zeros(3, complex), name="z")
    rng = pytensor.shared(np.random.default_rng(0), name="rng")
    if seen:
        synk.broadcast([a, c, flags, z, rng])
    four = np.zeros(4)

    def refuses(error, match, call, *args, **options):
        with pytest.raises(error, match=match):
            call(*args, **options)

    for reduction in (synk.all_reduce, synk.reduce):
        for op in ("mean", None, "gather", 3):
            refuses(ValueError, "must be one of 'avg', 'sum'", reduction, a, op)
        refuses(TypeError, "flags.*no 'avg' of bools", reduction, [a, flags])
        refuses(TypeError, "z: complex numbers .* no 'max'", reduction, [a, z], "max")
        refuses(TypeError, "rng.*not a tensor", reduction, rng)
    for rank in (2, -1, 100):
        why = f"no rank {rank}: ranks are 0 to 1"
        refuses(IndexError, why, synk.get_value, rank, a)
        refuses(IndexError, f"no rank {rank}", synk.set_value, rank, a, four)
    for rank in (0.5, "0", None):
        refuses(TypeError, "integer", synk.get_value, rank, a)
    stores = functools.partial(synk.set_value, 1), synk.broadcast, synk.scatter
    for store in stores:
        refuses(TypeError, "variable a .*imensions", store, a, np.zeros((2, 2)))
        refuses(TypeError, "shared variable a", store, a, four.astype(complex))
        refuses(TypeError, "shared variable a", store, a, ["x", "y"])
        refuses(ValueError, "2 values for 1 variables", store, [a], [four, four])
        empty = synk.data(dtype="float64", ndim=1)
        refuses(ValueError, "holds nothing", store, a, empty)
    refuses((TypeError, ValueError), "no rows|dimensions", synk.scatter, c, 1.0)
    lengths = "different lengths.*'a': 4.*'z': 3"
    refuses(ValueError, lengths, synk.scatter, [a, z], [four, np.zeros(3)])
    for store in stores[::2]:
        for batch, match in (([4], "row 4, out of range for 4"), (5, "first 5 of 4")):
            refuses(IndexError, match, store, a, four, batch=batch)
    wrong = (TypeError, ValueError, IndexError)
    refuses(wrong, ".", synk.set_value, 1, c, 1.0, batch=[0])
    refuses(ValueError, "nd_up must be 0 or 1, got 2", synk.gather, a, nd_up=2)
    refuses(ValueError, "c has no (rows|dimensions)", synk.gather, c, nd_up=0)
    refuses(ValueError, "c has no (rows|dimensions)", synk.all_gather, c)
    refuses(ValueError, "c has no rows", synk.get_lengths, c)
    refuses(TypeError, "rng.*not a tensor", synk.gather, rng)
    synk.all_reduce([a, c], "sum")
    assert_on_ranks(a, np.zeros(3))
