"""Numba mode: a transpose keeps the layout of its matrix.

PyTensor before 3.3.2 has numba make every `DimShuffle` with ``as_strided``, whose
result numba takes for an array of any strides. So a product by ``X.T`` copies X in
every call, and warns of that: the gradient of a logistic likelihood then takes some
four times the time of one that calls BLAS on X itself. The values of `DimShuffle` stay
PyTensor's here. What is added is the declaration of the layout that they have, as later
PyTensors have it:

* the dimensions in order, others of length 1 put in or left out: that of the input;
* the dimensions in reverse, likewise: C becomes Fortran and the other way round.

This is for what synk compiles, loops and graphs within graphs included. A
``pytensor.function`` beside it compiles as without synk: the same code by the same key
of PyTensor's cache on disk. Code made here has keys of its own (`_VERSION`).

PyTensor registers implementations with ``register_funcify_default_op_cache_key``, which
is not in its documentation; numba has intrinsics for extensions, but the layout of
``numba.types.Array`` is documented by its code. ``tests/test_numba_layout.py`` tells
when any of that changes. All of it goes when synk no longer takes PyTensor 3.3.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from functools import cache
from typing import Any, ParamSpec, TypeVar

import pytensor
from pytensor.graph.basic import Apply
from pytensor.tensor.elemwise import DimShuffle

from .quiet import is_numba

_VERSION = 7_300_001
"""In the cache key of what is compiled here; PyTensor's own versions are small. It is
to change with this file."""

IS_NEEDED = tuple(map(int, re.findall(r"\d+", pytensor.__version__)[:3])) < (3, 3, 2)
"""Whether this PyTensor does not declare layouts itself."""

_keeps: ContextVar[bool] = ContextVar("keeps_layout", default=False)

_P = ParamSpec("_P")
_R = TypeVar("_R")


def with_layouts_kept(
    mode: Any, compile_it: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs
) -> _R:
    """Call `compile_it`, such that what it compiles keeps layouts.

    Layouts are numba's: in other modes it is just called. That they are to be kept is
    said in a copy of the context, which ends with the call: an interrupt finds nothing
    that it could leave behind.
    """
    if IS_NEEDED and is_numba(mode):
        _register()
    context = copy_context()
    context.run(_keeps.set, True)
    return context.run(compile_it, *args, **kwargs)


def order_of(op: DimShuffle) -> str | None:
    """Tell how dimensions come out, those of length 1 that come or go left aside.

    Returns
    -------
    {"kept", "reversed"} or None
    """
    kept = [i for i in op.new_order if i != "x"]
    if not kept:  # all elements there are is one
        return None
    if kept == sorted(kept):
        return "kept"
    return "reversed" if kept == sorted(kept, reverse=True) else None


@cache
def _register() -> None:
    """Wrap what PyTensor has for `DimShuffle`."""
    from pytensor.link.numba.dispatch import basic

    original = basic.numba_funcify_default_op_cache_key.dispatch(DimShuffle)
    kept, reversed_ = _declarations()

    @basic.register_funcify_default_op_cache_key(DimShuffle)
    def dimshuffle(op: DimShuffle, node: Apply, **kwargs: Any) -> Any:
        made = original(op, node=node, **kwargs)
        order = order_of(op) if _keeps.get() else None
        if order is None or node.inputs[0].type.ndim == 0:
            return made
        view: Callable = made[0] if isinstance(made, tuple) else made
        declare = kept if order == "kept" else reversed_

        @basic.numba_njit
        def with_layout(x):
            return declare(view(x), x)

        return with_layout, _VERSION


@cache
def _declarations() -> tuple[Callable, Callable]:
    """Return functions of numba's: a view of `x`, as an array of a layout like its."""
    from numba import types
    from numba.core.imputils import impl_ret_borrowed
    from numba.extending import intrinsic

    def declared(view: types.Array, x: types.Array, layouts: dict[str, str]) -> Any:
        layout = layouts.get(x.layout, "A")
        if view.ndim < 2 and layout == "F":
            layout = "C"  # one dimension is both, which numba calls C

        def as_it_is(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return impl_ret_borrowed(context, builder, signature.return_type, args[0])

        return view.copy(layout=layout)(view, x), as_it_is

    @intrinsic
    def kept(typingctx, view, x):
        return declared(view, x, {"C": "C", "F": "F"})

    @intrinsic
    def reversed_(typingctx, view, x):
        return declared(view, x, {"C": "F", "F": "C"})

    return kept, reversed_
