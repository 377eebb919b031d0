"""JAX mode: what is known when a graph is traced needs no code of its own.

For every shape and kind of a number that ``jax.numpy`` is asked to compute by itself,
XLA compiles a program: 0.02 to 0.06 s each, a second of the first call of a small
network. So sizes are computed by numpy here, as PyTensor's own Ops do it, and constants
are given to JAX as they are.

And PyTensor's linker converts the values that shared variables have when a graph is
compiled, keeps the arrays, and reads them nowhere: the memory of all parameters once
more. Here it gets nothing to keep.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.scan.op import Scan
from pytensor.tensor.basic import (
    ARange,
    Join,
    MakeVector,
    ScalarFromTensor,
    TensorFromScalar,
)
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.subtensor import Subtensor

_NOT_SIZES = (ARange, RandomVariable, Scan)
"""What computes no sizes: ranges may be long, and better not be constants."""

_BY_NUMPY = (
    *(CAReduce, DimShuffle, Elemwise, Join, MakeVector),
    *(ScalarFromTensor, Subtensor, TensorFromScalar),
)
"""What numpy computes, as in other modes: whole numbers of whole numbers, mostly."""


def typified(
    theirs: Callable,
    data: Any,
    dtype: Any = None,
    variable: Variable | None = None,
    **kwargs: Any,
) -> Any:
    """Constants as arrays of JAX's, and nothing of what a function is given anew."""
    if not isinstance(data, (np.ndarray, sys.modules["jax"].Array)):
        return theirs(data, dtype=dtype, variable=variable, **kwargs)
    if variable is not None and not isinstance(variable, Constant):
        return None
    if not isinstance(data, np.ndarray) or data.ndim == 0:
        return theirs(data, dtype=dtype, **kwargs)
    return _on_device(np.array(data, dtype))


def sizes_at_compile_time(theirs: Callable, op: Any, node: Apply) -> Callable:
    """Arithmetic with sizes that JAX knows: ``zeros(maximum(x.shape[0], 1))``.

    PyTensor computes sizes by functions of ``jax.numpy``. What these return is unknown
    until the compiled code runs, even if they are given ints: "Shapes must be 1D
    sequences of concrete values".
    """
    import jax

    function = theirs(op, node)
    variables = [*node.inputs, *node.outputs]
    if isinstance(op, _NOT_SIZES) or not all(map(_may_be_size, variables)):
        return function
    compute = _by_numpy(node) if op is node.op else None

    def call(*values: Any) -> Any:
        if any(isinstance(value, jax.core.Tracer) for value in values):
            return function(*values)
        if compute is not None:
            return compute(values)
        with jax.ensure_compile_time_eval():
            return function(*values)

    return call


def _may_be_size(var: Any) -> bool:
    kind = np.dtype(getattr(var.type, "dtype", "O")).kind
    ndim = getattr(var.type, "ndim", 0)
    return (kind in "iub" and ndim <= 2) or (kind == "f" and ndim == 0)


def _by_numpy(node: Apply) -> Callable[[Sequence[Any]], Any] | None:
    """Return what computes a node's values without JAX; None if that may differ."""
    op: Any = node.op
    if not isinstance(op, _BY_NUMPY):
        return None

    def compute(values: Sequence[Any]) -> Any:
        given = [
            var.type.filter(np.asarray(value, var.type.dtype)[()])
            for var, value in zip(node.inputs, values, strict=True)
        ]
        storages: list[list[Any]] = [[None] for _ in node.outputs]
        op.perform(node, given, storages)
        found = [_on_device(np.asarray(value)) for (value,) in storages]
        return found[0] if len(found) == 1 else tuple(found)

    return compute


def _on_device(array: np.ndarray) -> Any:
    """Return an array of JAX's, a value also where a graph is traced."""
    import jax

    with jax.ensure_compile_time_eval():
        return jax.device_put(array)
