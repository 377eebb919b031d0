"""Numba mode: elementwise functions of floats that LLVM vectorises.

LLVM vectorises a loop over elements only if all functions that it calls are inlined:
those of `numba_math`, `numba_gamma` and `numba_single`, and PyTensor's wrappers of
them. LLVM inlines small functions by itself, and others if they are marked
``alwaysinline``. numba marks a function so for ``forceinline``, but not the functions
of ``*args`` in which PyTensor wraps each Op for its cache, which are too large for LLVM
with a function of synk inlined. So synk's are `intrinsic`, and their code generator
marks the calling function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import pytensor.scalar as ps
import pytensor.scalar.math as psm
from pytensor.graph.basic import Apply

from .numba_arrays import float_of, own_key

_VERSION = 8
"""A part of the cache keys on disk. Raise it when code changes here or in the modules
with the functions, and when those move, as code on disk refers to them by module."""


def function(
    node: Apply, _original: Callable, key: str | None
) -> tuple[Callable, str | None] | None:
    """Return the function and key of a scalar Op; None to keep PyTensor's.

    PyTensor 3.0 has no key for `psi`, and so keeps no code that contains it; here it
    gets one.
    """
    name, dtype = KINDS.get(type(node.op)), float_of(node)
    if name is None or dtype is None:
        return None
    return _functions(dtype)[name], own_key(key or f"{name} of {dtype}", _VERSION)


def composite(
    node: Apply, original: Any, key: str | None
) -> tuple[Callable, str | None] | None:
    """Return the function and key of a `Composite` with an Op of `KINDS`, or None."""
    if not any(
        type(each.op) in KINDS and float_of(each) is not None
        for each in node.op.fgraph.apply_nodes
    ):
        return None
    from pytensor.link.numba.dispatch import basic

    inner = basic.numba_njit(original.py_func, forceinline=True)
    return _within_caller(inner), own_key(key, _VERSION)


KINDS: dict[type, str] = {
    ps.Exp: "exp",
    ps.Expm1: "expm1",
    ps.Log: "log",
    ps.Log1p: "log1p",
    ps.Tanh: "tanh",
    psm.GammaLn: "gammaln",
    psm.Log1mexp: "log1mexp",
    psm.Psi: "psi",
    psm.Sigmoid: "sigmoid",
    psm.Softplus: "softplus",
}


@cache
def _functions(dtype: str) -> dict[str, Callable]:
    """Return the functions of a dtype by name, to be inlined into their callers."""
    from . import numba_gamma, numba_math, numba_single

    double = numba_math.DOUBLE | numba_gamma.DOUBLE
    found = double if dtype == "float64" else numba_single.SINGLE
    return {name: _within_caller(found[name]) for name in KINDS.values()}


def _within_caller(inner: Any) -> Callable:
    """Return an intrinsic that calls `inner`, and marks its caller ``alwaysinline``.

    As `inner` is compiled with ``forceinline``, both are inlined into the caller's
    caller.
    """
    from numba.extending import intrinsic

    def within(typingctx, *kinds):
        kind = typingctx.resolve_value_type(inner)
        signature = kind.get_call_type(typingctx, kinds, {})

        def code(context, builder, _signature, args):
            builder.function.attributes.add("alwaysinline")
            return context.get_function(kind, signature)(builder, args)

        return signature, code

    # numba reads the names of arguments here.
    arguments = inspect.signature(inner.py_func).parameters.values()
    context = inspect.Parameter("typingctx", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    within.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [context, *arguments]
    )
    within.__name__ = inner.__name__
    return intrinsic(within)
