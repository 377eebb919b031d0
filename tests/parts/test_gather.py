"""Gathering rows equals ``numpy.take``."""

from __future__ import annotations

import numpy as np
import pytest

from synk.memory.gather import gather


@pytest.mark.parametrize("dtype", ["uint8", "float32", "complex128", "S7", "bool"])
@pytest.mark.parametrize("columns", [1, 5, 300, 1025, 3000])
def test_gathered_rows_are_those_of_take(dtype, columns):
    random = np.random.default_rng(columns)
    array = random.integers(0, 100, (40, columns)).astype(dtype)
    for count in (0, 1, 2, 3, 40, 90):
        rows = random.integers(0, 40, count)
        out = np.empty((count, columns), dtype)
        assert gather(array, rows, out) is out
        np.testing.assert_array_equal(out, np.take(array, rows, axis=0))


@pytest.mark.parametrize("shape", [(30, 20, 17), (30, 4, 5, 6, 7)])
def test_rows_may_have_several_dimensions(shape):
    array = np.random.default_rng(0).normal(size=shape)
    rows = np.array([29, 0, 0, 7])
    out = np.empty((4, *shape[1:]))
    np.testing.assert_array_equal(gather(array, rows, out), array[rows])


def test_strided_arrays_and_row_numbers_are_gathered_too():
    array = np.random.default_rng(0).normal(size=(400, 30)).T
    rows = np.arange(0, 20)[::3]
    out = np.empty((len(rows), 400))
    np.testing.assert_array_equal(gather(array, rows, out), array[rows])
    contiguous = np.ascontiguousarray(array)
    np.testing.assert_array_equal(gather(contiguous, rows, out), array[rows])
