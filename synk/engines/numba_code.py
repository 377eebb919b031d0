"""Numba mode: code of synk's in the place of PyTensor's.

What synk compiles, loops and graphs within graphs included, has code of its own for
some Ops: `numba_layout`, `numba_products`, `numba_elemwise`. A ``pytensor.function``
beside it compiles as without synk: the same code by the same key of PyTensor's cache on
disk. Code made here has keys of its own.

PyTensor registers implementations with ``register_funcify_default_op_cache_key``, and
those of scalars with ``register_funcify_and_cache_key``, which are not in its
documentation; ``test_modes_numba.py`` and ``test_engine_numba.py`` tell when
that changes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, copy_context
from functools import cache
from typing import Any, ParamSpec, TypeVar

from pytensor.graph.basic import Apply
from pytensor.scalar import Composite
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.math import Dot

from . import numba_elemwise, numba_layout, numba_products
from .quiet import is_numba

_is_ours: ContextVar[bool] = ContextVar("is_ours", default=False)

_P = ParamSpec("_P")
_R = TypeVar("_R")


def with_own_code(
    mode: Any, compile_it: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs
) -> _R:
    """Call `compile_it`, such that what it compiles has synk's code.

    That is for numba: in other modes it is just called. That it is to have it is said
    in a copy of the context, which ends with the call: an interrupt finds nothing that
    it could leave behind.
    """
    if is_numba(mode):
        _register()
    context = copy_context()
    context.run(_is_ours.set, True)
    return context.run(compile_it, *args, **kwargs)


@cache
def _register() -> None:
    """Put synk's code in the place of PyTensor's."""
    if numba_layout.IS_NEEDED:
        _replace(DimShuffle, numba_layout.with_layout)
    _replace(Dot, numba_products.product)
    for kind in numba_elemwise.KINDS:
        _replace_scalar(kind, numba_elemwise.function)
    _replace_scalar(Composite, numba_elemwise.composite)


def _replace(kind: type, own: Callable[..., tuple[Callable, int] | None]) -> None:
    """Register what makes an Op's code.

    `own` takes the node and the function that PyTensor makes for it. It returns another
    one, and a number for the key of the cache, which has to tell it from all others of
    the Op; or None. PyTensor's own numbers are small.
    """
    from pytensor.link.numba.dispatch import basic

    original = basic.numba_funcify_default_op_cache_key.dispatch(kind)

    @basic.register_funcify_default_op_cache_key(kind)
    def funcify(op: Any, node: Apply, **kwargs: Any) -> Any:
        made = original(op, node=node, **kwargs)
        function = made[0] if isinstance(made, tuple) else made
        ours = own(node, function) if _is_ours.get() else None
        return made if ours is None else ours


def _replace_scalar(
    kind: type, own: Callable[..., tuple[Callable, str | None] | None]
) -> None:
    """Register what makes a scalar Op's code.

    `own` takes the node, and the function that PyTensor makes for it with its key.
    """
    from pytensor.link.numba.dispatch import basic

    original = basic.numba_funcify_and_cache_key.dispatch(kind)

    @basic.register_funcify_and_cache_key(kind)
    def funcify(op: Any, node: Any = None, **kwargs: Any) -> Any:
        made = original(op, node=node, **kwargs)
        ours = own(node, *made) if _is_ours.get() else None
        return made if ours is None else ours
