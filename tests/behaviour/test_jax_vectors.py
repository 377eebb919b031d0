"""JAX mode: products of a vector with all rows of a matrix do not copy the matrix."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child

from synk.engines import jax_vectors
from synk.engines.jax_vectors import largest_divisor


def prepared(inputs, outputs):
    """Return the function of JAX's that PyTensor makes of graphs."""
    return pytensor.function(inputs, outputs, mode="JAX", trust_input=True).vm.jit_fn


def text_of(function, *values) -> str:
    """Return the program that XLA makes of a function."""
    import jax

    return jax.jit(function).lower(*values).compile().as_text()


PRODUCTS = {
    "a gradient": lambda x, r: x.T @ r,
    "on the left": lambda x, r: r @ x,
    "a column": lambda x, r: (x.T @ r[:, None])[:, 0],
}


@pytest.mark.parametrize("name", PRODUCTS)
@in_a_child
def test_the_matrix_is_read_as_it_lies(name):
    x, r = pt.dmatrix("x"), pt.dvector("r")
    compiled = prepared([x, r], [PRODUCTS[name](x, r)])
    values = np.ones((500, 20)), np.ones(500)
    text = compiled.lower(*values).compile().as_text()
    assert " dot(" in text
    assert "transpose(" not in text


@in_a_child
def test_xla_alone_still_transposes():
    import jax.numpy as jnp

    def pytensors(x, r):
        return jnp.dot(jnp.transpose(x, (1, 0)), r[:, None])[:, 0]

    text = text_of(pytensors, np.ones((500, 20)), np.ones(500))
    assert "transpose(" in text, "engines/jax_vectors.py can go, if it is as fast now"


SHAPES = {
    "of one pass": (500, 20),
    "in blocks": (2**13 * 3, 16),
    "in blocks and a rest": (32_771, 17),  # a prime number
    "narrow": (4000, 2),
    "narrow and long": (2**21 + 2**14, 2),
    "wide": (7, 2**17),
    "one row": (1, 5),
    "no rows": (0, 5),
    "no columns": (5, 0),
}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@in_a_child
def test_values_are_those_of_numpy_whatever_the_shape(dtype):
    x, r = pt.matrix("x", dtype=dtype), pt.vector("r", dtype=dtype)
    f = prepared([x, r], [x.T @ r])
    rng = np.random.default_rng(0)
    jax_vectors._HUGE = 2**20  # here, in a process of its own
    for name, (n, d) in SHAPES.items():
        a, b = rng.normal(3, 1, (n, d)).astype(dtype), rng.normal(3, 1, n).astype(dtype)
        found = np.asarray(f(a, b)[0])
        assert found.dtype == dtype
        exact, size = wide(a).T @ wide(b), np.abs(wide(a)).T @ np.abs(wide(b))
        # As numpy's; blocks are better.
        bound = np.finfo(dtype).eps * (30 if "blocks" in name else 4 * np.sqrt(n + 1))
        assert np.all(np.abs(found - exact) <= bound * size), name


def wide(x):
    """Return numbers with more digits than float64."""
    return x.astype("longdouble")


@in_a_child
def test_what_is_not_finite_reaches_its_column_and_no_other():
    x, r = pt.dmatrix("x"), pt.dvector("r")
    f = prepared([x, r], [x.T @ r])
    jax_vectors._HUGE = 2**20
    for n, d in SHAPES["in blocks"], SHAPES["in blocks and a rest"]:
        a, b = np.ones((n, d)), np.ones(n)
        a[3, 1], a[-1, 2], a[5, 3], b[7], a[7] = np.nan, np.inf, -np.inf, 0, 2
        a[7, 4] = np.inf  # times 0
        (found,) = f(a, b)
        expected = np.full(d, float(n - 1))
        expected[[1, 2, 3, 4]] = np.nan, np.inf, -np.inf, np.nan
        np.testing.assert_array_equal(found, expected)


@in_a_child
def test_each_form_is_taken_where_it_is_the_fastest():
    import jax
    import jax.numpy as jnp

    def form(n, d, cores=1) -> str:
        jax_vectors._cores = lambda: cores
        shapes = [jax.ShapeDtypeStruct(s, jnp.float64) for s in [(n,), (n, d)]]
        text = str(jax.make_jaxpr(lambda r, x: jax_vectors.product(r, x))(*shapes))
        loop = "while" in text or "scan" in text
        return "loop" if loop else "blocks" if "reshape" in text else "whole"

    jax.config.update("jax_enable_x64", True)
    assert form(1_000_000, 20) == "blocks"
    assert form(1_000_000, 20, cores=16) == "whole"  # divided between cores by XLA
    assert form(1_000_003, 20) == "loop"  # a prime number of rows
    assert form(10_007, 20) == "whole"  # in the cache
    assert form(1_000_000, 4) == "whole"  # read once
    assert form(200, 20_000) == "whole"  # few rows


@in_a_child
def test_products_with_matrices_stay_pytensors():
    x, w = pt.dmatrix("x"), pt.dmatrix("w")
    compiled = prepared([x, w], [x.T @ w])
    text = str(compiled.trace(np.ones((500, 20)), np.ones((500, 3))).jaxpr)
    assert text.count("dot_general") == 1
    assert text.count("transpose[") == 1


@pytest.mark.parametrize(
    ("n", "most", "divisor"), [(12, 5, 4), (13, 12, 1), (8, 8, 8), (6, 100, 6)]
)
def test_divisors(n, most, divisor):
    assert largest_divisor(n, most) == divisor
