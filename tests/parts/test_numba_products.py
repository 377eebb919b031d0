"""Numba mode: products of a matrix and a vector, in what synk compiles alone."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from numba_keys import keys_of
from pytensor.compile.mode import Mode

from synk.engines import numba_products
from synk.engines.numba_code import with_own_code

NUMBA = Mode("numba", None)
"""No rewrites: a graph is compiled as it is written."""

N, K, M = 7, 5, 3
SHAPES = {"matrix": (None, None), "column": (None, 1), "row": (1, None)}


def variable(kind, dtype="float64"):
    if kind == "vector":
        return pt.vector(dtype=dtype)
    return pt.tensor(dtype=dtype, shape=SHAPES[kind])


def compiled(inputs, graph):
    return with_own_code(NUMBA, pytensor.function, inputs, graph, mode=NUMBA)


def is_ours(left, right) -> bool:
    """Tell whether synk has code for a product of these variables."""
    found = numba_products.product(pt.dot(left, right).owner, np.dot)
    return found is not None


@pytest.mark.parametrize("transposes", [False, True])
@pytest.mark.parametrize(
    ("left", "right", "ours"),
    [
        ("matrix", "vector", True),
        ("matrix", "column", True),
        ("row", "matrix", True),
        ("row", "column", True),
        ("matrix", "matrix", False),
    ],
)
def test_products_are_numpys(left, right, ours, transposes):
    x, w = variable(left), variable(right)
    assert is_ours(x, w) is ours
    kinds = (left, right)
    turns = [transposes and kind == "matrix" for kind in kinds]
    given = [var.T if turn else var for var, turn in zip((x, w), turns, strict=True)]
    f = compiled([x, w], pt.dot(*given))
    rng = np.random.default_rng(0)
    for n, k, m in [(N, K, M), (1, K, M), (N, 1, M), (0, K, M), (N, 0, M), (70, 33, 1)]:
        shape = {"matrix": (n, k), "row": (1, k)}[left]
        a = rng.normal(size=shape)
        b = rng.normal(size={"matrix": (k, m), "column": (k, 1), "vector": (k,)}[right])
        values = [
            np.ascontiguousarray(value.T) if turn else value
            for value, turn in zip((a, b), turns, strict=True)
        ]
        found, expected = f(*values), a @ b
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-13, atol=1e-13)


def test_a_strided_matrix_and_a_strided_vector():
    x, w = pt.matrix("x", dtype="float64"), pt.vector("w", dtype="float64")
    f = compiled([x, w], pt.dot(x[:, ::2], w[::-1]))
    a, b = np.arange(30.0).reshape(5, 6), np.array([1.0, -2.0, 3.0])
    np.testing.assert_allclose(f(a, b), a[:, ::2] @ b[::-1])


@pytest.mark.parametrize("dtype", ["float32", "int64", "complex128"])
def test_other_dtypes_are_pytensors(dtype):
    assert not is_ours(variable("matrix", dtype), variable("vector", dtype))


def test_infinities_and_nan_stay_what_they_are():
    x, w = pt.matrix("x", dtype="float64"), pt.vector("w", dtype="float64")
    f = compiled([x, w], pt.dot(x, w))
    a = np.ones((5, 20))
    a[0, 3], a[1, 4], a[2, 5] = np.inf, -np.inf, np.nan
    a[3, :2] = np.inf, -np.inf
    np.testing.assert_array_equal(
        f(a, np.ones(20)), [np.inf, -np.inf, np.nan, np.nan, 20]
    )


def test_a_rows_product_does_not_depend_on_the_rows_beside_it():
    x, w = pt.matrix("x", dtype="float64"), pt.vector("w", dtype="float64")
    f = compiled([x, w], pt.dot(x, w))
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(50, 21)), rng.normal(size=21)
    whole = f(a, b)
    for start in range(13):
        stop = start + 1 + 2 * start
        np.testing.assert_array_equal(f(a[start:stop].copy(), b), whole[start:stop])


@pytest.mark.parametrize("kind", ["vector", "column"])
def test_sizes_that_do_not_fit_are_an_error(kind):
    x, w = variable("matrix"), variable(kind)
    f = compiled([x, w], pt.dot(x, w))
    with pytest.raises(ValueError, match="incompatible array sizes"):
        f(np.ones((4, 3)), np.ones((2,) if kind == "vector" else (2, 1)))


def test_sizes_of_a_row_and_a_matrix_that_do_not_fit_are_an_error():
    w, x = variable("row"), variable("matrix")
    f = compiled([w, x], pt.dot(w, x))
    with pytest.raises(ValueError, match="incompatible array sizes"):
        f(np.ones((1, 2)), np.ones((4, 3)))


def test_a_plain_function_has_the_keys_that_it_has_without_synk():
    x, w = pt.matrix("x", dtype="float64"), pt.vector("w", dtype="float64")

    def plain():
        return pytensor.function([x, w], pt.dot(x, w), mode=NUMBA)

    before = keys_of(plain)
    mine = keys_of(lambda: with_own_code(NUMBA, plain))
    assert before
    assert keys_of(plain) == before
    assert mine - before, "the product has the key of PyTensor's"
