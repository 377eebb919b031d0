"""The inputs of a function: what is taken, and that it is left as it was."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from reference import (
    PY,
    assert_same,
    cut,
)
from tables import frame
from world_sizes import one_and_three_ranks

import synk

WAYS = {
    "C": np.ascontiguousarray,
    "Fortran": np.asfortranarray,
    "strided": lambda a: np.repeat(np.repeat(a, 2, axis=0), 3, axis=1)[::2, ::3],
    "reversed": lambda a: a[::-1].copy()[::-1],
    "other byte order": lambda a: a.astype(a.dtype.newbyteorder()),
    "list": lambda a: a.tolist(),
    "tuple of arrays": tuple,
    "pandas": frame,
    "Data": synk.data,
    "wider list of ints": lambda a: a.astype(int).tolist(),
}


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


WAYS["read-only"] = read_only


@one_and_three_ranks
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


def test_odd_arrays_are_inputs_of_numba_functions_too(two_ranks):
    x, b = pt.matrix("x"), pt.matrix("b")
    # Views, which numba compiles soonest.
    f = synk.function([x], [(x[:, ::-1], "gather"), (b[-1], None)], [b], mode="NUMBA")
    value = np.arange(10.0).reshape(5, 2)
    for way in ("Fortran", "strided", "read-only"):
        given = WAYS[way](value)
        # First: ranks find what numba compiled.
        assert_same(f.as_theano(given, given)[0], value[:, ::-1], err_msg=way)
        turned, last = f(given, given)
        assert_same(turned, value[:, ::-1], err_msg=way)
        assert_same(last, value[-1], err_msg=way)


@one_and_three_ranks
def test_pandas_columns_are_inputs(ranks):
    table = frame(a=np.arange(7), b=np.arange(7) * 0.5, c=1)
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


@one_and_three_ranks
def test_inputs_are_not_changed_and_not_kept(ranks):
    x = pt.vector("x")
    w = pytensor.shared(np.zeros(5))
    n = len(cut(np.zeros(5), ranks)[0])
    for local, kept in ((False, 5), (True, n)):
        f = synk.function([x], [(x, None)], updates={w: x}, local=local)
        for value in (np.arange(5.0), synk.data(np.arange(5.0))):
            (own,) = f(value)
            value[:] = -1
            assert_same(own, np.arange(float(n)))
            assert_same(synk.get_value(0, w), np.arange(float(kept)))
            (again,) = f(value)
            own[:] = 3
            assert_same(again, np.full(n, -1.0))
            assert_same(synk.get_value(0, w), np.full(kept, -1.0))
            assert_same(np.asarray(value), np.full(5, -1.0))


@one_and_three_ranks
def test_outputs_of_one_call_survive_the_next(ranks):
    x = pt.vector("x")
    outputs = [(x, "gather"), (x, None), (x.sum(), "sum"), (x * 1, "gather")]
    f = synk.function([x], outputs)
    first = f(synk.data(np.arange(7.0)), batch=[0, 1, 2, 3, 4, 5, 6])
    copies = [output.copy() for output in first]
    f(synk.data(np.full(7, 9.0)), batch=[6, 5, 4, 3, 2, 1, 0])
    for output, before in zip(first, copies, strict=True):
        assert_same(output, before)


@one_and_three_ranks
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


@one_and_three_ranks
def test_a_function_without_inputs_runs_on_every_rank(ranks):
    w = pytensor.shared(np.arange(2.0))
    f = synk.function([], [(w, "sum"), (w, "gather"), w.sum()], mode=PY)
    synk.scatter(w, np.arange(ranks * 2.0))
    total, rows, whole = f()
    assert_same(total, np.arange(ranks * 2.0).reshape(ranks, 2).sum(axis=0))
    assert_same(rows, np.arange(ranks * 2.0))
    assert whole == np.arange(ranks * 2.0).sum()


def test_columns_with_a_fixed_second_dimension_are_inputs(two_ranks):
    x = pt.col("x")
    f = synk.function([x], (x * 2, "gather"), mode=PY)
    value = np.arange(3.0).reshape(3, 1)
    assert_same(f(value), value * 2)
    assert_same(f(synk.data(value)), value * 2)
    for wrong in (np.zeros((3, 2)), synk.data(np.zeros((3, 2)))):
        with pytest.raises(TypeError, match="input x"):
            f(wrong)


def test_inputs_that_are_computed_from_others_cut_off_what_is_above(two_ranks):
    x, w, s = pt.vector("x"), pt.vector("w"), pytensor.shared(3.0)
    y = pt.tanh(x)
    z, total = y + 1, pt.exp(x).sum()
    by_shared = s * x
    a, b, c = [1.0, 2.0, 4.0], [3.0, -1.0, 5.0], 7.0
    cases = [
        ([y], [], y * 2, {}, [a]),
        ([x, y], [], x + y * 2, {}, [a, b]),  # and what is above
        ([z, y], [], z + y * 2, {}, [a, b]),  # and what is below
        ([y], [], z * 2, {}, [a]),
        ([x], [total], x * total, {}, [a, c]),  # whole to every rank
        ([y], [], pytensor.grad((z**2).sum(), y), {}, [a]),
        ([by_shared], [], by_shared - s, {}, [a]),
        ([y], [], w * 2, {w: z}, [a]),  # as a given, and within one
        ([w, z], [], y * z, {y: w}, [a, b]),
        ([y], [], y * z, {x: w}, [a]),
    ]
    for rows, whole, output, givens, values in cases:
        plain = pytensor.function([*rows, *whole], output, givens=givens, mode=PY)
        f = synk.function(rows, (output, "gather"), whole, givens=givens, mode=PY)
        assert_same(f(*values), plain(*values), err_msg=str(output))
        assert_same(f.as_theano(*values), plain(*values))


def test_updates_follow_from_inputs_that_are_computed(two_ranks):
    x = pt.vector("x")

    def adding(make):
        w = pytensor.shared(1.0)
        scaled = w * x
        total = synk.ops.all_reduce(scaled.sum(), "sum")
        return w, make([scaled], total, updates={w: w + total}, mode=PY)

    (ours, f), (plain, g) = adding(synk.function), adding(pytensor.function)
    value = np.arange(5.0)
    for _ in range(2):
        assert f(value) == g(value) == 10
    assert synk.get_value(1, ours) == plain.get_value() == 21
