"""Functions of a float32 as sums and products alone, like those of `numba_math`.

LLVM computes eight or sixteen numbers at once, twice as many as of float64.

They are within 2.5 units in the last place of the exact values, and NaN, infinities,
zeros of both signs and denormals are what IEEE 754 says. The methods are those of
`numba_math`, with fewer terms: `log` has the coefficients of FreeBSD's ``e_logf.c``.
Each constant has a dtype, as one without would make results float64.

`gammaln` and `psi` are computed in float64 and rounded.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from . import numba_gamma
from .numba_math import OPTIONS, instruction, made_of, polynomial

_WORD = ir.IntType(32)
_FLOAT = ir.FloatType()

_HALF = np.float32(0.5)
_LOG2_E = np.float32(math.log2(math.e))
_LN2_HIGH = np.float32(0.693359375)
"""The first 9 bits of ln 2: its product with a whole number below 2**15 is exact."""
_LN2_LOW = np.float32(math.log(2) - 0.693359375)
_ROUND = np.float32(1.5 * 2**23)
"""Adding this rounds a number to an integer, which is then in the last bits."""

_EXP = polynomial([1 / math.factorial(n) for n in range(2, 9)], _FLOAT)
"""(exp(r) - 1 - r) / r**2 as a polynomial in r."""
_LOG = polynomial([0.66666662693, 0.40000972152, 0.28498786688, 0.24279078841], _FLOAT)
"""(log((1 + s) / (1 - s)) / s - 2) / s**2 as a polynomial in s**2."""


def _emit_power(builder: Any, k: Any) -> Any:
    # The last bits of 1.5 * 2**23 + (k + 127) are those of k + 127; the shift moves
    # them to the exponent and drops the others.
    moved = builder.fadd(k, ir.Constant(_FLOAT, 1.5 * 2**23 + 127))
    bits = builder.shl(builder.bitcast(moved, _WORD), ir.Constant(_WORD, 23))
    return builder.bitcast(bits, _FLOAT)


_power = instruction(types.float32, types.float32, _emit_power)
"""2**k of a whole number as a float32, -126 <= k <= 127."""


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
    missing = (high - r) - low  # the rounding error of r
    return k, r + (r * r * _EXP(r) + missing)


@numba.njit(**OPTIONS)
def _times_power(x, k):
    """Return 2**k x, -200 <= k <= 200.

    In two factors, so that only the last product is rounded if the result is denormal,
    or overflows.
    """
    half = (k * _HALF + _ROUND) - _ROUND
    return x * _power(half) * _power(k - half)


@numba.njit(**OPTIONS)
def _log_series(z):
    """Return log((1 + s) / (1 - s)) / s - 2 of z = s**2."""
    return z * _LOG(z)


def _rounded(double: Callable) -> Callable:
    """Return a function of float32 that computes `double` and rounds the result."""

    @numba.njit(**OPTIONS)
    def single(x):
        return np.float32(double(np.float64(x)))

    return single


SINGLE = made_of(
    np.float32,
    *(_power, _exp_parts, _times_power, _log_parts, _log_series, np.float32(-126)),
    (-104, 89, _LN2_HIGH, _LN2_LOW, 2.0**-126, 2.0**25, 25),
)
for _name, _double in numba_gamma.DOUBLE.items():
    SINGLE[_name] = _rounded(_double)
