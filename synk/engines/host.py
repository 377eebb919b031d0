"""PyTensor on the CPU: compiled functions of numpy arrays."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Variable


def compile_graph(
    inputs: list[Variable],
    outputs: list[Variable],
    updates: list[tuple[SharedVariable, Variable]],
    mode: Any,
    name: str | None,
    options: dict[str, Any],
) -> Callable[..., list[np.ndarray]]:
    """Compile a graph to a function of arrays that returns a list of arrays.

    The arrays it is called with must have exactly the inputs' dtypes and dimensions and
    be C-contiguous and writeable; nothing is checked again. (Numba compiles a function
    anew for an array that is strided or read-only, which takes 0.3 s and more.)
    """
    options = {key: value for key, value in options.items() if key not in _OURS}
    with warnings.catch_warnings():
        # Deprecated, and needed for variables that bring an update along: which updates
        # are made is settled in `compiler.spec`.
        warnings.simplefilter("ignore", DeprecationWarning)
        return pytensor.function(
            inputs,
            outputs,
            updates=updates,
            mode=mode,
            name=name,
            on_unused_input="ignore",
            trust_input=True,
            no_default_updates=True,
            **options,
        )


_OURS = ("trust_input", "allow_input_downcast")
"""Options that are dealt with where a function is made or called."""


def get_value(variable: SharedVariable) -> Any:
    """Return the value of a shared variable itself, without a copy."""
    return variable.get_value(borrow=True, return_internal_type=True)


def set_value(variable: SharedVariable, value: Any) -> None:
    """Make `value` itself the value of a shared variable, without a copy."""
    variable.set_value(value, borrow=True)
