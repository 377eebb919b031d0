"""Numba mode: gammaln and psi by vectors."""

from __future__ import annotations

import re

import mpmath
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.special
from numba_keys import keys_of
from pytensor.compile.mode import get_mode
from test_numba_elemwise import code_of, own

from synk.engines.numba_code import with_own_code

NUMBA = get_mode("NUMBA")

EXACT = {
    "gammaln": lambda x: mpmath.re(mpmath.loggamma(x)),
    "psi": mpmath.digamma,
}
UNITS = {"gammaln": 5, "psi": 8}
"""In the last place, that a value may be off; docs/design.rst has them."""

ROOTS = [1.0, 2.0, 1.4616321449683623]

SPECIAL = [0.0, -0.0, -1.0, -2.0, -1e300, -(2.0**53), np.inf, -np.inf, np.nan]
SPECIAL += [5e-324, -5e-324, 1e-310, 1e-300, -1e-300, 2.556e305, 1e308, 1.0, 2.0]


def of_each(name: str, x: np.ndarray) -> np.ndarray:
    with mpmath.workdps(50):
        return np.array([EXACT[name](mpmath.mpf(float(each))) for each in x])


def apart(found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    with mpmath.workdps(50):
        return np.array(
            [
                float(abs(mpmath.mpf(float(f)) - e))
                for f, e in zip(found, exact, strict=True)
            ]
        )


def computed(name: str, x: np.ndarray) -> np.ndarray:
    of = pt.vector("x", dtype="float64")
    return own([of], getattr(pt, name)(of))(x)


def around(rng: np.random.Generator, point: float) -> np.ndarray:
    return point + rng.choice([-1, 1], 500) * np.exp(rng.uniform(-36, -1, 500))


@pytest.mark.parametrize("name", EXACT)
def test_values_of_positive_numbers_are_near_the_exact_ones(name):
    rng = np.random.default_rng(0)
    ends = [0.5, 1.5, 2.5, 10.0, 10.5, ROOTS[2] - 0.5, ROOTS[2] + 0.5]
    sides = [np.nextafter(ends, way) for way in (0, 99)]
    x = [rng.uniform(0, 14, 2000), np.exp(rng.uniform(-700, 700, 1000)), ends, *sides]
    x = np.concatenate([*x, *[around(rng, root) for root in ROOTS], np.arange(3.0, 30)])
    exact = of_each(name, x)
    units = apart(computed(name, x), exact) / np.spacing(np.abs(exact.astype(float)))
    assert units.max() < UNITS[name], (x[units.argmax()], units.max())


@pytest.mark.parametrize("name", EXACT)
def test_values_of_negative_numbers_are_near_for_what_is_added_up(name):
    rng = np.random.default_rng(1)
    y = np.concatenate([rng.uniform(0, 14, 1000), np.exp(rng.uniform(-30, 30, 1000))])
    at_poles = np.pi * (y - np.round(y))
    parts = {
        "gammaln": [
            of_each(name, y),
            np.log(y / np.pi),
            np.log(np.abs(np.sin(at_poles))),
        ],
        "psi": [of_each(name, y), 1 / y, np.pi / np.tan(at_poles)],
    }[name]
    scale = np.sum(np.abs(np.array(parts, dtype="float64")), axis=0)
    errors = apart(computed(name, -y), of_each(name, -y)) / scale
    assert errors.max() < 4 * np.finfo("float64").eps, y[errors.argmax()]


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_special_values_are_those_of_ieee_754(name):
    """SciPy's; but for gammaln of denormals and of -inf, which are the C library's."""
    x = np.array(SPECIAL)
    expected = getattr(scipy.special, name)(x)
    if name == "gammaln":
        expected[x == -np.inf] = np.inf
        expected[np.abs(x) < 1e-300] = -np.log(np.abs(x[np.abs(x) < 1e-300]))
    np.testing.assert_allclose(computed(name, x), expected, rtol=1e-15)


@pytest.mark.parametrize("name", EXACT)
def test_one_number_and_strided_ones(name):
    x, y = pt.scalar("x", dtype="float64"), pt.matrix("y", dtype="float64")
    f = getattr(pt, name)
    values = np.random.default_rng(1).uniform(3, 30, (7, 8))
    one, some = own([x, y], [f(x), f(y[::-2, 1::3])])(values[2, 3], values)
    whole = getattr(scipy.special, name)(values)
    np.testing.assert_allclose(one, whole[2, 3], rtol=2e-15)
    np.testing.assert_allclose(some, whole[::-2, 1::3], rtol=2e-15)


@pytest.mark.parametrize("name", EXACT)
def test_other_dtypes_and_plain_functions_are_pytensors(name):
    def plain(dtype):
        x = pt.vector("x", dtype=dtype)
        return pytensor.function([x], getattr(pt, name)(x), mode=NUMBA)

    for dtype in ("float32", "int64"):
        before = keys_of(lambda dtype=dtype: plain(dtype))
        assert before == keys_of(lambda dtype=dtype: with_own_code(NUMBA, plain, dtype))
    before = keys_of(lambda: plain("float64"))
    mine = keys_of(lambda: with_own_code(NUMBA, plain, "float64"))
    assert mine
    assert before == keys_of(lambda: plain("float64"))
    assert not mine & before, "code of ours has a key of PyTensor's"


def test_a_negative_binomial_is_one_loop_over_vectors():
    eta, counts, alpha = (pt.vector(name, dtype="float64") for name in ("e", "c", "a"))
    terms = pt.gammaln(counts + alpha) - pt.gammaln(alpha)
    terms -= (alpha + counts) * pt.log(alpha + pt.exp(eta)) - counts * eta
    # Another one each time: what lies on disk has no code of LLVM's with it.
    terms *= np.random.default_rng().uniform(1, 2)
    outputs = [terms, *pt.grad(terms.sum(), [eta, alpha])]
    function = own([eta, counts, alpha], outputs)
    plain = pytensor.function([eta, counts, alpha], outputs, mode=NUMBA)
    values = np.random.default_rng(2).uniform(1, 5, (3, 100))
    for found, expected in zip(function(*values), plain(*values), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    calls = r"call[^@\n]* double @\"?(?:llvm\.)?(?:exp|log|lgamma|numba_gammaln)[.\"(]"
    assert re.search(calls, code_of(plain)), (
        "the test sees no call where there are some"
    )
    assert not re.search(calls, code_of(function))
    assert len(re.findall(r"fmul[^\n]* <\d+ x double>", code_of(function))) > 100
