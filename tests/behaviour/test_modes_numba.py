"""Numba mode: what synk has numba compile otherwise is as exact as without it."""

import functools

import mpmath
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.special
from numba.core import event
from pytensor.compile.mode import Mode
from pytensor.tensor.blas import BatchedDot
from reference import PY

import synk

NUMBA = Mode("numba", None)
"""No rewrites: a graph is compiled as it is written."""

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

GAMMAS = {
    "gammaln": (lambda x: mpmath.re(mpmath.loggamma(x)), 5),
    "psi": (mpmath.digamma, 8),
}
"""And units in the last place that a value may be off; docs/modes.rst has them."""

NAMES = [*EXACT, *GAMMAS]
SPECIAL = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 5e-324, -5e-324, 1e-310]
SPECIAL += [2.2250738585072014e-308, -1e-310, 1e300, -1e300, 1.7976931348623157e308]
SPECIAL += [709.782712893384, 709.7827128933841, 710.0, -708.4, -745.13, -745.14]
SPECIAL += [-746.0, 0.5, 2.0, 0.25, -0.5, 1e-17, -1e-17, 37.0, -37.0, 40.0, -40.0]
SPECIAL += [19.1, -19.1, 2.0**54, -(2.0**-54), 1 - 2.0**-53, -1 + 2.0**-53]
SPECIAL += [1024 * np.log(2.0)]
# The same of float32
SPECIAL += [1e-45, -1e-45, 1.1754944e-38, 1e-40, 3.4e38, -3.4e38, 88.7228, 88.7229]
SPECIAL += [-87.34, -103.97, -103.98, -104.1, 16.6, -16.6, 1 - 2.0**-24, -1 + 2.0**-24]

LIMITS = [("float64", -745, 709), ("float32", -104, 88)]
"""Of what has an exponential that is neither 0 nor infinite."""

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def in_numba(inputs, outputs, mode="NUMBA"):
    """Return a function of one process that synk has numba compile."""
    outputs = [(output, None) for output in outputs]
    return synk.function([], outputs, bcast_inputs=inputs, mode=mode).as_theano


@functools.cache
def all_functions(dtype):
    """Return a function of numba's that makes all of them of a vector."""
    x = pt.vector(dtype=dtype)
    return in_numba([x], [getattr(pt, name)(x) for name in NAMES])


def values_of(x) -> dict[str, np.ndarray]:
    return dict(zip(NAMES, all_functions(x.dtype.name)(x), strict=True))


@pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="no longer floats")
@pytest.mark.parametrize(("dtype", "low", "high"), LIMITS)
def test_elementary_functions_are_near_the_exact_ones_and_special_as_they(
    dtype, low, high
):
    rng = np.random.default_rng(0)
    signs, n = rng.choice([-1.0, 1.0], 20_000), 20_000
    parts = [rng.normal(size=n) * 3, rng.uniform(-1, 1, n), rng.uniform(low, high, n)]
    for place, least, most in ((0, low, high), (0, -40, 5), (1, -36, -1)):
        parts.append(place + signs * np.exp(rng.uniform(least, most, n)))
    values = np.concatenate([*parts, SPECIAL]).astype(dtype)
    by_name = values_of(values)
    for name, exact_of in EXACT.items():
        exact, found = exact_of(values.astype(np.longdouble)), by_name[name]
        rounded = exact.astype(dtype)
        finite, zero = np.isfinite(rounded), rounded == 0
        np.testing.assert_array_equal(found[~finite], rounded[~finite], name)
        signs = np.signbit(found[zero]), np.signbit(rounded[zero])
        np.testing.assert_array_equal(*signs, name)
        off = np.abs(found.astype(np.longdouble) - exact)[finite]
        units = off / np.spacing(np.abs(rounded[finite])).astype(np.longdouble)
        worst = int(units.argmax())
        assert units[worst] < 2.5, (name, values[finite][worst])


def test_special_values_of_gammaln_and_psi_are_those_of_scipy():
    of_gammas = [0.0, -0.0, -1.0, -2.0, -1e300, -(2.0**53), np.inf, -np.inf, np.nan]
    of_gammas += [5e-324, -5e-324, 1e-310, 1e-300, -1e-300, 2.556e305, 1e308, 1.0, 2.0]
    values = np.array(of_gammas)
    by_name = values_of(values)
    for name in GAMMAS:
        expected = getattr(scipy.special, name)(values)
        if name == "gammaln":  # SciPy's is not the C library's there
            expected[values == -np.inf] = np.inf
            few = np.abs(values) < 1e-300
            expected[few] = -np.log(np.abs(values[few]))
        np.testing.assert_allclose(by_name[name], expected, 1e-15, err_msg=name)


def of_each(name: str, x: np.ndarray) -> np.ndarray:
    with mpmath.workdps(50):
        return np.array([GAMMAS[name][0](mpmath.mpf(float(each))) for each in x])


def apart(found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    with mpmath.workdps(50):
        pairs = zip(found, exact, strict=True)
        return np.array([float(abs(mpmath.mpf(float(f)) - e)) for f, e in pairs])


def test_gammaln_and_psi_are_near_the_exact_ones():
    rng = np.random.default_rng(0)
    roots = [1.0, 2.0, 1.4616321449683623]
    ends = [0.5, 1.5, 2.5, 10.0, 10.5, roots[2] - 0.5, roots[2] + 0.5]
    x = [rng.uniform(0, 14, 500), np.exp(rng.uniform(-700, 700, 250)), ends]
    x += [np.nextafter(ends, way) for way in (0, 99)]
    for root in roots:
        x.append(root + rng.choice([-1, 1], 150) * np.exp(rng.uniform(-36, -1, 150)))
    x = np.concatenate([*x, np.arange(3.0, 30)])
    by_name = values_of(x)
    for name, (_, bound) in GAMMAS.items():
        exact = of_each(name, x)
        units = apart(by_name[name], exact) / np.spacing(np.abs(exact.astype(float)))
        assert units.max() < bound, (name, x[units.argmax()], units.max())
    # Of negative numbers they are near for what is added up.
    y = np.concatenate([rng.uniform(0, 14, 250), np.exp(rng.uniform(-30, 30, 250))])
    by_name = values_of(-y)
    at_poles = np.pi * (y - np.round(y))
    added = {
        "gammaln": [np.log(y / np.pi), np.log(np.abs(np.sin(at_poles)))],
        "psi": [1 / y, np.pi / np.tan(at_poles)],
    }
    for name, parts in added.items():
        parts = np.array([of_each(name, y), *parts], dtype="float64")
        errors = apart(by_name[name], of_each(name, -y)) / np.abs(parts).sum(axis=0)
        assert errors.max() < 4 * np.finfo("float64").eps, (name, y[errors.argmax()])


def test_one_number_and_strided_ones_are_as_those_of_a_vector():
    one, some = pt.dscalar(), pt.dmatrix()
    of_one, of_some = NAMES[::2], NAMES[1::2]
    outputs = [getattr(pt, name)(one) for name in of_one]
    outputs += [getattr(pt, name)(some[::-2, 1::3]) for name in of_some]
    f = in_numba([one, some], outputs)
    for sign in (1, -1):
        values = sign * np.random.default_rng(1).uniform(0.01, 0.9, (7, 8))
        whole = values_of(values.ravel())
        for name, found in zip(of_one + of_some, f(values[2, 3], values), strict=True):
            right = whole[name].reshape(7, 8)
            right = right[2, 3] if name in of_one else right[::-2, 1::3]
            np.testing.assert_allclose(found, right, 2e-15, err_msg=name)


# -- transposes and products


def test_what_reads_a_transpose_reads_its_values():
    vector, matrix, cube = pt.dvector(), pt.dmatrix(), pt.dtensor3()
    column, t = vector.dimshuffle(0, "x"), cube.dimshuffle(2, 1, 0)
    made = [view.reshape((-1,)) for view in (column, matrix.T, t)]
    made += [view.dot(view.T) for view in (column, matrix.T)]
    made += [t[::-1], pt.set_subtensor(matrix.T[:1], 2.0)]
    inputs = [vector, matrix, cube]
    f, plain = in_numba(inputs, made, NUMBA), pytensor.function(inputs, made, mode=PY)
    for shape in [(1, 2, 3), (3, 1, 2), (2, 3, 1)]:
        value = np.random.default_rng(0).normal(size=shape)
        given = value[:, 0, 0].copy(), value[:, :, 0].copy(), value
        for mine, other in zip(f(*given), plain(*given), strict=True):
            np.testing.assert_allclose(mine, other)


def test_products_are_numpys_whatever_the_layout():
    kinds = [(None, None), (None, 1), (1, None), (None,)]
    inputs = [pt.tensor(dtype="float64", shape=shape) for shape in kinds]
    x, column, row, vector = inputs
    outputs = [
        *(pt.dot(x, vector), pt.dot(x, column), pt.dot(row, x.T), pt.dot(row, column)),
        *(pt.dot(x[::-1, ::2], vector[::-2]), pt.dot(x.T, pt.dot(x, column))),
        *(pt.dot(x.T, pt.dot(x, vector)), pt.dot(pt.dot(row, x.T), x)),
    ]
    f = in_numba(inputs, outputs, NUMBA)
    rng = np.random.default_rng(0)
    for n, k in [(7, 5), (1, 5), (7, 1), (0, 5), (7, 0), (70, 33)]:
        a, v = rng.normal(size=(n, k)), rng.normal(size=k)
        c, r = rng.normal(size=(k, 1)), rng.normal(size=(1, k))
        right = [a @ v, a @ c, r @ a.T, r @ c, a[::-1, ::2] @ v[::-2], a.T @ a @ c]
        right += [a.T @ (a @ v), r @ a.T @ a]
        for found, expected in zip(f(a, c, r, v), right, strict=True):
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
    for wrong in ((c[:2], r, v), (c, r[:, :2], v), (c, r, v[:2])):
        with pytest.raises(ValueError, match="incompatible array sizes"):
            f(np.ones((4, 33)), *wrong)


def test_filled_arrays_products_and_sums_have_code_for_their_layout_alone():
    """Numba takes 3 s to compile an error's text, and 4 for all ways of strides."""
    numbers, lengths, x = [pt.dscalar(), pt.bscalar()], pt.lvector(), pt.dmatrix()
    given = [np.array(2.5), np.array(-3, "int8"), np.array([4, 2, 3, 2])]
    given.append(np.random.default_rng(0).normal(size=(301, 7)))
    made = [pt.alloc(numbers[0].dimshuffle("x", "x"), 3, 2), x.sum()]
    made += [x.sum(axis=0), x.sum(axis=1), pt.cast(x, "int8").sum(axis=0)]
    made += [x.max(), x.max(axis=0), x.max(axis=1), x.min(axis=0)]
    stack = x.reshape((43, 7, 7))
    made.append(BatchedDot()(stack, stack.transpose(0, 2, 1)))
    for i in (1, 2, 3, 4):
        shape = [lengths[k] for k in range(i)]
        made.append(pt.alloc(numbers[i % 2], *shape))
    inputs = [*numbers, lengths, x]
    with event.install_recorder("numba:compile") as recorder:
        found = in_numba(inputs, made, NUMBA)(*given)
    expected = pytensor.function(inputs, made, mode=PY)(*given)
    for value, same in zip(found, expected, strict=True):
        assert (value.dtype, value.shape) == (same.dtype, same.shape)
        np.testing.assert_allclose(value, same, rtol=1e-14)
    compiled = [each.data["dispatcher"].py_func for _, each in recorder.buffer]
    names = " ".join(made.__qualname__ for made in compiled)
    assert "raise_with_shape" not in names
    assert "quicksort" not in names


@pytest.mark.slow
def test_sums_of_strided_arrays_have_pytensors_code():
    x, strided = pt.dmatrix(), np.random.default_rng(0).normal(size=(301, 7))[::-2]
    (total,) = in_numba([x], [x.sum(axis=0)], NUMBA)(strided)
    np.testing.assert_allclose(total, strided.sum(axis=0), rtol=1e-12)


def test_nan_is_the_maximum_and_the_minimum():
    x = pt.dmatrix()
    f = in_numba([x], [x.max(), x.max(axis=0), x.max(axis=1), x.min(axis=0)], NUMBA)
    for row in range(3):
        values = np.arange(6.0).reshape(3, 2)
        values[row, 1] = np.nan
        right = [np.nan, values.max(axis=0), values.max(axis=1), values.min(axis=0)]
        for found, expected in zip(f(values), right, strict=True):
            np.testing.assert_array_equal(found, expected)


def test_what_is_not_finite_and_the_rows_beside_change_no_other_row():
    x, w = pt.dmatrix("x"), pt.dvector("w")
    f = in_numba([x, w], [pt.dot(x, w)], NUMBA)
    a = np.ones((5, 20))
    a[0, 3], a[1, 4], a[2, 5] = np.inf, -np.inf, np.nan
    a[3, :2] = np.inf, -np.inf
    expected = [np.inf, -np.inf, np.nan, np.nan, 20]
    np.testing.assert_array_equal(f(a, np.ones(20))[0], expected)
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(50, 21)), rng.normal(size=21)
    (whole,) = f(a, b)
    for start in range(13):
        stop = start + 1 + 2 * start
        np.testing.assert_array_equal(f(a[start:stop].copy(), b)[0], whole[start:stop])
