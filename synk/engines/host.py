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
from .plain_functions import bring_home, is_foreign, untold


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

    The arrays it is called with must have exactly the inputs' dtypes and dimensions and
    be C-contiguous and writeable; nothing is checked again. (Numba compiles a function
    anew for an array that is strided or read-only, which takes 0.3 s and more.)
    ``inspect.unwrap`` finds PyTensor's function in it.
    """
    made = make_function(inputs, outputs, updates, mode, name, options)
    function = untold(made)
    read = [var.container.storage for var in made.get_shared()]
    if not read:
        return function

    @wraps(function, assigned=(), updated=())
    def call(*args: np.ndarray) -> list[np.ndarray]:
        if "jax" in sys.modules:  # a function compiled for it may have left its arrays
            bring_home(read)
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
    """Return PyTensor's function, which checks none of its arguments."""
    options = {key: value for key, value in options.items() if key not in _OURS}
    # Deprecated, and needed for variables that bring an update along: which updates are
    # made is settled in `compiler.spec`.
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
"""Options that are dealt with where a function is made or called."""


def get_value(variable: SharedVariable) -> Any:
    """Return the value of a shared variable itself, without a copy.

    Of an array of JAX's numpy's view is returned, which must not be written to.
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
