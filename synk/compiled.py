"""`compile_kernel`: numba for synk's own loops, loaded quickly from numba's cache.

Ranks need the same loop at once. What is not in the cache, one process makes, and the
others of its machine wait and load it (`make_once`).

In each process, numba takes 0.25 s and 30 MB to register all that it can compile, even
to load code from its cache, which does not need that for synk's own loops. `_Quick`
leaves it out, by private methods of numba 0.65. If numba does not have them, it is not
left out; `test_machine_code.py` fails if they change.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from .signals import with_signals_held_back

if "numba" not in sys.modules:
    try:
        os.sched_getaffinity(0)
    except OSError:
        # A sandbox forbids the call. Numba makes it at import, and would fail. Without
        # the function, numba takes the system for one that has no such call.
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


class _Locked(FunctionCache):
    """Numba's cache of a function, whose code one process makes and others load."""

    def __init__(self, function: Callable, name: str) -> None:
        super().__init__(function)
        self._lock = Path(self.cache_path, f"{name}.lock")
        self._locked: int | None = None

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the code for a signature from the cache; None to make it.

        None is returned to one process at a time, which has the lock until `unlock`.
        """
        found = self._load(sig, target_context)
        if found is None and self._locked is None:
            self._locked = _lock(self._lock)
            found = self._load(sig, target_context)
        return found

    def _load(self, sig: Any, target_context: Any) -> Any:
        return super().load_overload(sig, target_context)

    def unlock(self) -> None:
        """Let other processes load or make code, if this one has the lock."""
        if self._locked is not None:
            with suppress(OSError):  # a process forked meanwhile has it open, too
                fcntl.flock(self._locked, fcntl.LOCK_UN)
            os.close(self._locked)
            self._locked = None


class _Quick(_Locked):
    """The same for synk's own loops: loads without registering all of numba."""

    def _load(self, sig: Any, target_context: Any) -> Any:
        rtsys.initialize(target_context)  # the code calls numba's runtime
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)
        return None


_PATIENCE = 30.0
"""Seconds to wait for another's code: that process may have been stopped meanwhile."""


def _lock(path: Path) -> int | None:
    """Return a descriptor of a locked file; None if it cannot be locked."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError:
        return None
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            time.sleep(0.005)
        except OSError:  # a file system without locks
            break
    os.close(file)
    return None


def compile_kernel(function: Callable) -> Callable:
    """Return a loop of synk's for numba to compile, with a cache on disk if possible.

    Of numba it may use what that can do before all is registered, and other kernels.
    """
    made = numba.njit(nogil=True, error_model="numpy")(function)
    name = f"{function.__module__}.{function.__qualname__}"
    kind = _Quick if hasattr(_Quick, "_load_overload") else _Locked
    return make_once(made, name, kind)


def make_once(made: Any, name: str, kind: type[_Locked] = _Locked) -> Any:
    """Return numba's function of a name, whose code one process of a machine makes.

    The others wait, and load it from numba's cache on disk, if there is one.
    """
    with suppress(RuntimeError):  # the package and the home directory are read-only
        made._cache = kind(made.py_func, name)
    made.compile = partial(_without_interrupts, made, made.compile)
    return made


def _without_interrupts(made: Any, compile_for: Callable[[Any], Any], sig: Any) -> Any:
    """Load or compile a function; signal handlers run when that is done.

    An exception from a handler would break numba and LLVM in this process: they could
    compile nothing more, or would free memory twice.
    """
    entry_points: list[Any] = []

    def compile_unlocking() -> None:
        try:
            entry_points.append(compile_for(sig))
        finally:
            if isinstance(made._cache, _Locked):
                made._cache.unlock()

    with_signals_held_back(compile_unlocking)
    return entry_points[0]


@compile_kernel
def copy_block(target, values):
    """Copy `values` to `target`, and convert them to its dtype.

    For ``target[:] = values`` numba compiles the text of its error: 2 to 5 s.
    """
    for i in range(values.size):
        target[i] = values[i]


def pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """Return LLVM's pointer to an element; the arguments are an array and an index.

    The parameters are those of an intrinsic's code generator in numba.
    """
    array = context.make_array(signature.args[0])(context, builder, arguments[0])
    return builder.gep(array.data, [arguments[1]])


@intrinsic
def array_at(typing_context: Any, address: Any, dtype: Any, length: Any) -> tuple:
    """Return `length` adjacent elements of a dtype at an address, as an array.

    `numba.carray` does the same, but code with it loads 0.1 s later, as that imports
    more of numba.
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
