"""What all code has in common that numba compiles.

Numba takes 0.2 s and 25 MB in each process to look through all that it could compile,
even where it only loads what lies in its cache. Loading needs none of that; so it is
left out there, which takes a method of numba's own, as in 0.61 to 0.67. With others the
usual one is used; `tests/test_compiled.py` tells when it must be looked at again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba.core import types
from numba.core.caching import FunctionCache
from numba.core.runtime import rtsys
from numba.extending import intrinsic

from .signals import with_signals_held_back


class _Cache(FunctionCache):
    """Numba's cache of a function, from which it is loaded without further ado."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return what was compiled for a signature; None if it was not.

        An interrupt of it would leave numba and LLVM in disorder, for good: the process
        would come to its end by freeing memory twice.
        """
        found: list[Any] = []
        with_signals_held_back(self._load, sig, target_context, found)
        return found[0]

    def _load(self, sig: Any, target_context: Any, found: list[Any]) -> None:
        rtsys.initialize(target_context)  # the code calls it
        with self._guard_against_spurious_io_errors():
            found.append(self._load_overload(sig, target_context))
        if found == [None]:  # it will be compiled
            target_context.refresh()


_is_known = hasattr(FunctionCache, "_load_overload")


def compile_kernel(function: Callable) -> Callable:
    """Compile with numba, from its disk cache where there is a place for one."""
    made: Any = numba.njit(nogil=True, error_model="numpy")(function)
    try:
        made._cache = (_Cache if _is_known else FunctionCache)(function)
    except RuntimeError:  # neither the package nor the home directory can be written
        pass
    return made


def pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Return where an element lies, in an intrinsic that takes an array and an index.

    Parameters
    ----------
    context, builder, signature, arguments
        What numba calls an intrinsic's code generator with.
    """
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(array.data, [arguments[1]])


@intrinsic
def address_as(typing_context: Any, address: Any, dtype: Any) -> tuple:
    """Return an address, an int64, as a pointer to elements of a dtype."""

    def generate(context, builder, signature, arguments):
        kind = context.get_value_type(signature.return_type)
        return builder.inttoptr(arguments[0], kind)

    return types.CPointer(dtype.dtype)(address, dtype), generate
