"""What all code has in common that numba compiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
from numba.core import types
from numba.extending import intrinsic


def compile_kernel(function: Callable) -> Callable:
    """Compile with numba, from its disk cache where there is a place for one."""
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither the package nor the home directory can be written
        return numba.njit(**options)(function)


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
