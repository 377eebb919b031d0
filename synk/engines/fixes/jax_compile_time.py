"""JAX mode: sizes and constants without programs of their own.

If ``jax.numpy`` computes a value while a graph is traced, XLA compiles a program for
it, 0.02 to 0.06 s for each Op, shape and dtype: a second of a small network's first
call. So numpy computes sizes here, by PyTensor's own Ops, and constants are copied to
JAX's device without ``jax.numpy``.

Also, PyTensor's linker converts the values of shared variables when a graph is
compiled, and keeps these arrays without reading them, which doubles the memory of all
parameters. Here it gets None to keep.
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
"""Ops that compute no sizes. (A long range as a constant would take memory.)"""

_BY_NUMPY = (
    *(CAReduce, DimShuffle, Elemwise, Join, MakeVector),
    *(ScalarFromTensor, Subtensor, TensorFromScalar),
)
"""Ops that numpy computes with the same result: mostly integers from integers."""


def typified(
    original: Callable,
    data: Any,
    dtype: Any = None,
    variable: Variable | None = None,
    **kwargs: Any,
) -> Any:
    """Return a constant as an array of JAX; None for a value given in each call."""
    if not isinstance(data, (np.ndarray, sys.modules["jax"].Array)):
        return original(data, dtype=dtype, variable=variable, **kwargs)
    if variable is not None and not isinstance(variable, Constant):
        return None
    if not isinstance(data, np.ndarray) or data.ndim == 0:
        return original(data, dtype=dtype, **kwargs)
    return _on_device(np.array(data, dtype))


def sizes_at_compile_time(original: Callable, op: Any, node: Apply) -> Callable:
    """Compute sizes when JAX compiles, such as that of ``zeros(maximum(n, 1))``.

    PyTensor computes sizes by functions of ``jax.numpy``, whose results are unknown
    until the compiled code runs, even for ints: "Shapes must be 1D sequences of
    concrete values".
    """
    import jax

    function = original(op, node)
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
    """Return a function that computes a node by numpy; None if that may differ."""
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
    """Return an array of JAX with these values, even while a graph is traced."""
    import jax

    with jax.ensure_compile_time_eval():
        return jax.device_put(array)
