"""Data that grows and shrinks: which rows stay, and what memory it takes."""

from __future__ import annotations

import mmap

import numpy as np
import pytensor.tensor as pt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps
from reference import PY, assert_same

import synk
from synk.memory import limits

few = settings(max_examples=100, deadline=None, derandomize=True, database=None)


def test_growing_keeps_the_old_rows():
    made = synk.data(np.arange(6).reshape(3, 2))
    made.set_length(100_000)
    expected = np.zeros((100_000, 2), int)
    expected[:3] = np.arange(6).reshape(3, 2)
    np.testing.assert_array_equal(made.data, expected)


def test_rows_that_come_back_hold_zeros():
    made = synk.data(np.arange(1, 5))
    made.set_length(2)
    assert len(made) == 2
    made.set_length(4)
    np.testing.assert_array_equal(made.data, [1, 2, 0, 0])
    made.set_length(0)
    assert made.shape == (0,)
    made.set_length(1)
    np.testing.assert_array_equal(made.data, [0])


@few
@given(
    nps.array_shapes(min_dims=2, max_dims=3, min_side=0, max_side=5),
    st.data(),
)
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
    with pytest.raises(ValueError, match="2 dimensions"):
        made.set_shape((4,))
    with pytest.raises(ValueError, match="negative"):
        made.set_shape((2, -1))
    with pytest.raises(ValueError, match="negative"):
        made.set_length(-1)
    with pytest.raises(ValueError, match="no rows"):
        synk.data(1.0).set_length(2)
    with pytest.raises(ValueError, match="oversize"):
        made.set_length(3, oversize=0)
    with pytest.raises(TypeError):
        made.set_length(2.5)
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


def test_a_value_may_have_another_length_than_the_last():
    made = synk.data(dtype="int64", ndim=1)
    for length in (3, 0, 100_000, 2):
        made.set_value(np.arange(length))
        np.testing.assert_array_equal(made.data, np.arange(length))


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


def test_a_value_that_does_not_fit_leaves_the_old_one():
    made = synk.data([1, 2, 3])
    with pytest.raises(TypeError):
        made.set_value([[1]])
    with pytest.raises(TypeError):
        made.set_value([0.5])
    np.testing.assert_array_equal(made.data, [1, 2, 3])


def test_more_memory_than_there_is_leaves_the_old_value():
    made = synk.data([1, 2, 3])
    with pytest.raises(synk.SharedMemoryFull, match=r"free of"):
        made.set_length(2**50)
    np.testing.assert_array_equal(made.data, [1, 2, 3])
    with pytest.raises(MemoryError, match="no room for"):
        synk.data(shape=(2**33, 2**20), dtype="int64")
    made.set_length(4)
    np.testing.assert_array_equal(made.data, [1, 2, 3, 0])


def test_more_elements_than_an_int32_counts(two_ranks):
    """Really, where there is memory for them; the arithmetic anywhere."""
    rows = 2**31 + 10
    pages = -(-(2**50 + rows) // mmap.PAGESIZE)
    with pytest.raises(synk.SharedMemoryFull, match=f"{pages * mmap.PAGESIZE:,} bytes"):
        synk.data(shape=(2**50 + rows,), dtype="int8")
    if limits.tightest().free < 2 * rows:
        return
    made = synk.data(shape=(rows,), dtype="int8")
    assert len(made) == made.size == rows
    made[[0, 2**31 - 1, 2**31 + 5, -1]] = [1, 2, 3, 4]
    x = pt.vector("x", dtype="int8")
    f = synk.function([x], (x, "gather"), mode=PY)
    assert_same(f(made, batch=[-1, 2**31 + 5, 0]), np.int8([4, 3, 1]))
    assert_same(f(made, batch=slice(2**31 - 1, 2**31 + 7, 3)), np.int8([2, 0, 3]))
    assert_same(f(made, batch=slice(rows - 2, None)), np.int8([0, 4]))
