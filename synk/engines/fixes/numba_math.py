"""Functions of a float64 as sums and products alone, which LLVM vectorises.

A loop over ``exp`` of the C library takes one element at a time: 5 ns each on a core of
an AMD EPYC 9004, and ``log1p`` 8. The functions here take 2, as they have no branches
and calls, and LLVM computes four or eight elements at once.

They are within 2.5 units in the last place of the exact values, and NaN, infinities,
zeros of both signs and denormals are what IEEE 754 says. For that, sums and products
may be contracted (`FASTMATH`) but not reordered: a number is added and subtracted again
to round the value in between.

`exp` and `expm1`: x = k ln 2 + r, |r| <= ln(2) / 2, by W. J. Cody and W. Waite,
*Software manual for the elementary functions*, 1980; then Taylor's polynomial in r.
`log` and `log1p`: x = 2**k (1 + f), and with s = f / (2 + f) the series of
log((1 + s) / (1 - s)), its coefficients those of fdlibm's ``e_log.c`` (Sun
Microsystems, 1993).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

FASTMATH = {"contract"}
"""LLVM's fast-math flags for these functions."""

OPTIONS: dict[str, Any] = {
    "fastmath": FASTMATH,
    "error_model": "numpy",
    "forceinline": True,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}

_DOUBLE = ir.DoubleType()

_LOG2_E = math.log2(math.e)
_LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")
"""The first 32 bits of ln 2: its product with a whole number below 2**20 is exact."""
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_ROUND = 1.5 * 2.0**52
"""Adding this rounds a number to an integer, which is then in the last bits."""
_MANTISSA = 2**52 - 1
_ROOT_HALF = 0x3FE6A09E667F3BCD
"""The bits of sqrt(1 / 2)."""
_ONE = 0x3FF0000000000000
"""The bits of 1."""

# The coefficients of s**2 to s**14 in log((1 + s) / (1 - s)) / s - 2.
_L1, _L2, _L3, _L4, _L5, _L6, _L7 = (
    6.666666666666735130e-01,
    3.999999999940941908e-01,
    2.857142874366239149e-01,
    2.222219843214978396e-01,
    1.818357216161805012e-01,
    1.531383769920937332e-01,
    1.479819860511658591e-01,
)
# The coefficients of r**2 to r**13 in exp(r).
_E2, _E3, _E4, _E5, _E6, _E7, _E8, _E9, _E10, _E11, _E12, _E13 = (
    1 / math.factorial(n) for n in range(2, 14)
)


def instruction(returned: Any, given: Any, emit: Callable[[Any, Any], Any]) -> Any:
    """Return a function for compiled code: the LLVM instructions of ``emit``.

    `returned` and `given` are numba's types of its result and argument; ``emit(builder,
    x)`` appends the instructions and returns the value.
    """

    @intrinsic
    def made(typingctx, x):
        def codegen(context, builder, signature, args):
            return emit(builder, args[0])

        return returned(given), codegen

    return made


_WORD = ir.IntType(64)
_bits = instruction(types.int64, types.float64, lambda b, x: b.bitcast(x, _WORD))
"""The bits of a float64 as a whole number."""
_float = instruction(types.float64, types.int64, lambda b, x: b.bitcast(x, _DOUBLE))
"""The float64 of these bits."""
_exponent = instruction(
    types.int64, types.int64, lambda b, x: b.lshr(x, ir.Constant(_WORD, 52))
)
"""The bits from the 52nd on, by an unsigned shift: AVX2 has no signed one."""


def polynomial(
    coefficients: Iterable[float], kind: ir.Type = _DOUBLE
) -> Callable[[float], float]:
    """Return a polynomial for compiled functions; the constant comes first."""
    *lower, highest = [ir.Constant(kind, float(c)) for c in coefficients]
    of = types.float64 if kind == _DOUBLE else types.float32

    def emit(builder: Any, x: Any) -> Any:
        result = highest
        for coefficient in reversed(lower):
            result = builder.fmul(result, x, flags=["contract"])
            result = builder.fadd(result, coefficient, flags=["contract"])
        return result

    return instruction(of, of, emit)


@numba.njit(**OPTIONS)
def _power(k):
    """Return 2**k, -1022 <= k <= 1023."""
    return _float((k + 1023) << 52)


@numba.njit(**OPTIONS)
def _exp_parts(x):
    """Return k and e**r - 1 of x = k ln 2 + r; |x| < 1400."""
    shifted = x * _LOG2_E + (_ROUND + 2048)
    whole = shifted - (_ROUND + 2048)
    high, low = x - whole * _LN2_HIGH, whole * _LN2_LOW
    r = high - low
    missing = (high - r) - low  # the rounding error of r
    r2 = r * r
    r4 = r2 * r2
    from_2 = (_E2 + r * _E3) + r2 * (_E4 + r * _E5)
    from_6 = (_E6 + r * _E7) + r2 * (_E8 + r * _E9)
    from_10 = (_E10 + r * _E11) + r2 * (_E12 + r * _E13)
    rest = r2 * (from_2 + r4 * (from_6 + r4 * from_10))
    return (_bits(shifted) & 0xFFF) - 2048, r + (rest + missing)


@numba.njit(**OPTIONS)
def _times_power(x, k):
    """Return 2**k x, -1100 <= k <= 1100.

    In two factors, so that only the last product is rounded if the result is denormal,
    or overflows.
    """
    half = ((k + 2048) >> 1) - 1024  # k / 2, by a shift of a positive number, for AVX2
    return x * _power(half) * _power(k - half)


@numba.njit(**OPTIONS)
def _log_parts(x):
    """Return k and f of x = 2**k (1 + f), sqrt(1/2) <= 1 + f < sqrt(2)."""
    shifted = _bits(x) + (_ONE - _ROOT_HALF)
    k = _exponent(shifted) - 1023
    f = _float((shifted & _MANTISSA) + _ROOT_HALF) - 1.0
    # k as a float, by its bits: AVX2 does not convert vectors of integers.
    return _float(k + 0x4338000000000000) - _ROUND, f


@numba.njit(**OPTIONS)
def _log_series(z):
    """Return log((1 + s) / (1 - s)) / s - 2 of z = s**2."""
    w = z * z
    even = w * (_L2 + w * (_L4 + w * _L6))
    odd = z * (_L1 + w * (_L3 + w * (_L5 + w * _L7)))
    return odd + even


def made_of(
    dtype: type,
    power: Callable,
    exp_parts: Callable,
    times_power: Callable,
    log_parts: Callable,
    log_series: Callable,
    least_power: Any,
    numbers: Iterable[Any],
) -> dict[str, Callable]:
    """Return the functions of a dtype by name.

    `power` to `log_series` are functions as of float64 above. `least_power` is the
    least k of `power`. `numbers` are: x below which e**x is 0, and above which it is
    infinite; ln 2 as a sum of two; the least normal number; a power of 2 that makes
    denormal numbers normal, and its exponent. All constants get the dtype, as a Python
    float would make results float64.
    """
    least, most, ln2_high, ln2_low, smallest, scale, exponent = map(dtype, numbers)
    zero, half, one, two, forty = map(dtype, (0, 0.5, 1, 2, 40))
    infinity, nan, log_half = map(dtype, (np.inf, np.nan, -math.log(2)))

    @numba.njit(**OPTIONS)
    def exp(x):
        """Return e**x."""
        k, less = exp_parts(min(max(x, least), most))
        return x if x != x else times_power(one + less, k)

    @numba.njit(**OPTIONS)
    def expm1(x):
        """Return e**x - 1."""
        k, less = exp_parts(min(max(x, -forty), most))
        result = times_power(less + (one - power(max(-k, least_power))), k)
        return x if x != x or x == zero else result

    @numba.njit(**OPTIONS)
    def log_of_parts(k, f, missing):
        """Return k ln 2 + log(1 + f) + missing, where `missing` is small."""
        s = f / (two + f)
        square = half * f * f
        rest = s * (square + log_series(s * s)) + (k * ln2_low + missing)
        return k * ln2_high - ((square - rest) - f)

    @numba.njit(**OPTIONS)
    def log(x):
        """Return the natural logarithm of x."""
        is_small = x < smallest
        k, f = log_parts(x * scale if is_small else x)
        result = log_of_parts(k - exponent if is_small else k, f, zero)
        result = x if x == infinity else result
        result = -infinity if x == zero else result
        result = nan if x < zero else result
        return x if x != x else result

    @numba.njit(**OPTIONS)
    def log1p(x):
        """Return log(1 + x)."""
        u = one + x
        k, f = log_parts(u)
        # The rounding error of u, relative to u
        missing = (one - (u - x) if x > one else x - (u - one)) / u
        result = log_of_parts(k, f, missing)
        result = x if x == infinity else result
        result = x if x == zero else result
        result = -infinity if x == -one else result
        result = nan if x < -one else result
        return x if x != x else result

    @numba.njit(**OPTIONS)
    def log1mexp(x):
        """Return log(1 - e**x), x <= 0, after M. Maechler's note on it (2012)."""
        near, far = log(-expm1(x)), log1p(-exp(x))
        return near if x > log_half else far

    @numba.njit(**OPTIONS)
    def sigmoid(x):
        """Return 1 / (1 + e**-x)."""
        e = exp(-abs(x))
        return (e if x < zero else one) / (one + e)

    @numba.njit(**OPTIONS)
    def softplus(x):
        """Return log(1 + e**x)."""
        return max(x, zero) + log1p(exp(-abs(x)))

    @numba.njit(**OPTIONS)
    def tanh(x):
        """Return the hyperbolic tangent of x."""
        more = expm1(min(two * abs(x), forty))
        result = more / (more + two)
        return x if x != x else math.copysign(result, x)

    made = exp, expm1, log, log1p, log1mexp, sigmoid, softplus, tanh
    return {function.__name__: function for function in made}


DOUBLE = made_of(
    np.float64,
    *(_power, _exp_parts, _times_power, _log_parts, _log_series, -1022),
    (-746, 710, _LN2_HIGH, _LN2_LOW, 2.0**-1022, 2.0**54, 54),
)
