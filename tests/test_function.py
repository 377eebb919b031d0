"""synk.function: outputs, inputs, updates and givens, against plain PyTensor."""

from __future__ import annotations

import functools
import gc
import subprocess
import sys
import warnings
import weakref

import numpy as np
import pandas as pd
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.sparse
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from reference import (
    COMPLEX,
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


def row_counts(n: int) -> list[int]:
    """Return numbers of rows: fewer than ranks, as many, uneven, many."""
    return sorted({1, max(1, n - 1), n, n + 1, 2 * n + 1, 23})


# -- outputs: op x dtype x rows -------------------------------------------------------


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
        assert_same(synk.get_value(rank, w), np.full(3, 0.0 if rank else 7.0))


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


def test_op_none_is_the_value_of_rank_0(ranks):
    x = pt.vector("x")
    w = pytensor.shared(0.0)
    f = synk.function([x], [(x, None), (w, None), w + 1, (x * w, None)], mode=PY)
    synk.broadcast(w, -1.0)
    synk.set_value(0, w, 5.0)
    value = np.arange(7.0)
    mine, own, shifted, product = f(value)
    assert_same(mine, cut(value, ranks)[0])
    assert own == 5
    assert shifted == 6
    assert_same(product, 5 * cut(value, ranks)[0])
    assert f.output_modes == [None, None, None, None]


def test_without_an_op_rows_are_averaged_and_constants_are_left(ranks):
    x, b = pt.vector("x"), pt.scalar("b")
    w = pytensor.shared(2.0)
    f = synk.function([x], [x.mean(), b * w, w], [b], mode=PY)
    assert f.output_modes == ["avg", None, None]
    mean, product, own = f(np.arange(11.0), 3.0)
    assert_same(mean, np.float64(5), ulps=4)
    assert (product, own) == (6, 2)


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
        for got, right in zip(
            f(synk.data(X), Y, batch=rows), plain(X[:rows], Y[:rows]), strict=True
        ):
            assert_same(got, right, ulps=32)


# -- inputs -------------------------------------------------------------------------


WAYS = {
    "C": np.ascontiguousarray,
    "Fortran": np.asfortranarray,
    "strided": lambda a: np.repeat(np.repeat(a, 2, axis=0), 3, axis=1)[::2, ::3],
    "reversed": lambda a: a[::-1].copy()[::-1],
    "other byte order": lambda a: a.astype(a.dtype.newbyteorder()),
    "list": lambda a: a.tolist(),
    "tuple of arrays": tuple,
    "pandas": pd.DataFrame,
    "Data": synk.data,
    "wider list of ints": lambda a: a.astype(int).tolist(),
}


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


WAYS["read-only"] = read_only


def test_any_array_like_is_an_input(ranks):
    x, b = pt.matrix("x"), pt.matrix("b")
    f = synk.function([x], [(x * 2, "gather"), (b + 1, None)], [b], mode=PY)
    value = np.arange(14.0).reshape(7, 2)
    for way, make in WAYS.items():
        given = make(value)
        doubled, shifted = f(given, given)
        assert_same(doubled, value * 2, err_msg=way)
        assert_same(shifted, value + 1, err_msg=way)
        doubled, _ = f(given, given, batch=[5, 0, -1])
        assert_same(doubled, value[[5, 0, -1]] * 2, err_msg=way)
        plain = f.as_theano(given, given)
        assert_same(plain[0], value * 2, err_msg=way)
        assert_same(plain[1], value + 1, err_msg=way)
        np.testing.assert_array_equal(np.asarray(given), value)


@pytest.mark.parametrize("way", ["Fortran", "strided", "read-only"])
def test_odd_arrays_are_inputs_of_numba_functions_too(two_ranks, way):
    x, b = pt.matrix("x"), pt.matrix("b")
    f = synk.function([x], [(x.sum(axis=0), "sum"), (b.sum(), "max")], [b])
    value = np.arange(10.0).reshape(5, 2)
    given = WAYS[way](value)
    total, constant = f(given, given)
    assert_same(total, value.sum(axis=0))
    assert constant == value.sum()
    assert_same(f.as_theano(given, given)[0], value.sum(axis=0))


def test_pandas_columns_are_inputs(ranks):
    table = pd.DataFrame({"a": np.arange(7), "b": np.arange(7) * 0.5, "c": 1})
    a, b = pt.lvector("a"), pt.vector("b")
    f = synk.function([a, b], (a * b, "gather"), mode=PY)
    right = np.arange(7) ** 2 * 0.5
    assert_same(f(table["a"], table["b"]), right)
    assert_same(f(table.a, table.b, batch=table["a"] % 2 == 0), right[::2])
    shuffled = table.sample(frac=1, random_state=1)
    assert_same(f(shuffled["a"], shuffled["b"]), right[shuffled.index])


@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_what_pytensor_accepts_and_refuses_is_the_same(two_ranks):
    values = [
        [1, 2],
        [1.5, 2],
        [True, False],
        np.array([1, 2], "int8"),
        np.array([1, 2], "int64"),
        np.array([1, 2], "uint64"),
        np.array([1, 2], "float16"),
        np.array([1, 2], "float32"),
        np.array([1, 2], "float64"),
        np.array([1, 2], "complex64"),
        np.array([1, 2], "bool"),
        np.array(["1", "2"]),
        np.array([1, 2], object),
        np.array([1, 2], "M8[s]"),
        np.array([[1, 2]], "float32"),
        1.5,
        "12",
    ]
    for dtype in ("float32", "float64", "int16", "bool"):
        x = pt.vector("x", dtype=dtype)
        for downcast in (None, True, False):
            plain = pytensor.function([x], x, mode=PY, allow_input_downcast=downcast)
            f = synk.function(
                [x], (x, "gather"), mode=PY, allow_input_downcast=downcast
            )
            for value in values:
                try:
                    right = plain(value)
                except Exception:
                    with pytest.raises(TypeError, match="input x"):
                        f(value)
                else:
                    assert_same(f(value), right, err_msg=f"{value!r} as {dtype}")


def test_inputs_are_not_changed_and_not_kept(ranks):
    x = pt.vector("x")
    w = pytensor.shared(np.zeros(5))
    n = len(cut(np.zeros(5), ranks)[0])
    f = synk.function([x], [(x, None)], updates={w: x})
    for value in (np.arange(5.0), synk.data(np.arange(5.0))):
        (own,) = f(value)
        value[:] = -1
        assert_same(own, np.arange(float(n)))
        assert_same(synk.get_value(0, w), np.arange(float(n)))
        (again,) = f(value)
        own[:] = 3
        assert_same(again, np.full(n, -1.0))
        assert_same(synk.get_value(0, w), np.full(n, -1.0))
        assert_same(np.asarray(value), np.full(5, -1.0))


def test_outputs_of_one_call_survive_the_next(ranks):
    x = pt.vector("x")
    outputs = [(x, "gather"), (x, None), (x.sum(), "sum"), (x * 1, "gather")]
    f = synk.function([x], outputs)
    first = f(synk.data(np.arange(7.0)), batch=[0, 1, 2, 3, 4, 5, 6])
    copies = [output.copy() for output in first]
    f(synk.data(np.full(7, 9.0)), batch=[6, 5, 4, 3, 2, 1, 0])
    for output, before in zip(first, copies, strict=True):
        assert_same(output, before)


def test_inputs_are_given_by_name_or_in_order(ranks):
    x, y, b = pt.vector("x"), pt.vector("y"), pt.scalar("b")
    f = synk.function([x, y], (x - b * y, "gather"), [b], mode=PY)
    X, Y = np.arange(7.0), np.arange(7.0) ** 2
    right = X - 2 * Y
    assert_same(f(X, Y, 2.0), right)
    assert_same(f(X, Y, b=2.0), right)
    assert_same(f(X, b=2.0, y=Y), right)
    assert_same(f(b=2.0, y=Y, x=X), right)
    assert_same(f(y=synk.data(Y), b=2, x=X, batch=slice(1, 4)), right[1:4])
    assert_same(f.as_theano(b=2.0, y=Y, x=X), right)


def test_broadcast_inputs_go_whole_to_every_rank(ranks):
    x = pt.vector("x")
    b, c = pt.matrix("b"), pt.scalar("c", dtype="int8")
    f = synk.function([x], [(x + c, "gather"), (b.sum(axis=0), "sum")], [b, c], mode=PY)
    value = np.arange(3.0 * 2).reshape(3, 2)
    for given in (value, synk.data(value), value.tolist()):
        rows, total = f(np.arange(7.0), given, 3)
        assert_same(rows, np.arange(7.0) + 3)
        assert_same(total, value.sum(axis=0) * min(ranks, 7))
    _, total = f(np.arange(7.0), np.zeros((0, 2)), synk.data(np.int8(1)))
    assert_same(total, np.zeros(2))
    alone = synk.function([], (b.sum(), "sum"), [b], mode=PY)
    assert alone(value) == value.sum() * ranks


def test_a_function_without_inputs_runs_on_every_rank(ranks):
    w = pytensor.shared(np.arange(2.0))
    f = synk.function([], [(w, "sum"), (w, "gather"), w.sum()], mode=PY)
    synk.scatter(w, np.arange(ranks * 2.0))
    total, rows, own = f()
    assert_same(total, np.arange(ranks * 2.0).reshape(ranks, 2).sum(axis=0))
    assert_same(rows, np.arange(ranks * 2.0))
    assert own == 1


def test_columns_with_a_fixed_second_dimension_are_inputs(two_ranks):
    x = pt.col("x")
    f = synk.function([x], (x * 2, "gather"), mode=PY)
    value = np.arange(3.0).reshape(3, 1)
    assert_same(f(value), value * 2)
    assert_same(f(synk.data(value)), value * 2)
    for wrong in (np.zeros((3, 2)), synk.data(np.zeros((3, 2)))):
        with pytest.raises(TypeError, match="input x"):
            f(wrong)


# -- updates and givens ----------------------------------------------------------------


def test_updates_act_on_every_rank_by_itself(ranks):
    x = pt.vector("x")
    total = pytensor.shared(0.0, name="total")
    calls = pytensor.shared(np.int64(0), name="calls")
    f = synk.function(
        [x], updates=[(total, total + x.sum()), (calls, calls + 1)], mode=PY
    )
    assert f.update_modes == ["avg", None]
    value = np.arange(1.0, 8.0)
    for times in (1, 2, 3):
        f(value)
        for rank, part in enumerate(cut(value, ranks)):
            assert synk.get_value(rank, total) == times * part.sum()
            assert synk.get_value(rank, calls) == times


def test_a_rank_without_rows_makes_only_the_updates_that_need_none(ranks):
    x, b = pt.vector("x"), pt.scalar("b")
    mean, calls, given, both = (pytensor.shared(-1.0) for _ in range(4))
    updates = {mean: x.mean(), calls: calls + 1, given: b * 2, both: b * x.sum()}
    f = synk.function([x], x.sum(), [b], updates=updates, mode=PY)
    for times in (1, 2):
        f([4.0], 3.0, num_slices=times)
        for rank in range(ranks):
            values = synk.get_value(rank, [mean, calls, given, both])
            if rank == 0:
                assert values == [4, times - 1, 6, 12]
            else:
                assert values == [-1, times - 1, 6, -1]


def test_updates_see_the_values_before_the_call(ranks):
    a, b, c = (pytensor.shared(float(i)) for i in (1, 2, 3))
    f = synk.function([], [a + 0, c + 0], updates=[(a, b), (b, a), (c, a + b)], mode=PY)
    plain_values = [1.0, 2.0, 3.0]
    for _ in range(3):
        assert f() == [plain_values[0], plain_values[2]]
        one, two, _ = plain_values
        plain_values = [two, one, one + two]
        for rank in range(ranks):
            assert synk.get_value(rank, [a, b, c]) == plain_values


def test_updates_are_made_whatever_outputs_are_asked_for(two_ranks):
    x = pt.vector("x")
    n = pytensor.shared(0)
    f = synk.function([x], [x.mean(), x.max()], updates={n: n + 1}, mode=PY)
    f([1.0], output_subset=[1])
    f([1.0], output_subset=[])
    f([1.0])
    assert synk.get_value(0, n) == synk.get_value(1, n) == 3


def test_updates_may_be_a_dict_or_a_list_and_name_an_op(two_ranks):
    a, b, c = (pytensor.shared(0.0) for _ in range(3))
    x = pt.vector("x")
    updates = [(a, a + 1, "sum"), [b, x.sum()], (c, c - 1)]
    f = synk.function([x], updates=updates, mode=PY)
    assert f.update_modes == ["sum", "avg", None]
    f([3.0, 4.0])
    assert synk.get_value(1, [a, b, c]) == [1, 4, -1]
    f = synk.function([x], updates={a: x.sum(), b: b + 1}, mode=PY)
    assert f.update_modes == ["avg", None]
    f([3.0, 4.0])
    assert synk.get_value(1, [a, b, c]) == [4, 5, -1]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("float32", 0.5), ("float64", 1), ("int8", 1.5), ("float64", None)],
)
def test_a_new_value_that_pytensor_refuses_is_refused(dtype, value):
    w = pytensor.shared(np.zeros(2, dtype))
    new = pt.as_tensor(np.array(value)) if value is not None else "new"
    with pytest.raises(Exception) as plain:
        pytensor.function([], updates={w: new})
    with pytest.raises(plain.type):
        synk.function([], updates={w: new})


@pytest.mark.filterwarnings("ignore:Setting default_update")
def test_a_default_update_is_made_unless_it_is_excluded(ranks):
    n = pytensor.shared(0)
    n.default_update = n + 1
    x = pt.vector("x")
    y = x.sum() + n

    def after(slices=1, **options):
        f = synk.function([x], (y, "max"), mode=PY, **options)
        result = f(np.zeros(ranks + 1), num_slices=slices)
        values = [int(synk.get_value(rank, n)) for rank in range(ranks)]
        assert values == values[:1] * ranks
        return int(result), values[0]

    assert after() == (0, 1)
    assert after(slices=3) == (1, 2)
    assert after(no_default_updates=True) == (2, 2)
    assert after(no_default_updates=True, slices=2) == (2, 2)
    assert after(no_default_updates=[n]) == (2, 2)
    assert after(updates={n: n + 10}) == (2, 12)
    assert after(updates={n: n + 10}, slices=2) == (12, 22)
    other = pytensor.shared(0)
    assert after(no_default_updates=[other]) == (22, 23)


@pytest.mark.filterwarnings("ignore:Setting default_update")
def test_a_default_update_of_what_givens_have_replaced_is_not_made(two_ranks):
    n, x = pytensor.shared(0), pt.vector("x")
    n.default_update = n + 1
    mask = n * 1.0
    for given, made in ((pt.as_tensor(np.float64(5)), 0), (n * 2.0, 1)):
        n.set_value(0)
        synk.broadcast(n)
        arguments = ([x], x.sum() + mask)
        plain = pytensor.function(*arguments, givens={mask: given}, mode=PY)
        plain([0.0])
        assert n.get_value() == made
        synk.broadcast(n, 0)
        f = synk.function(*arguments, givens={mask: given}, mode=PY)
        f([0.0, 0.0])
        assert synk.get_value(0, n) == synk.get_value(1, n) == made


def test_givens_replace_variables_in_outputs_and_updates(ranks):
    x, y, z = pt.vectors("x", "y", "z")
    w = pytensor.shared(np.float64(3))
    s = pytensor.shared(np.float64(0))
    expression = (x * w + z).sum()
    pairs = [(x, 2 * y), (z, y + 1), (w, pt.as_tensor(np.float64(10)))]
    for givens in (pairs, dict(pairs)):
        f = synk.function([y], (expression, "sum"), None, {s: x.sum()}, givens, mode=PY)
        plain = pytensor.function([y], expression, givens=givens, mode=PY)
        value = np.arange(7.0)
        assert f(value) == plain(value) == (21 * value + 1).sum()
        assert synk.get_value(0, s) == 2 * cut(value, ranks)[0].sum()


def test_givens_can_take_rows_from_a_shared_variable(ranks):
    """The classical way: data in a shared variable, an index as input."""
    x, i = pt.matrix("x"), pt.lvector("i")
    X = pytensor.shared(np.arange(20.0).reshape(10, 2))
    f = synk.function([i], (x.sum(axis=1), "gather"), givens={x: X[i]}, mode=PY)
    rows = np.array([9, 0, 4, 4, 7])
    assert_same(f(rows), X.get_value()[rows].sum(axis=1))


# -- subsets, as_theano, build_inputs -------------------------------------------------


def test_a_subset_of_the_outputs_in_any_order_and_repeated(ranks):
    x = pt.vector("x")
    outputs = [(x.sum(), "sum"), x.mean(), (x, "gather"), (x.max(), "max")]
    f = synk.function([x], outputs, mode=PY)
    value = np.arange(7.0)
    right = [value.sum(), value.mean(), value, value.max()]
    subsets = [None, [3, 0], [0, 3], [2], [1, 1, 2, 1], [-1, 0], [], [3, 2, 1, 0], None]
    subsets += [(0,), np.array([1, 0])]
    for subset in subsets:
        for slices in (1, 3):
            got = f(value, output_subset=subset, num_slices=slices)
            assert isinstance(got, list)
            wanted = range(4) if subset is None else subset
            for output, i in zip(got, wanted, strict=True):
                assert_same(output, np.asarray(right[i]), ulps=8)


def test_as_theano_is_the_plain_function_on_rank_0(ranks):
    x, b = pt.vector("x"), pt.scalar("b")
    w = pytensor.shared(1.0)
    outputs = [(x.sum(), "sum"), x.std(), (x * b, "gather")]
    f = synk.function([x], outputs, [b], updates={w: w + x.sum()}, mode=PY)
    plain = pytensor.function([x, b], [x.sum(), x.std(), x * b], mode=PY)
    value = np.arange(7.0)
    synk.broadcast(w)
    for given in (value, synk.data(value)):
        for got, right in zip(f.as_theano(given, 2.0), plain(value, 2.0), strict=True):
            assert_same(got, right)
    assert w.get_value() == 1 + 2 * value.sum()
    for rank in range(1, ranks):
        assert synk.get_value(rank, w) == 1


def test_as_theano_needs_no_session():
    x = pt.vector("x")
    f = synk.function([x], (x.std(), "avg"), mode=PY)
    assert f.as_theano(np.arange(7.0)) == np.arange(7.0).std()
    assert isinstance(f.as_theano([1.0]), np.ndarray)


def test_build_inputs_makes_data_of_the_inputs_types(ranks):
    x, y, b = pt.matrix("x", dtype="float32"), pt.lvector("y"), pt.scalar("b")
    f = synk.function([x, y], (x.sum(axis=1) * y * b, "gather"), [b], mode=PY)
    X, Y = f.build_inputs([[1, 2], [3, 4], [5, 6]], np.arange(3, dtype="int8"))
    assert (X.dtype, X.ndim, X.name) == (np.float32, 2, "x")
    assert (Y.dtype, Y.ndim, Y.name) == (np.int64, 1, "y")
    assert_same(f(X, Y, 2.0), np.array([0.0, 14, 44]))
    Y, X = f.build_inputs(y=[1, 2], x=[[1, 1], [2, 2]])[::-1]
    assert_same(f(X, Y, 1.0), np.array([2.0, 8]))
    one = synk.function([y], (y, "gather"), mode=PY).build_inputs([1])
    assert isinstance(one, synk.Data)


def test_a_name_is_told_and_shown():
    x = pt.vector("x")
    f = synk.function([x], [x.mean(), (x, "gather"), (x, None)], name="train")
    assert f.name == "train"
    assert f.output_modes == ["avg", "gather", None]
    assert f.update_modes == []
    assert repr(f) == "<synk.Function train(x)>"
    assert synk.function([x], x.sum()).name is None


# -- when functions are made ---------------------------------------------------------


def test_functions_are_made_at_any_time_and_outlive_sessions():
    x = pt.vector("x")
    w = pytensor.shared(1.0)
    before = synk.function([x], (x.sum() * w, "sum"), updates={w: w + 1}, mode=PY)
    made = [before]
    value = np.arange(7.0)
    times = 1.0
    for n in (2, 3, 1, 5):
        with synk.session(n):
            made.append(
                synk.function([x], (x.sum() * w, "sum"), updates={w: w + 1}, mode=PY)
            )
            for f in made:
                assert f(value) == value.sum() * times
                times += 1
            assert synk.get_value(n - 1, w) == times
    assert w.get_value() == times


def test_distribute_compiles_every_function_and_is_optional(two_ranks):
    x = pt.vector("x")
    f = synk.function([x], (x.sum(), "sum"), mode=PY)
    g = synk.function([x], (x.max(), "max"), mode=PY)
    synk.distribute()
    before = SESSION.control.command
    assert f([1.0, 2.0]) == 3
    assert g([1.0, 2.0]) == 2
    assert SESSION.control.command == before + 2  # nothing was left to prepare
    h = synk.function([x], (x.min(), "min"), mode=PY)
    assert h([1.0, 2.0]) == 1


def test_functions_share_shared_variables_on_every_rank(ranks):
    x = pt.vector("x")
    w = pytensor.shared(0.0)
    store = synk.function([x], updates={w: x.sum()}, mode=PY)
    read = synk.function([], (w, "gather"), mode=PY)
    value = np.arange(1.0, 12.0)
    store(value)
    assert_same(read(), [part.sum() for part in cut(value, ranks)])
    clear = synk.function([], updates={w: w * 0}, mode=PY)
    clear()
    assert_same(read(), np.zeros(ranks))


def test_a_function_that_is_dropped_is_forgotten_by_the_ranks(two_ranks):
    x = pt.vector("x")
    keep = synk.function([x], (x.sum(), "sum"), mode=PY)
    drop = synk.function([x], (x.sum(), "sum"), mode=PY)
    keep([1.0])
    drop([1.0])
    gone = weakref.ref(drop)
    known = SESSION.run(worker_count_functions)
    del drop
    gc.collect()
    assert gone() is None
    assert keep([1.0]) == 1
    assert SESSION.run(worker_count_functions) == [n - 1 for n in known]


def worker_count_functions(session):
    return len(session.registry.functions)


def test_a_variable_of_an_ended_session_does_not_disturb_the_next():
    old, new = pytensor.shared(np.zeros(3)), pytensor.shared(np.ones(3))
    x = pt.vector("x")
    f = synk.function([x], (x.sum() + new.sum(), "sum"), mode=PY)
    with synk.session(2):
        synk.broadcast(old)
    with synk.session(2):
        synk.broadcast(new)
        del old
        gc.collect()
        synk.all_reduce(new, "sum")
        assert_same(synk.get_value(1, new), np.full(3, 2.0))
        assert f([1.0, 2.0]) == 15


# -- graphs of all kinds -------------------------------------------------------------


class Shift(Op):
    """An Op that only this module knows."""

    __props__ = ("by",)

    def __init__(self, by):
        self.by = by

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0] + self.by


def test_an_op_of_the_users_module_travels(ranks):
    x = pt.vector("x")
    f = synk.function([x], (Shift(3)(x), "gather"), mode=PY)
    assert_same(f(np.arange(7.0)), np.arange(7.0) + 3)


def test_a_local_op_with_a_lambda_travels(ranks):
    factor = 4

    class Apply1(Op):
        def __init__(self, function):
            self.function = function

        def make_node(self, x):
            return Apply(self, [x], [x.type()])

        def perform(self, node, inputs, outputs):
            outputs[0][0] = self.function(inputs[0])

    x = pt.vector("x")
    f = synk.function([x], (Apply1(lambda v: v * factor)(x), "gather"), mode=PY)
    assert_same(f(np.arange(7.0)), np.arange(7.0) * 4)


def test_an_op_defined_after_the_fork_travels(two_ranks):
    namespace = {"__name__": "made_later", "Op": Op, "Apply": Apply}
    exec(
        "class Negate(Op):\n"
        "    __props__ = ()\n"
        "    def make_node(self, x):\n"
        "        return Apply(self, [x], [x.type()])\n"
        "    def perform(self, node, inputs, outputs):\n"
        "        outputs[0][0] = -inputs[0]\n",
        namespace,
    )
    x = pt.vector("x")
    f = synk.function([x], (namespace["Negate"]()(x), "gather"), mode=PY)
    assert_same(f(np.arange(3.0)), -np.arange(3.0))


SCRIPT = """
import numpy as np, pytensor.tensor as pt, synk
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

synk.fork(2)

class Square(Op):
    __props__ = ()
    def make_node(self, x):
        return Apply(self, [x], [x.type()])
    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0] ** 2

x = pt.vector("x")
f = synk.function([x], (Square()(x), "gather"), mode=Mode("py", None))
np.testing.assert_array_equal(f(np.arange(5.0)), np.arange(5.0) ** 2)
print("squared on", synk.size(), "ranks")
"""


def test_an_op_of_a_script_travels(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "squared on 2 ranks\n", done.stderr


def test_a_scan_equals_pytensors(ranks):
    x, k = pt.matrix("x"), pt.lscalar("k")
    w = pytensor.shared(0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        powers, _ = _scan(lambda total, rows: total * w + rows, x, k)
    f = synk.function([x], (powers[-1].sum(axis=1), "gather"), [k], mode="FAST_COMPILE")
    value = np.arange(14.0).reshape(7, 2)
    right = np.zeros((7, 2))
    for _ in range(4):
        right = right * 0.5 + value
    assert_same(f(value, 4), right.sum(axis=1), ulps=8)


def _scan(step, x, k):
    """Return what scan returns, as a pair in every version of PyTensor."""
    result = pytensor.scan(
        step, outputs_info=pt.zeros_like(x), non_sequences=x, n_steps=k
    )
    return result if isinstance(result, (list, tuple)) else (result, None)


def test_a_graph_with_an_inner_function_travels(ranks):
    from pytensor.compile.builders import OpFromGraph

    a = pt.vector("a")
    w = pytensor.shared(3.0)
    inner = OpFromGraph([a], [a * w])
    x = pt.vector("x")
    f = synk.function([x], (inner(x), "gather"), updates={w: w + 1}, mode=PY)
    assert_same(f(np.arange(7.0)), np.arange(7.0) * 3)
    assert_same(f(np.arange(7.0)), np.arange(7.0) * 4)


def test_a_sparse_shared_variable_travels(ranks):
    from pytensor import sparse

    matrix = scipy.sparse.csr_matrix(np.diag([2.0, 3.0]))
    w = pytensor.shared(matrix, name="w")
    x = pt.matrix("x")
    product = sparse.structured_dot(w, x.T).T
    f = synk.function([x], (product, "gather"), mode=PY)
    value = np.arange(14.0).reshape(7, 2)
    assert_same(f(value), value * [2.0, 3.0])
    synk.broadcast(w, matrix * 2)
    assert_same(f(value), value * [4.0, 6.0])
    assert_same(synk.get_value(ranks - 1, w).toarray(), np.diag([4.0, 6.0]))
    with refused(TypeError, "w is a .*not a tensor"):
        synk.all_reduce(w)


def test_a_mode_travels_as_an_object_or_as_a_name(two_ranks):
    x = pt.vector("x")
    for mode in ("FAST_COMPILE", "FAST_RUN", PY, None):
        f = synk.function([x], (x.sum(), "sum"), mode=mode)
        assert f([1.0, 2.0, 3.0]) == 6


def test_a_network_of_many_variables_travels(two_ranks):
    """More bytes than the control segment's message room."""
    x = pt.vector("x")
    shareds = [pytensor.shared(np.full(100, float(i))) for i in range(200)]
    total = x.sum() + pt.stack([w[0] for w in shareds]).sum()
    f = synk.function(
        [x], (total, "max"), updates=[(w, w + 1) for w in shareds], mode=PY
    )
    assert f([0.0, 0.0]) == sum(range(200))
    assert f([0.0, 0.0]) == sum(range(200)) + 200


# -- bad calls ------------------------------------------------------------------------


def _bad_calls():
    """Yield what is wrong, the call, and the error it must raise."""
    four = np.zeros(4)
    yield "one missing", lambda f: f(four), TypeError, "misses a value for y"
    yield "all missing", lambda f: f(), TypeError, "x, y, b"
    yield "too many", lambda f: f(four, four, 1.0, 2.0), TypeError, "3 arguments, got 4"
    yield "no such name", lambda f: f(four, four, z=1.0), TypeError, "no input.*'z'"
    yield "twice", lambda f: f(four, four, x=four), TypeError, "two values.*'x'"
    yield (
        "wrong dtype",
        lambda f: f(four.astype(complex), four, 1.0),
        TypeError,
        r"input x.*float64",
    )
    yield (
        "wrong ndim",
        lambda f: f(np.zeros((4, 1)), four, 1.0),
        TypeError,
        "input x.*dimensions",
    )
    yield (
        "wrong broadcast ndim",
        lambda f: f(four, four, four),
        TypeError,
        "input b.*dimensions",
    )
    yield "ragged", lambda f: f([[1], [1, 2]], four, 1.0), TypeError, "input x"
    yield "None", lambda f: f(None, four, 1.0), TypeError, "input x"
    yield "text", lambda f: f("abcd", four, 1.0), TypeError, "input x"
    yield (
        "lengths",
        lambda f: f(four, np.zeros(5), 1.0),
        ValueError,
        "'x': 4, 'y': 5",
    )
    yield (
        "Data of another dtype",
        lambda f: f(synk.data([1], dtype="int8"), [1.0], 1.0),
        TypeError,
        "input x is float64.*int8.*synk.data",
    )
    yield (
        "Data of other dimensions",
        lambda f: f(synk.data([[1.0]]), [1.0], 1.0),
        TypeError,
        "input x is float64 with 1 dim",
    )
    yield (
        "freed Data",
        lambda f: f(_freed(), four, 1.0),
        ValueError,
        "'gone'.*holds nothing",
    )
    yield (
        "empty broadcast Data",
        lambda f: f(four, four, synk.data(dtype="float64", ndim=0)),
        ValueError,
        "holds nothing",
    )
    yield (
        "row",
        lambda f: f(four, four, 1.0, batch=[0, 4]),
        IndexError,
        "row 4, out of range for 4",
    )
    yield (
        "negative row",
        lambda f: f(four, four, 1.0, batch=np.array([-5])),
        IndexError,
        "row -5",
    )
    yield "count", lambda f: f(four, four, 1.0, batch=5), IndexError, "first 5 of 4"
    yield "mask", lambda f: f(four, four, 1.0, batch=[True]), IndexError, "mask of 1"
    yield (
        "fractions",
        lambda f: f(four, four, 1.0, batch=[0.5]),
        TypeError,
        "float64",
    )
    yield (
        "table",
        lambda f: f(four, four, 1.0, batch=[[0]]),
        ValueError,
        "2 dimensions",
    )
    yield (
        "slices",
        lambda f: f(four, four, 1.0, num_slices=0),
        ValueError,
        "at least 1, got 0",
    )
    yield (
        "half slices",
        lambda f: f(four, four, 1.0, num_slices=1.5),
        TypeError,
        "integer",
    )
    yield (
        "subset",
        lambda f: f(four, four, 1.0, output_subset=[2]),
        IndexError,
        "output_subset has 2, out of range for 2",
    )
    yield (
        "named subset",
        lambda f: f(four, four, 1.0, output_subset=["loss"]),
        TypeError,
        "integer",
    )
    yield (
        "batch_s",
        lambda f: f(four, four, 1.0, batch_s=slice(2)),
        ValueError,
        "no sliceable_shareds",
    )


def _freed():
    made = synk.data(np.zeros(4), name="gone")
    made.free_memory()
    return made


@pytest.mark.parametrize(
    ("call", "error", "match"), [pytest.param(*c[1:], id=c[0]) for c in _bad_calls()]
)
def test_a_bad_call_is_refused_before_any_rank_is_told(two_ranks, call, error, match):
    x, y, b = pt.vector("x"), pt.vector("y"), pt.scalar("b")
    n = pytensor.shared(0)
    outputs = [(x * y, "gather"), (b, None)]
    f = synk.function([x, y], outputs, [b], updates={n: n + 1}, mode=PY, name="f")
    for calls in (0, 1):  # as its first call, and after another
        with refused(error, match):
            call(f)
        product, _ = f([1.0, 2.0, 3.0], [4.0, 5.0, 6.0], 0.0)
        assert_same(product, [4.0, 10, 18])
        assert synk.get_value(0, n) == synk.get_value(1, n) == calls + 1


def test_a_subset_always_gives_a_list(two_ranks):
    x = pt.vector("x")
    f = synk.function([x], (x.sum(), "sum"), mode=PY)
    assert f([1.0, 2.0], output_subset=[]) == []
    assert f([1.0, 2.0], output_subset=[0]) == [3]
    assert f([1.0, 2.0], output_subset=[0, -1]) == [3, 3]
    assert f([1.0, 2.0]) == 3


def test_slices_of_nothing_are_refused(two_ranks):
    b = pt.scalar("b")
    f = synk.function([], (b, "sum"), [b], mode=PY)
    with refused(ValueError, "num_slices=2 needs scattered inputs"):
        f(1.0, num_slices=2)
    with refused(ValueError, "no scattered inputs"):
        f(1.0, batch=1)
    assert f(1.0) == 2


def test_outputs_whose_shapes_differ_between_ranks_say_so(two_ranks):
    x = pt.matrix("x")
    f = synk.function([x], [(x.sum(axis=1), "sum"), (x.T, "gather")], mode=PY, name="f")
    with pytest.raises(synk.ShapeMismatch, match=r"output 0 .*\(2,\), \(1,\).*'sum'"):
        f(np.ones((3, 2)), output_subset=[0])
    with pytest.raises(ValueError, match=r"output 1 .*\(2, 2\), \(2, 1\).*'gather'"):
        f(np.ones((3, 2)), output_subset=[1])
    total, _ = f(np.ones((2, 2)))
    assert_same(total, [4.0])


def test_an_error_of_the_graph_keeps_its_type_and_the_session_goes_on(ranks):
    x = pt.vector("x")
    w = pytensor.shared(0.0)
    f = synk.function([x], (x[3], "sum"), updates={w: w + 1}, mode=PY, name="fourth")
    with pytest.raises(IndexError) as caught:
        f(np.zeros(ranks))
    assert any("rank" in note for note in caught.value.__notes__)
    assert f(np.arange(4.0 * ranks)) == sum(4 * r + 3 for r in range(ranks))


@pytest.mark.parametrize("state", ["unforked", "closed"])
def test_a_call_without_a_session_says_what_to_do(state):
    x = pt.vector("x")
    f = synk.function([x], x.sum(), mode=PY)
    if state == "closed":
        with synk.session(2):
            f([1.0])
    with pytest.raises(synk.StateError, match=r"synk\.fork\(\)"):
        f([1.0])
    with pytest.raises(synk.StateError, match=r"synk\.fork\(\)"):
        synk.distribute()
