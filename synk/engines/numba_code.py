"""Numba: which modes are its own, its warnings, and machine code before the first call.

Numba makes machine code when a function is called first, which all ranks do at once:
each would make the same code, of seconds or minutes. Asked for ahead it can be made on
one rank first, and the others find it in numba's cache on disk.

That takes the types of all arguments. Those of synk's calls are known: the inputs are
arrays in C order, the shared variables have their values, and what another part hands
on has the type that numba has found there. Where one is not known, or the code cannot
be cached, nothing is done here: each rank makes the code in its first call.
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
    """Ignore warnings of these categories while a graph is compiled in a mode."""
    if is_numba(mode):
        # It brings filters of what numba says of generated code, for good. Imported
        # later, within `catch_warnings`, it would lose them at the end of that, and
        # numba compiles in the first call.
        importlib.import_module("pytensor.link.numba.dispatch")
    with warnings.catch_warnings():
        for category in categories:
            warnings.simplefilter("ignore", category)
        yield


def is_numba(mode: Any) -> bool:
    """Tell whether numba compiles graphs in one of PyTensor's modes."""
    return isinstance(get_mode(mode).linker, NumbaLinker)


def array_type(var: Variable) -> Any:
    """Return numba's type of arrays in C order, for a tensor; None for all else."""
    import numba

    if not isinstance(var.type, DenseTensorType):
        return None
    dtype = numba.from_dtype(var.type.numpy_dtype)
    return numba.types.Array(dtype, var.type.ndim, "C")


def make_ahead(program: Callable, given: Sequence[Any]) -> list[Any]:
    """Make the machine code of what `host.compile_graph` has returned, or load it.

    Takes numba's types of what it is called with, None where one is not known, and
    returns those of what it returns; none if there is no code yet.
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
    # An array of any strides may turn out to be in C order outside of numba.
    returned = getattr(returned, "types", ())
    return [of if getattr(of, "layout", "C") == "C" else None for of in returned]


def _type_of(value: Any) -> Any:
    """Return numba's type of a shared variable's value, None if it has none."""
    import numba

    if is_foreign(value):  # an array of JAX's, which the call makes one of numpy's
        value = np.empty((0,) * value.ndim, value.dtype)
    try:
        return numba.typeof(value)
    except ValueError:
        return None
