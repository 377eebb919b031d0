"""JAX mode: forms of element-wise functions are as exact as PyTensor's, and faster."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child

FUNCTIONS = {
    "softplus": (pt.softplus, 3.2),  # PyTensor's: 2.8
    "power 1.5": (lambda x: x**1.5, 1.3),  # PyTensor's of all powers: 0.51
    "power 2.5": (lambda x: x**2.5, 2.0),
    "power -1.5": (lambda x: x**-1.5, 2.3),
}
"""Functions, and how far off they may be, in units of the last place."""


def exactly(name: str, x: np.ndarray) -> np.ndarray:
    """Return a function's values with more digits than float64 has."""
    x = x.astype("longdouble")
    if name == "softplus":
        return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
    return np.power(x, np.longdouble(name.split()[1]))


def numbers(dtype: str) -> np.ndarray:
    """Return numbers of all sizes, of either sign, and those that are special."""
    limits = np.finfo(dtype)
    sizes = np.linspace(np.log(limits.tiny), np.log(limits.max), 50_001, dtype=float)
    special = [0, np.inf, np.nan, limits.tiny, limits.tiny / 4, limits.max]
    parts = np.exp(sizes), np.linspace(0, 100, 20_001), np.linspace(0, 1, 20_001)
    positive = np.concatenate([*parts, special]).astype(dtype)
    return np.concatenate([positive, -positive])


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@in_a_child
def test_errors_are_of_few_units_in_the_last_place(name, dtype):
    build, bound = FUNCTIONS[name]
    x, rest = pt.vector("x", dtype=dtype), pt.matrix("rest", dtype=dtype)
    # In a sum XLA makes other code; softplus is 0 of the rest, powers may be NaN.
    rows = pt.concatenate([x[:, None], rest], axis=1)
    f = pytensor.function([x, rest], [build(x), build(rows).sum(axis=1)], mode="JAX")
    values = numbers(dtype)
    zero = {"softplus": -np.inf, "power -1.5": np.inf}.get(name, 0.0)
    exact = exactly(name, values)
    rounded = exact.astype(dtype)
    small = np.abs(exact) < np.finfo(dtype).tiny  # what XLA makes 0
    for found in map(np.asarray, f(values, np.full((len(values), 7), zero, dtype))):
        assert found.dtype == dtype
        same = (found == rounded) | (np.isnan(found) & np.isnan(rounded))
        same |= small & (found == 0) | (np.abs(values) < np.finfo(dtype).tiny)
        unit = np.spacing(np.abs(rounded))
        off = np.abs(found.astype("longdouble") - exact) / unit
        assert np.all(same | (off <= bound)), (values[~same & ~(off <= bound)])[:5]


@in_a_child
def test_special_values_are_those_of_numpy():
    x = pt.dvector("x")
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0, 5e-324])
    for p in (1.5, 2.5, -1.5):
        with np.errstate(all="ignore"):
            expected = special**p
        found = pytensor.function([x], x**p, mode="JAX")(special)
        np.testing.assert_array_equal(found, expected)
        assert not np.signbit(np.asarray(found)[:4]).any()
    softplus = pytensor.function([x], pt.softplus(x), mode="JAX")(special[:5])
    np.testing.assert_array_equal(softplus[2:], [np.inf, 0, np.nan])


@in_a_child
def test_other_powers_and_whole_numbers_are_pytensors():
    x, i, p = pt.dvector("x"), pt.bvector("i"), pt.dvector("p")
    f = pytensor.function([x, i, p], [x**0.3, x**3.5, i**1.5, x**p], mode="JAX")
    a, b, c = np.array([2.0, 3]), np.array([4, 9], "int8"), np.array([1.5, 2])
    found = f(a, b, c)
    for value, expected in zip(found, [a**0.3, a**3.5, b**1.5, a**c], strict=True):
        np.testing.assert_allclose(value, expected, 1e-15)


@in_a_child
def test_a_constant_of_more_digits_gives_the_result_its_digits():
    x = pt.fvector("x")
    f = pytensor.function([x], x ** pt.constant(1.5, dtype="float64"), mode="JAX")
    assert f(np.array([2], "float32")) == np.array([2.0]) ** 1.5


@in_a_child
def test_a_constant_of_more_dimensions_gives_the_result_its_shape():
    x = pt.dvector("x")
    made = x[None, :] ** pt.constant(np.full((3, 1), 1.5))
    found = pytensor.function([x], made, mode="JAX")(np.array([1.0, 4]))
    np.testing.assert_array_equal(found, [[1, 8]] * 3)


@in_a_child
def test_xla_has_no_power_to_compute():
    x = pt.dvector("x")
    made = [x**1.5, x**-1.5, x**2.5]
    compiled = pytensor.function([x], made, mode="JAX").vm.jit_fn
    assert " power(" not in compiled.lower(np.ones(5)).compile().as_text()


# -- whether they can go --------------------------------------------------------------

PYTENSORS = """
import numpy as np, jax, jax.numpy as jnp, pytensor, pytensor.tensor as pt
jax.config.update("jax_enable_x64", True)
from pytensor.link.jax.dispatch import jax_funcify
x = pt.dvector("x")
theirs = pytensor.function([x], pt.softplus(x).sum(), mode="JAX").vm.jit_fn
mine = jax.jit(lambda x: (jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-abs(x)))).sum())
value = jnp.asarray(np.random.default_rng(0).normal(size=200_000))
def program(f):
    return f.lower(value).compile().as_text()

# It takes four times as long, for both branches of a condition are computed.
times = [program(f).count(" exponential(") for f in (theirs, mine)]
print("slow" if times == [2, 1] else f"the form can go: {times}")
f = pytensor.function([x], x**1.5, mode="JAX").vm.jit_fn
print("slow" if " power(" in program(f) else "powers can go")
"""


def test_pytensor_alone_still_needs_the_forms():
    pytest.importorskip("jax", reason="JAX, of the extra synk[jax], is not installed")
    done = subprocess.run(
        [sys.executable, "-c", PYTENSORS],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.split("\n") == ["slow", "slow", ""], done.stdout + done.stderr
