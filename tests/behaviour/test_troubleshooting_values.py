"""Values that are refused, in one line, and values that are not finite."""

import functools
import re
import sys

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.sparse
from on_ranks import assert_on_ranks, one_and_three_ranks, three_ranks
from processes import Act, Do
from reference import PY, assert_same, cut
from samples import frame, nullable, series

import synk

ROWS = np.arange(6.0).reshape(3, 2)
MASKED = np.ma.array(ROWS.astype("float32"), mask=ROWS > 3)


class Thing:
    """A class whose text nobody wants to read."""

    def __repr__(self):
        return "thing " * 1000


def bunch(**items):
    from sklearn.utils import Bunch  # here, as pandas in tables.py

    return Bunch(**items)


BAD = {
    "None": (None, "None: pass an array"),
    "text": ("abcd", r"text: pass numbers, as float\(x\)"),
    "texts": (np.array([["a", "b"]]), "text: pass numbers"),
    "dict": ({"a": ROWS, "b": ROWS}, r"a dict: pass one of its values \('a', 'b'\)"),
    "matrix": (scipy.sparse.csr_matrix(ROWS), r"a sparse matrix: pass x\.toarray\(\)"),
    "ragged": ([[1.0], [1.0, 2.0]], "a ragged list, with rows of length 1 and 2: pad"),
    "ragged arrays": ([np.ones((2, 1)), np.ones((2, 2))], "a ragged list, with parts"),
    "arrays": (
        np.array([np.ones(2), np.ones(3)], dtype=object),
        r"an array of arrays: pass np\.stack\(x\)",
    ),
    "float64": (ROWS, r"float64 values: pass x\.astype\('float32'\)"),
    "int64": (ROWS.astype("int64"), r"int64 values: pass x\.astype\('float32'\)"),
    "complex": (ROWS + 1j, r"complex128 values: pass x\.real, or x\.imag"),
    "inexact": (
        [[0.1, 0.2]],
        r"values that float32 .*: pass np\.asarray\(x, 'float32'",
    ),
    "too large": ([[10**400, 1]], "numbers that float32 does not hold"),
    "hole": ([[1.0, None]], r"None among its values: pass np\.nan in its place"),
    "objects": (ROWS.astype(object), r"Python objects: pass x\.astype\('float32'\)"),
    "things": ([[Thing(), Thing()]], "values of type Thing: pass numbers"),
    "thing": (Thing(), "a value of type Thing: pass an array"),
    "set": ({1, 2}, r"a value of type set: pass list\(x\)"),
    "generator": ((i for i in range(3)), r"a value of type generator: pass list\(x\)"),
    "function": (len, "a value of type builtin_function_or_method: pass an array"),
    "variable": (pt.matrix("q"), "q, a symbolic variable: pass a value for it"),
    "shared": (pytensor.shared(ROWS, "s"), r"shared variable s: pass x\.get_value\(\)"),
    "records": (
        np.zeros((3, 2), [("a", "f4"), ("b", "f4")]),
        r"records \(\('a', 'b'\)\): pass one field, as x\[field\]",
    ),
    "column": (np.ones(3, "float32"), r"shape \(3,\), and 2 .*np\.reshape\(x, \(-1, 1"),
    "range": (range(3), r"shape \(3,\), and 2 dimensions are wanted"),
    "number": (3.5, r"shape \(\), and 2 dimensions are wanted"),
}
"""A value for a float32 matrix named x; what is said of it."""

OF_PACKAGES = {
    "bunch": (lambda: bunch(data=ROWS, target=ROWS), r"a Bunch: pass x\.data"),
    "mixed frame": (
        lambda: frame(a=[1.0, 2.0], b=["u", "v"]),
        r"a DataFrame with columns that are not numbers \(b: .*\):"
        r" pass x\.select_dtypes\('number'\)\.to_numpy\('float32'\)",
    ),
    "frame of texts": (lambda: frame(b=["u"]), "a DataFrame .* not numbers .*: pass n"),
    "bools and ints": (
        lambda: frame(a=[1, 2], b=[True, False]),
        r"a DataFrame with columns of several dtypes: pass x\.to_numpy\('float32'\)",
    ),
    "missing": (
        lambda: frame(a=nullable(1, None), b=[1.0, 2.0]),
        r"a DataFrame with missing values: pass x\.fillna\(value\)",
    ),
    "missing in an array": (
        lambda: nullable(1.0, None, dtype="Float64"),
        r"a Float.*Array with missing values: pass x\.fillna\(value\)",
    ),
    "series of texts": (lambda: series(["u", "v"]), "a Series of dtype .*: pass num"),
    "dates": (
        lambda: frame(a=np.array(["2020-01-01", "2020-01-02"], "datetime64[ns]")),
        r"datetime64\[.*\] values: pass x\.astype\('float32'\)",
    ),
}
"""Functions that return such values; what is said of them."""

NAMES = (*BAD, *OF_PACKAGES)

IS_ARRAY = ("column", "range", "number")
"""What is wrong about these is their shape."""

ANY_DTYPE = (
    *("texts", "text", "float64", "int64", "complex", "inexact"),
    *("records", "dates", "series of texts", "frame of texts"),
)
"""What `synk.data` can hold, if no dtype is asked for."""

HELD = ("int64", "inexact")
"""Of numbers, `Data` of float32 takes these."""


def assert_one_line(error: BaseException) -> None:
    text = str(error)
    assert "\n" not in text
    assert len(text) < 250, text
    assert error.__cause__ is None
    # Tests that interrupt code at any line leave an exception that is being handled.
    assert error.__suppress_context__ or error.__context__ is sys.exc_info()[1]


def said_of(name: str, value: str) -> tuple[object, str]:
    """Return a bad value, and what is said of it where it is called `value`."""
    if name in BAD:
        given, said = BAD[name]
    else:
        make, said = OF_PACKAGES[name]
        given = make()
    return given, re.sub(r"\bx\b", value, said)


def refusal(error, match: str, call, what: str) -> None:
    """Assert that a call is refused, and in one line."""
    try:
        with pytest.raises(error, match=match) as caught:
            call()
        assert_one_line(caught.value)
    except BaseException as failure:
        failure.add_note(f"case: {what}")
        raise


def test_inputs_that_are_no_arrays_are_refused_in_one_line(two_ranks):
    x, b = pt.fmatrix("x"), pt.fmatrix("b")
    n = pytensor.shared(0)
    outputs = [(x.sum(), "sum"), (b.sum(), None)]
    f = synk.function([x], outputs, [b], updates={n: n + 1}, mode=PY)
    fine = np.ones((3, 2), "float32")
    for name in NAMES:
        value, said = said_of(name, "x")
        match = rf"^input x \(float32 matrix\) got (the )?{said}"
        refusal(TypeError, match, functools.partial(f, value, fine), name)
        value, said = said_of(name, "b")
        match = rf"^input b \(float32 matrix\) got (the )?{said}"
        refusal(TypeError, match, functools.partial(f, fine, value), name)
    assert synk.gather(n).tolist() == [0, 0]
    total, same = f(fine, 2 * fine)
    assert (total, same) == (6, 12)


def test_values_for_shared_variables_are_refused_in_one_line(two_ranks):
    w = pytensor.shared(ROWS.astype("float32"), name="w")
    calls = [synk.scatter, functools.partial(synk.set_value, 1), synk.broadcast]
    for name in NAMES:
        value, said = said_of(name, "value")
        match = rf"^shared variable w \(float32 matrix\) got (the )?{said}"
        # None stands for the master's value in a broadcast.
        for call in calls[: 2 if value is None else 3]:
            refusal(TypeError, match, functools.partial(call, w, value), name)
    assert_same(synk.get_value(1, w), ROWS.astype("float32"))


def test_data_refuses_what_is_no_array_in_one_line():
    for name in NAMES:
        if name in IS_ARRAY or name in HELD:
            continue
        value, said = said_of(name, "value")
        made = synk.data(shape=(3, 2), dtype="float32", name="d")
        calls = [
            functools.partial(made.set_value, value),
            functools.partial(made.__setitem__, ..., value),
        ]
        if name in ("float64", "complex"):
            said = r"be cast to it without loss: pass (np\.asarray\(value|value\.real)"
        if value is not None:  # which stands for no value
            calls.append(functools.partial(synk.data, value, dtype="float32", ndim=2))
        for call in calls:
            refusal(TypeError, said, call, name)
        assert_same(made[:], np.zeros((3, 2), "float32"))
        if value is not None and name not in ANY_DTYPE:
            call = functools.partial(synk.data, value)
            refusal(TypeError, r"^synk\.data got ", call, name)


def test_tables_of_nullable_columns_and_of_several_dtypes_are_numbers(two_ranks):
    x, v, wide = pt.fmatrix("x"), pt.fvector("v"), pt.dmatrix("wide")
    f, g, h = (synk.function([y], y * 1, mode=PY) for y in (x, v, wide))
    for kind in ("Float32", "Int16", "UInt8", "boolean"):
        values = ROWS > 2 if kind == "boolean" else ROWS.astype(kind.lower())
        table = frame(values).astype(kind)
        assert_same(f(table), values.astype("float32"))
        assert_same(synk.data(table)[:], values)
        for column in (table[0], table[0].array):
            assert_same(g(column), values[:, 0].astype("float32"))
            assert_same(synk.data(column)[:], values[:, 0])
    table = frame(
        a=nullable(1.5, 2.5, dtype="Float64"),
        b=nullable(3, 4),
        c=np.array([5, 6], "int32"),
        d=[np.nan, 8.0],  # of numpy's dtype: a number
    )
    right = np.array([[1.5, 3, 5, np.nan], [2.5, 4, 6, 8]])
    assert_same(h(table), right)
    assert_same(synk.data(table)[:], right)
    with pytest.raises(TypeError, match=r"float64 values: pass x\.astype\('float32'\)"):
        f(table)


def test_scalars_fixed_lengths_and_inputs_without_names(two_ranks):
    b = pt.scalar("b", dtype="float32")
    f = synk.function([], b, [b], mode=PY)
    match = r"input b \(float32 scalar\) got a number .*: pass np\.float32\(b\)"
    with pytest.raises(TypeError, match=match):
        f(0.1)
    assert f(np.float32(0.1)) == np.float32(0.1)
    x = pt.tensor("x", dtype="float32", shape=(None, 3))
    f = synk.function([x], (x.sum(), "sum"), mode=PY)
    match = r"x \(float32 matrix of shape \(\?, 3\)\) got .* length 2 along axis 1"
    with pytest.raises(TypeError, match=match):
        f(ROWS.tolist())
    for name in (None, "my input"):
        x = pt.fmatrix(name)
        f = synk.function([x], (x.sum(), "sum"), mode=PY)
        with pytest.raises(TypeError, match=r"pass value\.astype"):
            f(ROWS)


# -- masks -----------------------------------------------------------------------------


MASKS = {
    "masked": MASKED,
    "nothing masked": np.ma.array(MASKED.data),
    "of another dtype": np.ma.array(ROWS, mask=ROWS > 3),
    "in a list": [np.ma.array([1.0, 2.0], mask=[0, 1]), [1.0, 2.0]],
    "in a list of lists": [[1.0, np.ma.masked], [1.0, 2.0]],
}


def test_masked_arrays_are_refused_everywhere(two_ranks):
    x, b = pt.fmatrix("x"), pt.fmatrix("b")
    f = synk.function([x], [(x.sum(), "sum"), (b.sum(), None)], [b], mode=PY, name="f")
    w = pytensor.shared(ROWS.astype("float32"), name="w")
    made = synk.data(ROWS, dtype="float32", force_cast=True, name="d")
    fine = np.ones((3, 2), "float32")
    takers = (
        lambda value: f(value, fine),
        lambda value: f(fine, b=value),
        lambda value: f.run([1, 2], value, fine),
        lambda value: f.run([1, 2], fine, value),
        lambda value: f.as_theano(value, fine),
        lambda value: f(value, fine, check="serial"),
        functools.partial(synk.scatter, w),
        lambda value: synk.broadcast([w], [value]),
        lambda value: synk.set_value(0, w, value),
        lambda value: synk.data(value, x),
        *(synk.data, f.build_inputs, made.set_value, made.condition_data),
        lambda value: made.__setitem__(slice(None), value),
    )
    match = r"mask would be lost: pass .*filled\(value\)"
    for what, value in MASKS.items():
        for take in takers:
            refusal(TypeError, match, functools.partial(take, value), what)
    assert_same(made[:], ROWS.astype("float32"))
    assert_same(synk.get_value(1, w), ROWS.astype("float32"))
    assert f(MASKED.filled(0), fine)[0] == 6
    # Records, and parts of them; rows
    records = synk.data(shape=(2,), dtype=[("a", "f4"), ("b", "i4")])
    value = np.ma.array(np.zeros(2, records.dtype), mask=[(0, 1), (0, 0)])
    for call in (
        lambda: records.set_value(value),
        lambda: records.__setitem__(0, value[0]),
    ):
        with pytest.raises(TypeError, match="mask would be lost"):
            call()
    batch = np.ma.array([0, 1, 2], mask=[0, 1, 0])
    for call in (
        lambda: f(fine, fine, batch=batch),
        lambda: f.run([batch], fine, fine),
    ):
        with pytest.raises(TypeError, match=r"masked array.*batch\.compressed\(\)"):
            call()
    assert f(fine, fine, batch=batch.compressed())[0] == 4


def test_a_forced_cast_takes_objects_that_are_numbers():
    made = synk.data(shape=(3, 2), dtype="float32", force_cast=True)
    made.set_value(ROWS.astype(object))
    assert_same(made[:], ROWS.astype("float32"))
    for value in (None, bunch(data=ROWS)):
        with pytest.raises(TypeError, match=r"got (None|a Bunch)"):
            made.set_value(value)


def test_what_a_handler_of_signals_raises_is_no_misfit(two_ranks):
    class Stop(Exception):
        pass

    class Late:
        def __array__(self, dtype=None, copy=None):
            raise Stop  # as a handler may at any line

    x = pt.dmatrix("x")
    for take in (
        synk.function([x], x.sum(), mode=PY),
        synk.data,
        synk.data(ROWS).set_value,
    ):
        with pytest.raises(Stop):
            take(Late())


# -- check="finite" --------------------------------------------------------------------


def rows_with(value: float, *places: int) -> np.ndarray:
    rows = np.random.default_rng(0).normal(size=(23, 3)) ** 2 + 0.5
    rows[list(places), 1] = value
    return rows


@one_and_three_ranks
def test_the_first_bad_row_and_its_rank_are_named(ranks):
    x = pt.dmatrix("x")
    f = synk.function([x], [x.sum(), x.mean(axis=0), x.max()], name="f", mode=PY)
    f(rows_with(1.0), check="finite")
    for row, bad in (0, np.nan), (1, np.inf), (12, -np.inf), (22, np.nan):
        assert not np.isfinite(f(rows_with(bad, row))[0])  # which looks at nothing
        with pytest.raises(synk.NotFinite) as caught:
            f(rows_with(bad, row, 22), check="finite")
        text = str(caught.value)
        assert isinstance(caught.value, FloatingPointError)
        assert text.startswith("<synk.Function f(x)>: not finite: output 0 ")
        assert f"; row {row} of the call is the first with which it is so" in text
        parts = cut(np.arange(23), ranks)
        (owner,) = (rank for rank, part in enumerate(parts) if row in part)
        assert text.endswith(f"one of rank {owner}'s")
    # Rows are those of the batch.
    rows = rows_with(np.nan, 4)
    for batch in (np.array([20, 3, 4, 1, 4]), np.arange(23) > 1):
        with pytest.raises(synk.NotFinite, match="row 2 of the call is"):
            f(rows, batch=batch, check="finite")
    f(rows, batch=np.array([20, 3]), check="finite")
    with pytest.raises(synk.NotFinite, match="row 4 of the call"):
        f(rows, check="finite", num_slices=2)
    w = pytensor.shared(np.array([1.0, np.nan, 1.0]), "w")
    f = synk.function([x], (x @ w).sum(), mode=PY)
    with pytest.raises(synk.NotFinite, match="no single row makes it so"):
        f(rows_with(1.0), check="finite")


@one_and_three_ranks
def test_a_step_that_gives_nan_is_undone(ranks):
    x = pt.dmatrix("x")
    w = pytensor.shared(np.ones(3), "w")
    loss = pt.log(x @ w).mean()
    step = synk.function([x], loss, updates=synk.updates.sgd(loss, [w], 0.1), mode=PY)
    step(rows_with(1.0), check="finite")
    before = w.get_value()
    with pytest.raises(synk.NotFinite, match=r"the new value of w; row 7 of the call"):
        step(rows_with(np.nan, 7, 9), check="finite", batch=slice(0, 20))
    assert_on_ranks(w, before)
    step(rows_with(1.0), check="finite")
    assert not np.array_equal(w.get_value(), before)


@three_ranks
def test_a_variable_of_one_rank_is_named_with_the_rank(ranks):
    x = pt.dmatrix("x")
    kept = pytensor.shared(np.zeros(3), "kept")
    f = synk.function([x], updates={kept: x.sum(axis=0)}, local=True, mode=PY)
    with pytest.raises(synk.NotFinite, match="value of kept on rank 1; row 10"):
        f(rows_with(np.nan, 10), check="finite")
    assert not np.any(synk.gather(kept))


def test_integers_are_finite_and_draws_of_each_ranks_own_have_no_row(two_ranks):
    x = pt.dmatrix("x")
    stream = pt.random.utils.RandomStream(1)
    noise = (x + stream.normal(size=x.shape)).sum(axis=1)
    noisy = synk.function([x], noise, mode=PY, streams="own")
    count = synk.function([x], (x > 0).sum(), mode=PY)
    assert count(rows_with(np.nan, 3), check="finite") == 23 * 3 - 1
    with pytest.raises(synk.NotFinite, match=r"not finite: output[^;]*$"):
        noisy(rows_with(np.nan, 3), check="finite")
    of_all = synk.function([x], noise, mode=PY)
    with pytest.raises(synk.NotFinite, match="row 3 of the call"):
        of_all(rows_with(np.nan, 3), check="finite")


_runs: list[int] = []


def test_the_row_is_found_in_few_runs():
    v = pt.vector("v", dtype="float64")
    f = synk.function([v], (Act(0, Do(_runs.append, 1))(v).sum(), "sum"), mode=PY)
    with synk.session(1):
        for total in (1, 2, 3, 100):
            for row in sorted({0, 1, total // 2, total - 1} & set(range(total))):
                values = np.zeros(total)
                values[row] = np.nan
                _runs.clear()
                with pytest.raises(synk.NotFinite, match=f"row {row} of the call is"):
                    f(values, check="finite")
                assert len(_runs) <= 6 + np.log2(total)
