"""What all code has in common that numba compiles.

Numba takes 0.25 s and 30 MB in each process to look through all that it could compile,
even where it only loads what lies in its cache. Loading needs none of that; so it is
left out there, which takes methods of numba's own, as in 0.65. Where there are none the
usual way is gone; `test_machine_code.py` tells when it must be looked at again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from .signals import with_signals_held_back

if "numba" not in sys.modules:
    try:
        os.sched_getaffinity(0)
    except OSError:
        # A sandbox forbids it. Numba asks for the cores as it is imported, and would
        # fail. It knows of systems that do not have the call.
        ask = os.sched_getaffinity
        del os.sched_getaffinity
        try:
            import numba
        finally:
            os.sched_getaffinity = ask

import numba
from numba.core import cgutils, types
from numba.core.caching import FunctionCache
from numba.core.runtime import rtsys
from numba.extending import intrinsic


class _Cache(FunctionCache):
    """Numba's cache of a function, from which it is loaded without further ado."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return what was compiled for a signature; None if it was not."""
        rtsys.initialize(target_context)  # the code calls it
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)
        return None


_is_known = hasattr(FunctionCache, "_load_overload")


def compile_kernel(function: Callable) -> Callable:
    """Compile with numba, from its disk cache where there is a place for one."""
    made: Any = numba.njit(nogil=True, error_model="numpy")(function)
    try:
        made._cache = (_Cache if _is_known else FunctionCache)(function)
    except RuntimeError:  # neither the package nor the home directory can be written
        pass
    made.compile = partial(_without_interrupts, made.compile)
    return made


def _without_interrupts(compile_for: Callable[[Any], Any], sig: Any) -> Any:
    """Load or compile a kernel; an interrupt of that waits until it is done.

    It would leave numba and LLVM in disorder, for good: nothing more could be compiled,
    or the process would free memory twice.
    """
    made: list[Any] = []
    with_signals_held_back(lambda: made.append(compile_for(sig)))
    return made[0]


def pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Return where an element lies, in an intrinsic that takes an array and an index.

    It is called as numba calls an intrinsic's code generator.
    """
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(array.data, [arguments[1]])


@intrinsic
def array_at(typing_context: Any, address: Any, dtype: Any, length: Any) -> tuple:
    """Return as many adjacent elements of a dtype as an array, from an address on.

    `numba.carray` does the same. But who loads code with that in it must import a great
    deal of numba first, for 0.1 s.
    """

    def generate(context, builder, signature, arguments):
        kind = signature.return_type
        array = context.make_array(kind)(context, builder)
        item = context.get_constant(
            types.intp, context.get_abi_sizeof(context.get_data_type(kind.dtype))
        )
        array.data = builder.inttoptr(arguments[0], array.data.type)
        array.shape = cgutils.pack_array(builder, [arguments[2]])
        array.strides = cgutils.pack_array(builder, [item])
        array.itemsize, array.nitems = item, arguments[2]
        array.meminfo = cgutils.get_null_value(array.meminfo.type)  # it owns nothing
        array.parent = cgutils.get_null_value(array.parent.type)
        return array._getvalue()

    made = types.Array(dtype.dtype, 1, "C")
    return made(types.int64, dtype, types.intp), generate
