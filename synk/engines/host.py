"""PyTensor on the CPU: compiled functions of numpy arrays."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import pytensor
from pytensor.compile import Function, SharedVariable
from pytensor.graph.basic import Variable

from .conversions import own_mode
from .numba_code import ignoring
from .plain_functions import is_foreign, make_numpy, unwatched


def compile_graph(
    inputs: list[Variable],
    outputs: list[Variable],
    updates: list[tuple[SharedVariable, Variable]],
    mode: Any,
    name: str | None,
    options: dict[str, Any],
    precision: str | None = None,
) -> Callable[..., list[np.ndarray]]:
    """Compile a graph to a function of arrays that returns a list of arrays.

    Arguments of that function must have exactly the inputs' dtypes and dimensions and
    be C-contiguous and writeable; it does not check them. (Numba compiles a function
    anew for an array that is strided or read-only, which takes 0.3 s and more.)
    ``inspect.unwrap`` returns PyTensor's function.
    """
    made = make_function(inputs, outputs, updates, mode, name, options)
    function = unwatched(made)
    read = [var.container.storage for var in made.get_shared()]
    if not read:
        return function

    @wraps(function, assigned=(), updated=())
    def call(*args: np.ndarray) -> list[np.ndarray]:
        if "jax" in sys.modules:  # variables may hold arrays of JAX
            make_numpy(read)
        return function(*args)

    return call


def make_function(
    inputs: list[Variable],
    outputs: list[Variable],
    updates: list[tuple[SharedVariable, Variable]],
    mode: Any,
    name: str | None,
    options: dict[str, Any],
    precision: str | None = None,
) -> Function:
    """Compile a graph to PyTensor's function, which does not check its arguments."""
    options = {key: value for key, value in options.items() if key not in _OURS}
    # `no_default_updates` is deprecated, but `updates` already has the default updates
    # (see `compiler.spec`).
    with ignoring(mode, DeprecationWarning):
        return pytensor.function(
            inputs,
            outputs,
            updates=updates,
            mode=own_mode(mode, precision),
            name=name,
            on_unused_input="ignore",
            trust_input=True,
            no_default_updates=True,
            **options,
        )


_OURS = ("trust_input", "allow_input_downcast")
"""Options of `synk.function` that synk itself obeys; PyTensor does not get them."""


def get_value(variable: SharedVariable) -> Any:
    """Return the value of a shared variable itself, without a copy.

    For an array of JAX, returns numpy's view of it, which must not be written to.
    """
    value = variable.get_value(borrow=True, return_internal_type=True)
    return np.asarray(value) if is_foreign(value) else value


def set_value(variable: SharedVariable, value: Any) -> None:
    """Make `value` itself the value of a shared variable, without a copy."""
    variable.set_value(value, borrow=True)


def copy_value(value: Any) -> Any:
    """Return a C-contiguous copy of an array, or a deep copy of anything else."""
    if isinstance(value, np.ndarray):
        return np.array(value, order="C")
    return copy.deepcopy(value)


def as_output(value: Any) -> Any:
    """Return a value as an array that belongs to the caller."""
    return value
