"""Data: an array in shared memory that behaves as numpy's, grows and is given back."""

import warnings

import numpy as np
import pytensor.tensor as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from on_ranks import one_and_three_ranks, three_ranks
from processes import bytes_of_segments
from reference import DTYPES, PY, values_of
from samples import WAYS, series

import synk

LONG = settings.get_current_profile_name() == "long"
few = settings(
    max_examples=500 if LONG else 40, deadline=None, derandomize=True, database=None
)

SHAPES = [(), (4,), (0,), (3, 2), (0, 3), (2, 0, 2), (2, 3, 2, 1), (2, 1, 2, 3, 2)]

RECORD = np.dtype([("a", "f4"), ("b", "i8", (2,))])


# -- what it holds -----------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_it_holds_what_it_is_given(dtype):
    for shape in SHAPES:
        value = np.array(values_of(dtype, shape, 1))
        made, expected = synk.data(value), value.copy()
        assert made.dtype == value.dtype
        assert made.shape == value.shape
        assert made.ndim == value.ndim
        assert made.size == value.size
        assert made.alloc_size >= value.size
        value[...] = 0  # it has a copy
        np.testing.assert_array_equal(made.data, expected)
        made = synk.data(shape=shape, dtype=dtype)
        np.testing.assert_array_equal(made.data, np.zeros(shape, dtype))


def test_any_dtype_of_fixed_size_is_kept_and_others_are_refused():
    for dtype in (">f8", "<u2", "S5", "U3", "M8[s]", "m8[ms]", RECORD, "V6"):
        value = np.zeros(3, dtype)
        value.view("u1")[...] = np.arange(value.nbytes, dtype="u1") % 50
        made = synk.data(value)
        assert made.dtype == np.dtype(dtype)
        assert made.data.tobytes() == value.tobytes()
    for dtype in (object, np.dtype([("a", object)]), "S", "U"):
        with pytest.raises(TypeError, match="fixed size"):
            synk.data(dtype=dtype, shape=(2,))


def test_it_takes_whatever_numpy_takes():
    table = np.arange(12.0).reshape(3, 4)
    for way, make in WAYS.items():
        made = synk.data(make(table), dtype="float64")
        assert made.data.flags.carray, way
        np.testing.assert_array_equal(made.data, table, err_msg=way)
    for column in (series([1, 2, 3], dtype="int32"), synk.data([1, 2, 3], dtype="i4")):
        made = synk.data(column)
        assert made.dtype == np.int32
        np.testing.assert_array_equal(made.data, [1, 2, 3])


def test_a_variable_gives_dtype_dimensions_and_name():
    made = synk.data([[1, 2]], pt.matrix("pixels", dtype="float32"))
    assert (made.dtype, made.ndim, made.name) == (np.float32, 2, "pixels")
    with pytest.raises(TypeError, match="2 dimensions, the value 1"):
        synk.data([1, 2], pt.matrix("pixels", dtype="float32"))


def test_arguments_that_contradict_each_other_are_refused():
    for arguments, options, error, said in (
        ((), {}, TypeError, "give a value"),
        ((), {"dtype": "int8"}, TypeError, "give a value"),
        (([1, 2],), {"shape": (3,)}, ValueError, r"shape=\(3,\)"),
        ((), {"shape": (2, -1), "dtype": "int8"}, ValueError, "negative"),
        (([1.0],), {"oversize": 0.5}, ValueError, "oversize"),
        ((), {"dtype": "int8", "ndim": -1}, ValueError, "ndim"),
        ((), {"dtype": "i1", "ndim": 2, "shape": (3,)}, ValueError, "2 dimensions"),
    ):
        with pytest.raises(error, match=said):
            synk.data(*arguments, **options)


# -- casting -----------------------------------------------------------------------


LOSING = [
    *((np.float64([0.5]), "float32"), (np.complex128([1]), "float64")),
    *((np.int64([300]), "uint8"), (np.int64([2**24 + 1]), "float32")),
    *((np.int64([70000]), "float16"), (np.int64([2**63 - 1]), "float32")),
    *((np.int8([-1]), "uint8"), (np.int64([-1]), "uint64"), (np.int8([2]), "bool")),
    *((np.uint64([2**63]), "int64"), (np.uint8([255]), "int8")),
    *(([1.5], "int64"), ([-1], "uint8"), ([1j], "float64")),
]

KEEPING = [
    *((np.float32([0.1]), "float64"), (np.int64([255]), "uint8")),
    *((np.uint64([2**63 - 1]), "int64"), (np.int64([2**24]), "float32")),
    *((np.bool_([True]), "int8"), ([0.1], "float32"), ([0.1j], "complex64")),
    *(([1, 2], dtype) for dtype in ("complex64", "complex128", "float16")),
]


@pytest.mark.parametrize(("value", "dtype"), LOSING, ids=repr)
def test_a_value_that_would_change_is_refused(value, dtype):
    with pytest.raises(TypeError, match="cannot be cast"):
        synk.data(value, dtype=dtype)
    made = synk.data(shape=(1,), dtype=dtype)
    with pytest.raises(TypeError, match=r"cannot be cast.*pass .*value"):
        made.set_value(value)
    with pytest.raises(TypeError, match="cannot be cast"):
        made[:] = value
    assert made[0] == 0


@pytest.mark.parametrize(("value", "dtype"), KEEPING, ids=repr)
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
    forcing = synk.data(np.float64([1.9, -1.2]), dtype="int8", force_cast=True)
    np.testing.assert_array_equal(forcing.data, [1, -1])
    np.testing.assert_array_equal(forcing.condition_data([300]), [44])
    forcing[0] = 2.7
    assert forcing[0] == 2
    forcing.set_value([1.5])
    with pytest.raises(TypeError, match="without loss"):
        forcing.set_value([1.5], force_cast=False)


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
@given(indexed(), st.integers(-100, 100))
def test_reading_and_writing_are_numpys(case, number):
    array, index = case
    made = synk.data(array)
    got, expected = made[index], array[index]
    assert type(got) is type(expected)
    np.testing.assert_array_equal(got, expected)
    whole = array.copy()
    for value in (number, -np.array(array[index]) - 1):
        made[index] = value
        whole[index] = value
        np.testing.assert_array_equal(made.data, whole)


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
    made, expected = synk.data(np.zeros(3, RECORD)), np.zeros(3, RECORD)
    for records in (made, expected):
        records["a"] = np.float32([1, 2, 3])
        records[1] = (5, [6, 7])
    np.testing.assert_array_equal(made.data, expected)
    np.testing.assert_array_equal(made["b"], expected["b"])


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


# -- as the input of functions -------------------------------------------------------


@one_and_three_ranks
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


@three_ranks
def test_data_of_any_dimensions_is_an_input_and_may_be_two(ranks):
    for shape in ((5,), (5, 2), (5, 2, 1), (5, 1, 2, 2)):
        value = np.arange(np.prod(shape), dtype="float32").reshape(shape)
        x, y = (pt.tensor(dtype="float32", shape=(None,) * len(shape)) for _ in "xy")
        f = synk.function([x, y], [(x, "gather"), (x * y, "gather")], mode=PY)
        made = synk.data(value)
        rows, squares = f(made, made)
        assert rows.dtype == np.float32
        np.testing.assert_array_equal(rows, value)
        np.testing.assert_array_equal(squares, value**2)


# -- growing, and memory -------------------------------------------------------------


def test_rows_that_stay_are_kept_and_those_that_come_back_hold_zeros():
    made = synk.data(np.arange(1, 7).reshape(3, 2))
    for length, kept in ((100_000, 3), (2, 2), (4, 2), (0, 0), (1, 0)):
        made.set_length(length)
        expected = np.zeros((length, 2), int)
        expected[:kept] = np.arange(1, 7).reshape(3, 2)[:kept]
        np.testing.assert_array_equal(made.data, expected)
        assert len(made) == length


@few
@given(nps.array_shapes(min_dims=2, max_dims=3, min_side=0, max_side=5), st.data())
def test_set_shape_keeps_what_both_shapes_share(old, data):
    new = tuple(data.draw(st.integers(0, 5)) for _ in old)
    value = np.arange(1, 1 + int(np.prod(old))).reshape(old)
    made = synk.data(value)
    made.set_shape(new)
    expected = np.zeros(new, int)
    shared = tuple(slice(min(a, b)) for a, b in zip(old, new, strict=True))
    expected[shared] = value[shared]
    np.testing.assert_array_equal(made.data, expected)


def test_a_shape_that_does_not_fit_is_refused():
    made = synk.data(np.ones((2, 2)))
    for change, arguments, error, said in (
        (made.set_shape, [(4,)], ValueError, "2 dimensions"),
        (made.set_shape, [(2, -1)], ValueError, "negative"),
        (made.set_length, [-1], ValueError, "negative"),
        (synk.data(1.0).set_length, [2], ValueError, "no rows"),
        (made.set_length, [3, 0], ValueError, "oversize"),
        (made.set_length, [2.5], TypeError, "float"),
        (made.condition_data, [[1]], TypeError, "2 dimensions, the value 1 "),
    ):
        with pytest.raises(error, match=said):
            change(*arguments)
    np.testing.assert_array_equal(made.data, np.ones((2, 2)))


def test_oversize_reserves_room_to_grow_into():
    rows = 10_000
    made = synk.data(np.zeros(rows), oversize=3)
    assert made.alloc_size >= 3 * rows
    before = made.data
    room = made.alloc_size
    made.set_length(3 * rows)
    assert made.alloc_size == room
    assert np.shares_memory(before, made.data)
    made.set_length(made.alloc_size + 1, oversize=2)
    assert made.alloc_size >= 2 * (room + 1)


def test_views_stay_valid_when_the_data_grows_or_is_freed():
    made = synk.data(np.arange(4))
    view = made[1:3]
    made.set_length(1_000_000)
    np.testing.assert_array_equal(view, [1, 2])
    made[1] = 7
    assert view[0] == 7
    made.free_memory()
    np.testing.assert_array_equal(view, [7, 2])


def test_freed_data_says_that_it_holds_nothing():
    made = synk.data([1.0, 2.0], name="prices")
    made.free_memory()
    assert made.alloc_size == 0
    for use in (lambda: made[0], lambda: made.shape, lambda: len(made)):
        with pytest.raises(ValueError, match=r"'prices'.*holds nothing"):
            use()
    made.free_memory()
    made.set_value([3.0])
    np.testing.assert_array_equal(made.data, [3])


def test_more_memory_than_there_is_leaves_the_old_value():
    made = synk.data([1, 2, 3])
    with pytest.raises(synk.SharedMemoryFull, match=r"free of"):
        made.set_length(2**50)
    np.testing.assert_array_equal(made.data, [1, 2, 3])
    with pytest.raises(MemoryError, match=f"no room for.*{2**56:,} bytes"):
        synk.data(shape=(2**33, 2**20), dtype="int64")
    for misfit in ([[1]], [0.5]):
        with pytest.raises(TypeError):
            made.set_value(misfit)
    np.testing.assert_array_equal(made.data, [1, 2, 3])
    made.set_length(4)
    np.testing.assert_array_equal(made.data, [1, 2, 3, 0])


@three_ranks
def test_what_large_calls_and_data_have_taken_is_given_back(ranks):
    """Of calls after 100 small ones; of Data when it and all views of it are gone."""
    x = pt.matrix("x")
    f = synk.function([x], (2 * x, "gather"), mode=PY)
    small, large = synk.data(np.ones((6, 2))), 1 << 24
    f(small)
    before = bytes_of_segments()
    for _ in range(2):
        assert f(np.ones((large // 16, 2))).shape == (large // 16, 2)
        assert bytes_of_segments() > before + large
        for _ in range(101):
            f(small)
        assert bytes_of_segments() < before + large / 10
    before = bytes_of_segments()
    made = synk.data(np.ones((large // 16, 2)))
    f(made)
    view = made[:3]
    del made
    f(small)
    assert bytes_of_segments() > before + large
    del view
    for _ in range(101):
        f(small)
    assert bytes_of_segments() < before + large / 10
