"""Numba: its warnings, and machine code before the first call.

Numba makes machine code when a function is first called. All ranks call at once, so
each would make the same code, for seconds or minutes. If synk asks numba for the code
before, one rank makes it, and the others load it from numba's cache on disk.

For that, numba needs the types of all arguments. Inputs are arrays in C order, shared
variables have values, and a value from another part has the type that numba has
inferred there. If a type is not known, or the code cannot be cached, each rank makes
the code in its first call.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from inspect import getfullargspec, unwrap
from typing import Any

import numpy as np
from pytensor.compile import Function, get_mode
from pytensor.graph.basic import Variable
from pytensor.link.numba.linker import NumbaLinker
from pytensor.tensor.type import DenseTensorType

from .plain_functions import is_foreign


@contextmanager
def ignoring(mode: Any, *categories: type[Warning]) -> Iterator[None]:
    """Ignore warnings of `categories` while the block compiles a graph in `mode`."""
    if isinstance(get_mode(mode).linker, NumbaLinker):
        # This module adds filters for numba's warnings, which the first call needs
        # too. Imported inside `catch_warnings`, they would be lost at its end.
        importlib.import_module("pytensor.link.numba.dispatch")
    with warnings.catch_warnings():
        for category in categories:
            warnings.simplefilter("ignore", category)
        yield


def array_type(var: Variable) -> Any:
    """Return numba's type of a tensor's arrays in C order; None for other variables."""
    import numba

    if not isinstance(var.type, DenseTensorType):
        return None
    dtype = numba.from_dtype(var.type.numpy_dtype)
    return numba.types.Array(dtype, var.type.ndim, "C")


def make_ahead(program: Callable, given: Sequence[Any]) -> list[Any]:
    """Make or load the machine code of a function of `host.compile_graph`.

    `given` has numba's types of its arguments, None for an unknown one. Returns numba's
    types of its results, None for an unknown one; an empty list if no code was made.
    """
    import numba
    from numba.core.errors import NumbaError

    function = unwrap(program)
    assert isinstance(function, Function)
    vm: Any = function.vm
    held = function.input_storage[len(given) :]
    types = (*given, *[_type_of(container.storage[0]) for container in held])
    if None in types or vm.jit_fn.stats.cache_path is None:
        return []
    if getfullargspec(vm.jit_fn.py_func).varargs:
        types = (numba.types.Tuple(types),)
    try:
        vm.jit_fn.compile(types)
    except NumbaError:
        return []  # raised again by the first call, with PyTensor's note on the Op
    returned = vm.jit_fn.overloads[types].signature.return_type
    # Numba's "any layout" does not say which layout the array will have in a call.
    returned = getattr(returned, "types", ())
    return [of if getattr(of, "layout", "C") == "C" else None for of in returned]


def _type_of(value: Any) -> Any:
    """Return numba's type of a shared variable's value, None if numba knows none."""
    import numba

    if is_foreign(value):  # an array of JAX, which the call converts to numpy
        value = np.empty((0,) * value.ndim, value.dtype)
    try:
        return numba.typeof(value)
    except ValueError:
        return None
