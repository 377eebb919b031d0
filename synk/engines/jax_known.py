"""JAX mode: what is known when a graph is traced needs no code of its own.

For every shape and kind of a number that ``jax.numpy`` is asked to compute by itself,
XLA compiles a program: 0.02 to 0.06 s each, a second of the first call of a small
network. So sizes are computed by numpy here, as PyTensor's own Ops do it, and constants
are given to JAX as they are.

And PyTensor's linker converts the values that shared variables have when a graph is
compiled, keeps the arrays, and reads them nowhere: the memory of all parameters once
more. Here it gets nothing to keep.

Seen with PyTensor 3.0.7 to 3.3.8 and JAX 0.10.2. ``test_modes_mended.py`` tells when
PyTensor alone compiles and keeps nothing: then this can go.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
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

NOT_SIZES = (ARange, RandomVariable, Scan)
"""What computes no sizes: ranges may be long, and better not be constants."""

_BY_NUMPY = (
    *(CAReduce, DimShuffle, Elemwise, Join, MakeVector),
    *(ScalarFromTensor, Subtensor, TensorFromScalar),
)
"""What numpy computes, as in other modes: whole numbers of whole numbers, mostly."""


def register() -> None:
    """Replace PyTensor's own conversions of values, and those of all Ops for sizes."""
    import jax
    from pytensor.link.jax.dispatch import jax_funcify, jax_typify

    jax_typify.register(np.ndarray)(typified(jax_typify.dispatch(np.ndarray)))
    jax_typify.register(jax.Array)(typified(jax_typify.dispatch(jax.Array)))
    for cls, funcify in list(jax_funcify.registry.items()):
        if issubclass(cls, Op) and not issubclass(cls, NOT_SIZES):
            jax_funcify.register(cls)(sizes_at_compile_time(funcify))


def typified(typify: Callable) -> Callable:
    """Constants as arrays of JAX's, and nothing of what a function is given anew."""

    def convert(
        data: Any,
        dtype: Any = None,
        variable: Variable | None = None,
        **kwargs: Any,
    ) -> Any:
        if variable is not None and not isinstance(variable, Constant):
            return None
        if not isinstance(data, np.ndarray) or data.ndim == 0:
            return typify(data, dtype=dtype, **kwargs)
        return _on_device(np.array(data, dtype))

    return convert


def sizes_at_compile_time(funcify: Callable) -> Callable:
    """Arithmetic with sizes that JAX knows: ``zeros(maximum(x.shape[0], 1))``.

    PyTensor computes sizes by functions of ``jax.numpy``. What these return is unknown
    until the compiled code runs, even if they are given ints: "Shapes must be 1D
    sequences of concrete values".
    """
    import jax

    def convert(op: Any, node: Any = None, **kwargs: Any) -> Callable:
        with warnings.catch_warnings():
            # Such as that of broadcasting, which JAX checks by itself.
            warnings.filterwarnings("ignore", "Skipping Assert")
            function = funcify(op, node=node, **kwargs)
        if node is None or not all(map(_may_be_size, [*node.inputs, *node.outputs])):
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

    return convert


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
