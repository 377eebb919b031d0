"""Numba mode: a transpose keeps the layout of its matrix.

PyTensor before 3.3.2 has numba make every `DimShuffle` with ``as_strided``, whose
result numba takes for an array of any strides. So a product by ``X.T`` copies X in
every call, and warns of that: the gradient of a logistic likelihood then takes some
four times the time of one that calls BLAS on X itself. The values of `DimShuffle` stay
PyTensor's here. What is added is the declaration of the layout that they have, as later
PyTensors have it:

* the dimensions in order, others of length 1 put in or left out: that of the input;
* the dimensions in reverse, likewise: C becomes Fortran and the other way round.

Numba has intrinsics for extensions, but the layout of ``numba.types.Array`` is
documented by its code; ``test_modes_numba.py`` tells when that changes. All of
it goes when synk no longer takes PyTensor 3.3.1.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytensor
from pytensor.graph.basic import Apply
from pytensor.tensor.elemwise import DimShuffle

_VERSION = 7_300_001
"""In the key of PyTensor's cache on disk. It is to change with this file."""

IS_NEEDED = tuple(map(int, re.findall(r"\d+", pytensor.__version__)[:3])) < (3, 3, 2)
"""Whether this PyTensor does not declare layouts itself."""


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


def with_layout(node: Apply, view: Callable) -> tuple[Callable, int] | None:
    """Return the code of a `DimShuffle`, and its version, if it is not PyTensor's.

    Parameters
    ----------
    node : Apply
    view : callable
        PyTensor's.
    """
    from pytensor.link.numba.dispatch import basic

    order = order_of(node.op)  # type: ignore[arg-type]
    if order is None or node.inputs[0].type.ndim == 0:  # type: ignore[attr-defined]
        return None
    kept, reversed_ = _declarations()
    declare = kept if order == "kept" else reversed_

    @basic.numba_njit
    def with_declaration(x):
        return declare(view(x), x)

    return with_declaration, _VERSION


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
