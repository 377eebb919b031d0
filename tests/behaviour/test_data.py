"""Data: an array in shared memory that behaves as a numpy array."""

from __future__ import annotations

import warnings

import numpy as np
import pytensor.tensor as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from reference import DTYPES, PY, values_of
from tables import frame, series

import synk

few = settings(max_examples=100, deadline=None, derandomize=True, database=None)

SHAPES = [(), (4,), (0,), (3, 2), (0, 3), (2, 0, 2), (2, 3, 2, 1), (2, 1, 2, 3, 2)]

RECORD = np.dtype([("a", "f4"), ("b", "i8", (2,))])


# -- what it holds -----------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_it_holds_what_it_is_given(dtype, shape):
    value = values_of(dtype, shape, 1)
    made = synk.data(value)
    assert made.dtype == value.dtype
    assert made.shape == value.shape
    assert made.ndim == value.ndim
    assert made.size == value.size
    assert made.alloc_size >= value.size
    np.testing.assert_array_equal(made.data, value)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_shape_alone_gives_zeros(shape):
    made = synk.data(shape=shape, dtype="int16")
    np.testing.assert_array_equal(made.data, np.zeros(shape, "int16"))


@pytest.mark.parametrize(
    "dtype", [">f8", "<u2", "S5", "U3", "M8[s]", "m8[ms]", RECORD, "V6"], ids=str
)
def test_any_dtype_of_fixed_size_is_kept(dtype):
    value = np.zeros(3, dtype)
    value.view("u1")[...] = np.arange(value.nbytes, dtype="u1") % 50
    made = synk.data(value)
    assert made.dtype == np.dtype(dtype)
    assert made.data.tobytes() == value.tobytes()


@pytest.mark.parametrize(
    "dtype", [object, np.dtype([("a", object)]), "S", "U"], ids=str
)
def test_a_dtype_without_a_fixed_size_is_refused(dtype):
    with pytest.raises(TypeError, match="fixed size"):
        synk.data(dtype=dtype, shape=(2,))


def test_the_value_is_copied():
    value = np.arange(3.0)
    made = synk.data(value)
    value[:] = -1
    np.testing.assert_array_equal(made.data, [0, 1, 2])


@pytest.mark.parametrize(
    "value",
    [
        np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        np.arange(24.0).reshape(3, 8)[:, ::2],
        np.arange(12.0).reshape(3, 4)[::-1],
        np.broadcast_to(np.arange(4.0), (3, 4)),
        np.arange(12.0).reshape(3, 4).astype(">f8"),
        np.arange(12.0).reshape(3, 4).tolist(),
    ],
    ids=[
        "fortran",
        "strided",
        "reversed",
        "read-only",
        "byte order",
        "list",
    ],
)
def test_it_takes_whatever_numpy_takes(value):
    assert_is_taken(value)


def assert_is_taken(value):
    made = synk.data(value, dtype="float64")
    assert made.data.flags.c_contiguous
    assert made.data.flags.writeable
    np.testing.assert_array_equal(made.data, np.asarray(value))


def test_tables_of_pandas_and_columns_are_taken():
    assert_is_taken(frame(np.arange(12.0).reshape(3, 4)))
    made = synk.data(series([1, 2, 3], dtype="int32"))
    assert made.dtype == np.int32
    np.testing.assert_array_equal(made.data, [1, 2, 3])


def test_data_is_taken_from_data():
    made = synk.data(synk.data([[1, 2]], dtype="int8"))
    assert made.dtype == np.int8
    np.testing.assert_array_equal(made.data, [[1, 2]])


def test_a_variable_gives_dtype_dimensions_and_name():
    made = synk.data([[1, 2]], pt.matrix("pixels", dtype="float32"))
    assert (made.dtype, made.ndim, made.name) == (np.float32, 2, "pixels")
    with pytest.raises(TypeError, match="2 dimensions, the value 1"):
        synk.data([1, 2], pt.matrix("pixels", dtype="float32"))


def test_arguments_that_contradict_each_other_are_refused():
    with pytest.raises(TypeError, match="give a value"):
        synk.data()
    with pytest.raises(TypeError, match="give a value"):
        synk.data(dtype="int8")
    with pytest.raises(ValueError, match=r"shape=\(3,\)"):
        synk.data([1, 2], shape=(3,))
    with pytest.raises(ValueError, match="negative"):
        synk.data(shape=(2, -1), dtype="int8")
    with pytest.raises(ValueError, match="oversize"):
        synk.data([1.0], oversize=0.5)
    with pytest.raises(ValueError, match="ndim"):
        synk.data(dtype="int8", ndim=-1)
    with pytest.raises(ValueError, match="2 dimensions"):
        synk.data(dtype="int8", ndim=2, shape=(3,))


# -- casting -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (np.float64([0.5]), "float32"),
        (np.complex128([1]), "float64"),
        (np.int64([300]), "uint8"),
        (np.int64([2**24 + 1]), "float32"),
        (np.int64([70000]), "float16"),
        (np.int8([-1]), "uint8"),
        (np.int64([-1]), "uint64"),
        (np.uint64([2**63]), "int64"),
        (np.uint8([255]), "int8"),
        (np.int64([2**63 - 1]), "float32"),
        ([1.5], "int64"),
        ([-1], "uint8"),
        ([1j], "float64"),
        (np.int8([2]), "bool"),
    ],
    ids=repr,
)
def test_a_value_that_would_change_is_refused(value, dtype):
    with pytest.raises(TypeError, match="cannot be cast"):
        synk.data(value, dtype=dtype)
    made = synk.data(shape=(1,), dtype=dtype)
    with pytest.raises(TypeError, match=r"cannot be cast.*pass .*value"):
        made.set_value(value)
    with pytest.raises(TypeError, match="cannot be cast"):
        made[:] = value
    assert made[0] == 0


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (np.float32([0.1]), "float64"),
        (np.int64([255]), "uint8"),
        (np.uint64([2**63 - 1]), "int64"),
        (np.int64([2**24]), "float32"),
        (np.bool_([True]), "int8"),
        ([0.1], "float32"),
        ([0.1j], "complex64"),
        ([1, 2], "complex64"),
        ([1, 2], "complex128"),
        ([1, 2], "float16"),
    ],
    ids=repr,
)
def test_a_value_that_keeps_its_meaning_is_cast_without_a_warning(value, dtype):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = synk.data(value, dtype=dtype)
    np.testing.assert_array_equal(made.data, np.asarray(value).astype(dtype))


def test_a_value_may_be_forced_or_reserve_more_by_itself():
    made = synk.data([1, 2], dtype="int8")
    with pytest.raises(TypeError, match="without loss"):
        made.set_value([1.5])
    made.set_value(np.full(5000, 2.5), force_cast=True, oversize=3)
    assert made.data.tolist() == [2] * 5000
    assert made.alloc_size >= 15_000
    with pytest.raises(TypeError, match="without loss"):
        made.condition_data([1.5])  # it was for that value alone
    assert made.condition_data([1.5], force_cast=True).dtype == "int8"
    with pytest.raises(ValueError, match="oversize"):
        made.set_value(np.zeros(100_000, "int8"), oversize=0.5)
    forcing = synk.data([1, 2], dtype="int8", force_cast=True)
    forcing.set_value([1.5])
    with pytest.raises(TypeError, match="without loss"):
        forcing.set_value([1.5], force_cast=False)


def test_force_cast_casts_as_numpy_does():
    made = synk.data(np.float64([1.9, -1.2]), dtype="int8", force_cast=True)
    np.testing.assert_array_equal(made.data, [1, -1])
    made[0] = 2.7
    assert made[0] == 2
    np.testing.assert_array_equal(made.condition_data([300]), [44])


def test_condition_data_returns_what_set_value_would_store():
    made = synk.data(dtype="float32", ndim=1)
    value = made.condition_data([1, 2])
    assert value.dtype == np.float32
    np.testing.assert_array_equal(value, [1, 2])
    with pytest.raises(TypeError, match="1 dimensions, the value 2 "):
        made.condition_data([[1, 2]])


# -- indexing ----------------------------------------------------------------------


@st.composite
def indexed(draw):
    """Return an array and something to index it with."""
    shape = draw(nps.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
    array = np.arange(int(np.prod(shape)), dtype="int32").reshape(shape)
    basic = nps.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True)
    mask = nps.arrays(bool, shape)
    ways = [basic, mask]
    if shape and all(shape):
        ways.append(nps.integer_array_indices(shape))
        rows = st.lists(st.integers(-shape[0], shape[0] - 1), max_size=5)
        ways.append(rows.map(lambda rows: np.array(rows, int)))
    return array, draw(st.one_of(ways))


@few
@given(indexed())
def test_reading_is_numpys(case):
    array, index = case
    got, expected = synk.data(array)[index], array[index]
    assert type(got) is type(expected)
    np.testing.assert_array_equal(got, expected)


@few
@given(indexed(), st.integers(-100, 100))
def test_writing_is_numpys(case, value):
    array, index = case
    made = synk.data(array)
    expected = array.copy()
    made[index] = value
    expected[index] = value
    np.testing.assert_array_equal(made.data, expected)


@few
@given(indexed())
def test_writing_an_array_is_numpys(case):
    array, index = case
    made = synk.data(array)
    expected = array.copy()
    value = -np.array(array[index]) - 1
    made[index] = value
    expected[index] = value
    np.testing.assert_array_equal(made.data, expected)


def test_an_index_out_of_range_is_numpys_error():
    made = synk.data(np.zeros((2, 3)))
    for index in (2, -3, (0, 3), [0, 2], (0, 0, 0)):
        with pytest.raises(IndexError):
            made[index]
        with pytest.raises(IndexError):
            made[index] = 1
    with pytest.raises(ValueError, match="broadcast"):
        made[:] = np.zeros(4)


def test_a_field_of_records_is_read_and_written():
    made = synk.data(np.zeros(3, RECORD))
    made["a"] = np.float32([1, 2, 3])
    made[1] = (5, [6, 7])
    expected = np.zeros(3, RECORD)
    expected["a"] = [1, 2, 3]
    expected[1] = (5, [6, 7])
    np.testing.assert_array_equal(made.data, expected)


def test_overlapping_writes_are_as_if_the_value_were_copied_first():
    made = synk.data(np.arange(5))
    made[1:] = made[:-1]
    np.testing.assert_array_equal(made.data, [0, 0, 1, 2, 3])
    made.set_value(made[::-1])
    np.testing.assert_array_equal(made.data, [3, 2, 1, 0, 0])
    made.set_value(made[1:3])
    np.testing.assert_array_equal(made.data, [2, 1])
    # It grows, to a new mapping of the memory that the value is a view of.
    column = synk.data([[1], [2]])
    column.set_value(np.broadcast_to(column[:], (2, 100_000)))
    np.testing.assert_array_equal(column[:, ::99_999], [[1, 1], [2, 2]])


def test_it_can_be_handed_to_numpy():
    made = synk.data(np.arange(4.0))
    assert np.shares_memory(np.asarray(made), made.data)
    assert not np.shares_memory(np.array(made), made.data)
    np.testing.assert_array_equal(np.asarray(made, "int8"), [0, 1, 2, 3])
    assert np.add(made, 1).sum() == 10
    assert list(made) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="copy"):
        np.asarray(made, "int8", copy=False)


def test_repr_tells_name_shape_and_dtype():
    assert repr(synk.data([[1.0]], name="x")) == (
        "<synk.Data 'x' shape=(1, 1) dtype=float64>"
    )
    assert repr(synk.data(dtype="int8", ndim=3)) == "<synk.Data empty dtype=int8>"


# -- as the input of functions -------------------------------------------------------


def test_ranks_see_every_change(ranks):
    x = pt.vector("x")
    f = synk.function([x], (x, "gather"), mode=PY)
    made = synk.data(np.arange(7.0))
    np.testing.assert_array_equal(f(made), np.arange(7))
    made[2:5] = -1
    np.testing.assert_array_equal(f(made), [0, 1, -1, -1, -1, 5, 6])
    made.set_length(9)
    np.testing.assert_array_equal(f(made), [0, 1, -1, -1, -1, 5, 6, 0, 0])
    made.set_value(np.arange(50_000.0))
    np.testing.assert_array_equal(f(made), np.arange(50_000))
    made.set_length(2)
    np.testing.assert_array_equal(f(made), [0, 1])
    made.free_memory()
    made.set_value([5.0])
    np.testing.assert_array_equal(f(made), [5])


def test_many_data_in_turn_are_told_apart(ranks):
    x = pt.vector("x")
    f = synk.function([x], (x.sum(), "sum"), mode=PY)
    for i in range(20):
        made = synk.data(np.full(5, float(i)))
        assert f(made) == 5 * i
        del made


def test_data_outlives_sessions():
    x = pt.vector("x")
    f = synk.function([x], (x.sum(), "sum"), mode=PY)
    made = synk.data(np.arange(5.0))
    for n in (2, 3, 1):
        with synk.session(n):
            assert f(made) == 10
            assert f(synk.data([4.0])) == 4
    assert made[:].sum() == 10


@pytest.mark.parametrize("shape", [(5,), (5, 2), (5, 2, 1), (5, 1, 2, 2)], ids=str)
def test_data_of_any_dimensions_is_an_input(two_ranks, shape):
    value = np.arange(np.prod(shape), dtype="float32").reshape(shape)
    x = pt.tensor("x", dtype="float32", shape=(None,) * len(shape))
    f = synk.function([x], (x, "gather"), mode=PY)
    got = f(synk.data(value))
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, value)


def test_the_same_data_can_be_two_inputs(two_ranks):
    x, y = pt.vectors("x", "y")
    f = synk.function([x, y], (x * y, "gather"), mode=PY)
    made = synk.data([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(f(made, made), [1, 4, 9])
