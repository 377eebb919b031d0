"""Numba mode: elementwise functions of floats that LLVM makes vectors of.

A loop over elements becomes one over vectors only if all that it calls is within it:
functions of `numba_math`, `numba_gamma` and `numba_single`, and those that PyTensor has
around them. LLVM takes small functions into their callers by itself, and others where
they are marked ``alwaysinline``. numba marks one (``forceinline``), but not the
functions of ``*args`` by which PyTensor caches each Op, which are larger than LLVM's
threshold once they have a function of ours within. So ours are `intrinsic`: what is run
in the place of a call marks the caller.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import pytensor.scalar as ps
import pytensor.scalar.math as psm
from pytensor.graph.basic import Apply

from .numba_arrays import own_key

_VERSION = 8
"""To be raised with every change of this file, or of those that have the functions;
and when they move, as code on disk refers to them by their modules."""


def function(
    node: Apply, _theirs: Callable, key: str | None
) -> tuple[Callable, str | None] | None:
    """Return the function of a scalar Op, and its key, if it is not PyTensor's.

    There is no key of `psi` in PyTensor 3.0, which then compiles all that has it within
    anew each time.
    """
    name, dtype = KINDS.get(type(node.op)), _dtype(node)
    if name is None or dtype is None:
        return None
    return _functions(dtype)[name], own_key(key or f"{name} of {dtype}", _VERSION)


def composite(
    node: Apply, theirs: Any, key: str | None
) -> tuple[Callable, str | None] | None:
    """Return the function of several scalar Ops, where one of them is ours."""
    if not any(
        type(each.op) in KINDS and _dtype(each) is not None
        for each in node.op.fgraph.apply_nodes
    ):
        return None
    from pytensor.link.numba.dispatch import basic

    inner = basic.numba_njit(theirs.py_func, forceinline=True)
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


def _dtype(node: Apply) -> str | None:
    """Return the float dtype of all inputs and outputs, if functions of it are here."""
    variables: list[Any] = [*node.inputs, *node.outputs]
    found = {var.type.dtype for var in variables}
    return found.pop() if found in ({"float64"}, {"float32"}) else None


@cache
def _functions(dtype: str) -> dict[str, Callable]:
    """Return functions by name, such that they come to lie within their callers."""
    from . import numba_gamma, numba_math, numba_single

    double = numba_math.DOUBLE | numba_gamma.DOUBLE
    found = double if dtype == "float64" else numba_single.SINGLE
    return {name: _within_caller(found[name]) for name in KINDS.values()}


def _within_caller(inner: Any) -> Callable:
    """Return what numba replaces by a call of a function, and by a mark of the caller.

    Both the function, which was compiled with ``forceinline``, and its caller come to
    lie within what calls them.
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
