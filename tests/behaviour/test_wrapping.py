"""Integers near the limits of their dtypes: they wrap around as in the serial run."""

from __future__ import annotations

import random

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child
from pytensor import scalar as ps
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import Min
from reference import PY

import synk

INTEGERS = [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
ROWS = 9


def near_the_limits(dtype, shape):
    """Return values that are small, or close to the least or the largest."""
    limits, rng = np.iinfo(dtype), np.random.default_rng(3)
    close = [limits.min, limits.min + 2, limits.max, limits.max - 5, limits.max // 2]
    some = [*close, 1, 3, 7, limits.max // 3, limits.max // 5 + 1]
    return np.array(some, dtype)[rng.integers(0, len(some), shape)]


def reduced(x):
    """Return what comes of rows, over all of them."""
    dtype = x.type.dtype
    return [
        x.max(axis=0),
        Min(axis=(0,))(x),  # x.min() is -max(-x), of the least what rewrites make of it
        x.sum(axis=0),
        x.sum(axis=0, dtype=dtype),
        x.prod(axis=0, dtype=dtype),
        pt.dot(x.T, x),
        x.shape[0].astype(dtype) * x[0, 0],
        x.shape[0].astype(dtype) * x,
        pt.eq(x, x.max()).sum(axis=0),
        (x * 3).max(axis=0),
        -Min(axis=(0,))(x),
    ]


def converted(v, dtype):
    """Return a cast whose Op nothing has compiled before; see `casts_in_python`."""
    return Elemwise(ps.Cast(getattr(ps, dtype), f"cast to {dtype}"))(v)


def wrapping(dtype):
    """Return what makes of a number one of a dtype, as C does."""
    return lambda number: np.asarray(number).astype(dtype)[()]


def steps(n):
    """Return what computes with such a value."""

    def constants(v):
        limits = np.iinfo(v.type.dtype) if v.type.dtype in INTEGERS else None
        few = [2, 10] if limits is None else [2, 10, limits.max - 3, limits.min + 1]
        return [np.array(one).astype(v.type.dtype) for one in few]

    def with_constant(function):
        return lambda v, choice: function(v, choice.choice(constants(v)))

    def cast_to(dtype):
        is_out_of_range = dtype in INTEGERS

        def cast(v, choice):
            if is_out_of_range and v.type.dtype.startswith("float"):
                return v  # what comes of it is not defined
            return converted(v, dtype)

        return cast

    return [
        *map(with_constant, [pt.add, pt.mul, pt.sub, pt.maximum, pt.minimum]),
        with_constant(lambda v, c: c - v),
        with_constant(lambda v, c: v // c),
        with_constant(lambda v, c: v / c),
        with_constant(lambda v, c: pt.switch(v > 0, v, c)),
        lambda v, choice: -v,
        lambda v, choice: pt.abs(v),
        lambda v, choice: pt.sqr(v),
        lambda v, choice: v + v,
        lambda v, choice: v * n,
        lambda v, choice: v / n,
        lambda v, choice: v + np.int32(1),
        lambda v, choice: v + np.int64(1),
        lambda v, choice: v.sum(axis=-1),
        lambda v, choice: v.max(axis=-1),
        lambda v, choice: pt.stack([v, converted(v, "int64")]),
        *map(cast_to, [*INTEGERS, "float64", "float32"]),
    ]


def expressions(x, seed, many):
    """Yield values of one, two or three steps."""
    choice = random.Random(seed)
    first, then = reduced(x), steps(x.shape[0])
    for _ in range(many):
        value = choice.choice(first)
        for _ in range(choice.choice([1, 2, 2, 3])):
            if value.type.ndim:
                value = choice.choice(then)(value, choice)
        yield value


@pytest.fixture
def casts_in_python(monkeypatch):
    """Have casts wrap around in Python mode as they do in C; they would raise there.

    PyTensor's own Ops keep the method that they were compiled with, which may have been
    before; it asks for their `ctor`.
    """

    def impl(self, number):
        return wrapping(self.o_type.dtype)(number)

    monkeypatch.setattr(ps.Cast, "impl", impl)
    for dtype in INTEGERS:
        cast = getattr(ps, f"convert_to_{dtype}")
        monkeypatch.setattr(cast, "ctor", wrapping(dtype))


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::UserWarning")
def test_values_near_the_limits_are_those_of_the_serial_run(casts_in_python, n):
    with synk.session(n):
        for seed, dtype in enumerate(INTEGERS):
            x = pt.matrix("x", dtype=dtype)
            values = near_the_limits(dtype, (ROWS, 3))
            outputs = list(expressions(x, 10 * seed + n, 60))
            expected = pytensor.function([x], outputs, mode=PY)(values)
            found = synk.function([x], outputs, mode=PY)(values)
            for var, one, other in zip(outputs, found, expected, strict=True):
                text = f"{dtype}: {pytensor.printing.pp(var)}"
                assert one.dtype == other.dtype, text
                np.testing.assert_allclose(one, other, 1e-5, err_msg=text)
                if one.dtype.kind in "biu":
                    np.testing.assert_array_equal(one, other, text)


UNSIGNED, SHORT, LONG = (
    pt.vector(dtype, dtype=dtype) for dtype in ("uint32", "int32", "int64")
)
WRAPPING = [
    (UNSIGNED, UNSIGNED.max() + np.uint32(10), [4294967290, 7, 5], 4),
    (LONG, pt.cast(LONG.max(), "int32"), [2**32 + 5, 7, 99], 5),
    (LONG, pt.cast(LONG.max(), "float32"), [2**40, 7, 99], 2.0**40),
    (LONG, 2 * LONG.max(), [2**62 + 1, 7, 99], 2 - 2**63),
    (LONG, 5 - LONG.max(), [-(2**63), -(2**63), 7], -2),
    (LONG, LONG.sum() / 2, [2**62, 2**62, 2**62 + 2**20], -(2.0**61) + 2**19),
    (SHORT, SHORT.sum(dtype="int32").astype("int64"), [2**31 - 1, 1, 5], 5 - 2**31),
]
"""An input, an expression, rows and the right value."""


def check_wrapping(mode):
    inputs = [UNSIGNED, SHORT, LONG]
    f = synk.function(inputs, [made for _, made, _, _ in WRAPPING], mode=mode)
    for i, (x, made, rows, right) in enumerate(WRAPPING):
        values = [rows if one is x else [0, 0, 0] for one in inputs]
        given = zip(values, inputs, strict=True)
        found = f(*(np.array(value, of.type.dtype) for value, of in given))[i]
        assert found == right, pytensor.printing.pp(made)


def test_they_wrap_in_numba(two_ranks):
    check_wrapping("NUMBA")


@in_a_child
def test_they_wrap_in_jax():
    with synk.session(2):
        check_wrapping("JAX")


def test_a_difference_of_large_constants_is_no_zero(two_ranks):
    x = pt.vector("x", dtype="int64")
    one, other = (pt.constant(2**62 + i, dtype="int64") for i in range(2))
    f = synk.function([x], x.sum() + (other - one), mode=PY)
    assert f(np.arange(4)) == 7
