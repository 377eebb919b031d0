"""Functions of a float32 as sums and products alone, as `numba_math` has of a float64.

Of these LLVM makes vectors of eight or sixteen numbers, twice as many as of float64.

They are within 2.5 units in the last place of the exact values, and NaN, infinities,
zeros of both signs and denormals are what IEEE 754 says. The ways are those of
`numba_math`, with fewer terms: `log` has the coefficients of FreeBSD's ``e_logf.c``.
A number without a dtype would make float64 of what it meets, so each has one.

Of `gammaln` and `psi` the values of float64 are rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from . import numba_gamma
from .numba_math import OPTIONS, of_these, polynomial

_WORD = ir.IntType(32)
_FLOAT = ir.FloatType()

_0, _1, _2, _40 = map(np.float32, (0, 1, 2, 40))
_HALF = np.float32(0.5)
_INF, _NAN = np.float32(np.inf), np.float32(np.nan)
_LOG2_E = np.float32(math.log2(math.e))
_LN2_HIGH = np.float32(0.693359375)
"""The first 9 bits of ln 2: its product with a whole number below 2**15 is exact."""
_LN2_LOW = np.float32(math.log(2) - 0.693359375)
_ROUND = np.float32(1.5 * 2**23)
"""What is added to this is rounded to a whole number, which the last bits hold."""
_LEAST, _MOST = np.float32(-104), np.float32(89)
"""Where e**x is 0, and where it is infinite."""
_SMALLEST = np.finfo(np.float32).smallest_normal
_TO_NORMAL, _TO_NORMAL_EXPONENT = np.float32(2**25), np.float32(25)
_LEAST_POWER = np.float32(-126)

_EXP = polynomial([1 / math.factorial(n) for n in range(2, 9)], _FLOAT)
"""Of (exp(r) - 1 - r) / r**2."""
_LOG = polynomial([0.66666662693, 0.40000972152, 0.28498786688, 0.24279078841], _FLOAT)
"""Of (log((1 + s) / (1 - s)) / s - 2) / s**2, in s**2."""


@intrinsic
def _power(typingctx, k):
    """Return 2**k of a whole number as a float32, -126 <= k <= 127.

    The last bits of 1.5 * 2**23 + (k + 127) are those of k + 127, and a shift leaves
    nothing but them.
    """

    def codegen(context, builder, signature, args):
        moved = builder.fadd(args[0], ir.Constant(_FLOAT, 1.5 * 2**23 + 127))
        bits = builder.shl(builder.bitcast(moved, _WORD), ir.Constant(_WORD, 23))
        return builder.bitcast(bits, _FLOAT)

    return types.float32(types.float32), codegen


@intrinsic
def _log_parts(typingctx, x):
    """Return k and f of x = 2**k (1 + f), sqrt(1/2) <= 1 + f < sqrt(2); x is normal."""
    one, root_half = 0x3F800000, 0x3F3504F3  # their bits

    def codegen(context, builder, signature, args):
        bits = builder.bitcast(args[0], _WORD)
        shifted = builder.add(bits, ir.Constant(_WORD, one - root_half))
        k = builder.sub(
            builder.lshr(shifted, ir.Constant(_WORD, 23)), ir.Constant(_WORD, 127)
        )
        rest = builder.and_(shifted, ir.Constant(_WORD, 2**23 - 1))
        rest = builder.bitcast(builder.add(rest, ir.Constant(_WORD, root_half)), _FLOAT)
        f = builder.fsub(rest, ir.Constant(_FLOAT, 1.0))
        pair = [builder.sitofp(k, _FLOAT), f]
        return context.make_tuple(builder, signature.return_type, pair)

    return types.UniTuple(types.float32, 2)(types.float32), codegen


@numba.njit(**OPTIONS)
def _exp_parts(x):
    """Return k and e**r - 1 of x = k ln 2 + r; |x| < 200."""
    k = (x * _LOG2_E + _ROUND) - _ROUND
    high, low = x - k * _LN2_HIGH, k * _LN2_LOW
    r = high - low
    missing = (high - r) - low  # what rounding has taken from r
    return k, r + (r * r * _EXP(r) + missing)


@numba.njit(**OPTIONS)
def _times_power(x, k):
    """Return 2**k x, -200 <= k <= 200.

    That is done in two steps: the last one rounds where the result is denormal, and it
    overflows.
    """
    half = (k * _HALF + _ROUND) - _ROUND
    return x * _power(half) * _power(k - half)


@numba.njit(**OPTIONS)
def exp(x):
    """Return e**x."""
    k, less = _exp_parts(min(max(x, _LEAST), _MOST))
    return x if x != x else _times_power(_1 + less, k)


@numba.njit(**OPTIONS)
def expm1(x):
    """Return e**x - 1."""
    k, less = _exp_parts(min(max(x, -_40), _MOST))
    result = _times_power(less + (_1 - _power(max(-k, _LEAST_POWER))), k)
    return x if x != x or x == _0 else result


@numba.njit(**OPTIONS)
def _log_of_parts(k, f, missing):
    """Return k ln 2 + log(1 + f) + missing, where `missing` is small."""
    s = f / (_2 + f)
    z = s * s
    half = _HALF * f * f
    rest = s * (half + z * _LOG(z)) + (k * _LN2_LOW + missing)
    return k * _LN2_HIGH - ((half - rest) - f)


@numba.njit(**OPTIONS)
def log(x):
    """Return the natural logarithm of x."""
    is_small = x < _SMALLEST
    k, f = _log_parts(x * _TO_NORMAL if is_small else x)
    result = _log_of_parts(k - _TO_NORMAL_EXPONENT if is_small else k, f, _0)
    result = x if x == _INF else result
    result = -_INF if x == _0 else result
    result = _NAN if x < _0 else result
    return x if x != x else result


@numba.njit(**OPTIONS)
def log1p(x):
    """Return log(1 + x)."""
    u = _1 + x
    k, f = _log_parts(u)
    # What rounding has taken from u, relative to it
    missing = (_1 - (u - x) if x > _1 else x - (u - _1)) / u
    result = _log_of_parts(k, f, missing)
    result = x if x == _INF else result
    result = x if x == _0 else result
    result = -_INF if x == -_1 else result
    result = _NAN if x < -_1 else result
    return x if x != x else result


log1mexp, sigmoid, softplus, tanh = of_these(np.float32, exp, expm1, log, log1p)


def _rounded(double: Callable) -> Callable:
    """Return a function of float64, whose value for a float32 is rounded to one."""

    @numba.njit(**OPTIONS)
    def single(x):
        return np.float32(double(np.float64(x)))

    return single


gammaln = _rounded(numba_gamma.gammaln)
psi = _rounded(numba_gamma.psi)
