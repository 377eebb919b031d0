"""Numba mode: functions of float64 by vectors, in what synk compiles alone."""

from __future__ import annotations

import re

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from numba_keys import keys_of
from pytensor.compile.mode import get_mode

from synk.engines.numba_code import with_own_code

NUMBA = get_mode("NUMBA")

LOG_HALF = -np.log(2.0)

EXACT = {
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "log1p": np.log1p,
    "log1mexp": lambda x: np.where(
        x > LOG_HALF, np.log(-np.expm1(x)), np.log1p(-np.exp(x))
    ),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "softplus": lambda x: np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0),
    "tanh": np.tanh,
}
"""By numbers of more digits."""

SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 5e-324, -5e-324, 1e-310]
SPECIAL += [2.2250738585072014e-308, -1e-310, 1e300, -1e300, 1.7976931348623157e308]
SPECIAL += [
    709.782712893384,
    709.7827128933841,
    710.0,
    -708.4,
    -745.13,
    -745.14,
    -746.0,
]
SPECIAL += [0.5, 2.0, 0.25, -0.5, 1e-17, -1e-17, 37.0, -37.0, 40.0, -40.0, 19.1]
SPECIAL += [
    -19.1,
    2.0**54,
    -(2.0**-54),
    1 - 2.0**-53,
    -1 + 2.0**-53,
    1024 * np.log(2.0),
]


def points(name: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    signs = rng.choice([-1.0, 1.0], 20_000)
    found = [
        rng.normal(size=20_000) * 3,
        rng.uniform(-1, 1, 20_000),
        rng.uniform(-745, 709, 20_000),
        signs * np.exp(rng.uniform(-740, 700, 20_000)),
        signs * np.exp(rng.uniform(-40, 5, 20_000)),
        1 + signs * np.exp(rng.uniform(-36, -1, 20_000)),
        SPECIAL,
    ]
    x = np.concatenate(found)
    if name == "log":
        x = x[~(x < 0)]
    if name == "log1p":
        x = x[~(x < -1)]
    return x[~(x > 0)] if name == "log1mexp" else x


def own(inputs, graph):
    return with_own_code(NUMBA, pytensor.function, inputs, graph, mode=NUMBA)


def code_of(function) -> str:
    """Return what LLVM made of a function that was called."""
    return "\n".join(function.vm.jit_fn.inspect_llvm().values())


@pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="no longer floats")
@pytest.mark.parametrize("name", EXACT)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_values_are_near_the_exact_ones(name):
    x = pt.vector("x", dtype="float64")
    values = points(name)
    found = own([x], getattr(pt, name)(x))(values)
    exact = EXACT[name](values.astype(np.longdouble))
    rounded = exact.astype("float64")
    is_finite = np.isfinite(rounded)
    np.testing.assert_array_equal(found[~is_finite], rounded[~is_finite])
    apart = np.abs(found.astype(np.longdouble) - exact)[is_finite]
    units = apart / np.spacing(np.abs(rounded[is_finite])).astype(np.longdouble)
    worst = int(units.argmax())
    assert units[worst] < 2.5, values[is_finite][worst]


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_special_values_are_pytensors(name):
    x = pt.vector("x", dtype="float64")
    values = np.array(SPECIAL)
    graph = getattr(pt, name)(x)
    expected = pytensor.function([x], graph, mode="CVM")(values)
    found = own([x], graph)(values)
    np.testing.assert_allclose(found, expected, rtol=1e-15, atol=1e-307)
    of_zeros = np.signbit(expected[:2]), np.signbit(found[:2])
    np.testing.assert_array_equal(*of_zeros)


@pytest.mark.parametrize("name", EXACT)
def test_one_number_and_strided_ones(name):
    x, y = pt.scalar("x", dtype="float64"), pt.matrix("y", dtype="float64")
    f = getattr(pt, name)
    function = own([x, y], [f(x), f(y[::-2, 1::3])])
    values = -np.random.default_rng(1).uniform(0.01, 0.9, (7, 8))
    if name == "log":
        values = -values
    one, some = function(values[2, 3], values)
    whole = EXACT[name](values)
    np.testing.assert_allclose(one, whole[2, 3], rtol=1e-15)
    np.testing.assert_allclose(some, whole[::-2, 1::3], rtol=1e-15)


@pytest.mark.parametrize("name", EXACT)
def test_other_dtypes_are_pytensors(name):
    for dtype in ("float32", "int8"):
        x = pt.vector("x", dtype=dtype)

        def plain(x=x):
            return pytensor.function([x], getattr(pt, name)(x), mode=NUMBA)

        assert keys_of(plain) == keys_of(
            lambda plain=plain: with_own_code(NUMBA, plain)
        )


def students_t(number):
    """Return inputs and a graph whose loop has more in it than LLVM takes by itself."""
    x, nu, scale = (pt.vector(name, dtype="float64") for name in ("x", "nu", "scale"))
    z = x / pt.exp(scale)
    logp = -(nu + 1) / number * pt.log1p(z**2 / nu) - scale + pt.log(nu)
    return [x, nu, scale], [logp, *pt.grad(logp.sum(), [x, nu, scale])]


@pytest.mark.parametrize("is_cached", [True, False])
def test_loops_are_over_vectors(is_cached):
    with pytensor.config.change_flags(numba__cache=is_cached):
        # What lies on disk has no code of LLVM's with it: so it is compiled anew.
        inputs, outputs = students_t(np.random.default_rng().uniform(2, 3))
        function = own(inputs, outputs)
        plain = pytensor.function(inputs, outputs, mode=NUMBA)
        values = np.random.default_rng(2).uniform(1, 2, (3, 100))
        for found, expected in zip(function(*values), plain(*values), strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-14)
    calls = r"call[^@\n]* double @\"?(?:llvm\.)?(?:exp|log|log1p)[.\"(]"
    products = r"fmul[^\n]* <\d+ x double>"
    assert re.search(calls, code_of(plain)), (
        "the test sees no call where there are some"
    )
    assert not re.search(calls, code_of(function))
    assert len(re.findall(products, code_of(function))) > 20


@pytest.mark.parametrize("name", EXACT)
def test_a_plain_function_has_the_keys_that_it_has_without_synk(name):
    x = pt.vector("x", dtype="float64")

    def plain():
        return pytensor.function([x], getattr(pt, name)(x), mode=NUMBA)

    before = keys_of(plain)
    mine = keys_of(lambda: with_own_code(NUMBA, plain))
    assert before
    assert keys_of(plain) == before
    assert not mine & before, "code of ours has a key of PyTensor's"


def test_a_composites_key_tells_it_from_pytensors():
    inputs, outputs = students_t(2.0)

    def plain():
        return pytensor.function(inputs, outputs, mode=NUMBA)

    before = keys_of(plain)
    mine = keys_of(lambda: with_own_code(NUMBA, plain))
    # exp, log and log1p, what has them in it, and the graph
    assert len(mine - before) >= 5
