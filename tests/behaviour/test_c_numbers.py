"""C modes: glibc's vector functions give the values that there are without."""

from __future__ import annotations

import math
import platform
import re
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.tensor.elemwise import Elemwise

import synk
from synk.engines.c_compiler import c_is_there, vector_flags
from synk.engines.c_settings import compile_in_c

pytestmark = pytest.mark.skipif(
    not (c_is_there() and vector_flags()), reason="needs gcc, and glibc on x86-64"
)

GROUPS = ["exp log log1p", "expm1 log2 arctanh", "sinh cosh tanh", "erf erfc exp2"]
GROUPS += ["arcsin arccos log10"]
"""Three to a loop: gcc makes no vector code of a loop with many results."""


def graph_of(names: list[str], dtype: str):
    x = pt.vector("x", dtype=dtype)
    return [x], [getattr(pt, name)(x) for name in names]


def in_c(inputs, outputs):
    """Return a function, and which vector functions it calls."""
    f = compile_in_c("CVM", pytensor.function, inputs, outputs, mode="CVM")
    thunks = [thunk.thunk for thunk in f.vm.thunks if hasattr(thunk, "thunk")]
    code = b"".join(Path(thunk.module.__file__).read_bytes() for thunk in thunks)
    return f, set(re.findall(rb"_ZGV[a-z]N\d+v_(\w+)", code))


def glibc() -> tuple[int, ...]:
    return tuple(map(int, platform.libc_ver()[1].split(".")))


def exact(name: str, x: np.ndarray) -> np.ndarray:
    """Return values, with more digits than float64 where numpy can."""
    if name in ("erf", "erfc"):
        return np.vectorize(getattr(math, name))(x)
    return getattr(np, name)(x.astype(np.longdouble))


def ordinary(dtype: str) -> np.ndarray:
    """Return numbers of all sizes: where exponentials are finite, and near 0 and 1."""
    random = np.random.default_rng(0)
    n, largest = 2001, 0.98 * np.log(np.finfo(dtype).max)
    small = 10 ** random.uniform(-12, 0, n)
    parts = [random.normal(size=n), random.uniform(-1, 1, n), small, -small, 1 + small]
    return np.concatenate([*parts, random.uniform(-largest, largest, n)]).astype(dtype)


def special(dtype: str) -> np.ndarray:
    """Return numbers at which something changes, each at several places of a vector."""
    f = np.finfo(dtype)
    sizes = [0, f.smallest_subnormal, f.tiny / 4, f.tiny, f.eps, 0.5, 1 - f.epsneg, 1]
    sizes += [1 + f.eps, 20, 37, 88.8, 104, 709.8, 746, f.max, np.inf, np.nan]
    signed = [sign * size for size in sizes for sign in (1, -1)]
    return np.tile(np.array(signed, dtype), 5)[:-3]


def assert_close(value: np.ndarray, right: np.ndarray, name: str) -> None:
    """Assert the same within 3 eps, and NaN, infinities and the signs of zeros."""
    tolerance = 3 * float(np.finfo(value.dtype).eps)
    with np.errstate(over="ignore"):
        right = right.astype(value.dtype)
    np.testing.assert_allclose(value, right, rtol=tolerance, atol=0, err_msg=name)
    known = ~np.isnan(right)
    np.testing.assert_array_equal(np.signbit(value[known]), np.signbit(right[known]))


@pytest.mark.parametrize("values", [ordinary, special])
@pytest.mark.parametrize(
    ("group", "dtype"),
    [*((group, "float64") for group in GROUPS), ("exp log tanh", "float32")],
)
def test_values_and_limits(group, dtype, values):
    names, x = group.split(), values(dtype)
    f, vector_functions = in_c(*graph_of(names, dtype))
    if glibc() >= (2, 35):  # of earlier ones some functions have no vectors
        assert vector_functions
    with np.errstate(all="ignore"):
        right = [exact(name, x) for name in names]
    for pair in zip(f(x), right, names, strict=True):
        assert_close(*pair)


def test_functions_with_cases_are_as_without():
    names = ["sigmoid", "softplus", "log1mexp"]
    plain = pytensor.function(*graph_of(names, "float64"), mode="CVM")
    f, _ = in_c(*graph_of(names, "float64"))
    for x in ordinary("float64"), special("float64"):
        for value, right, name in zip(f(x), plain(x), names, strict=True):
            assert_close(value, right, name)


def test_functions_of_several_arrays_are_vector_functions_too():
    # as in networks, where arrays are matrices, and one of them a bias
    x, b = pt.matrix("x", dtype="float32"), pt.vector("b", dtype="float32")
    f, vector_functions = in_c([x, b], pt.exp(x + b))
    values, bias = np.ones((5, 37), "float32"), np.linspace(-90, 80, 37)
    right = np.exp(values + bias.astype("float32"))
    np.testing.assert_allclose(f(values, bias.astype("float32")), right, rtol=4e-7)
    strided = np.asfortranarray(values)
    np.testing.assert_allclose(f(strided, bias.astype("float32")), right, rtol=4e-7)
    assert vector_functions == {b"expf"}


def test_values_do_not_depend_on_where_an_array_begins():
    # which differs from rank to rank, and what each computes alike must stay alike
    x = pt.dvector("x")
    inputs = [pytensor.In(x, mutable=True)]  # the result is written over it
    made = Elemwise(pytensor.scalar.exp, {0: 0})(x)
    how = {"mode": "CVM", "accept_inplace": True}
    f = compile_in_c("CVM", pytensor.function, inputs, made, **how)
    values, memory = ordinary("float64")[:1001], np.empty(1024)
    first = (-memory.ctypes.data) % 64 // 8
    results = []
    for place in range(first, first + 8):
        array = memory[place:][:1001]
        array[:] = values
        results.append(f(array).tobytes())
        assert array.tobytes() == results[-1]
    assert len(set(results)) == 1


def test_processors_settings_stay():
    # as they would not, if a module were linked with -ffast-math
    tiny = np.finfo(np.float64).tiny
    f, _ = in_c(*graph_of(["exp"], "float64"))
    f(np.ones(3))
    assert np.float64(tiny) / 4 * 4 == tiny


def test_calls_on_ranks_agree_with_the_serial_run():
    x, b = pt.dmatrix("x"), pt.dvector("b")
    loss = pt.softplus(x @ b).mean()
    outputs = [loss, pt.grad(loss, b), (pt.tanh(x), "gather")]
    f = synk.function([x], outputs, bcast_inputs=[b], mode="CVM", name="numbers")
    random = np.random.default_rng(0)
    with synk.session(3):
        f(random.normal(size=(1001, 5)), random.normal(size=5), check="serial")
