"""What PyTensor's JAX mode gets wrong and networks need; each goes when it can.

Found with PyTensor 3.0.7 and JAX 0.10.2. ``tests/test_nn_jax_fixes.py`` has for each a
test that fails once PyTensor does it right by itself: then the fix can go.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant


def register() -> None:
    """Replace PyTensor's own conversions."""
    from pytensor.link.jax.dispatch import jax_funcify
    from pytensor.tensor.basic import ARange, MakeVector
    from pytensor.tensor.elemwise import CAReduce, Elemwise

    jax_funcify.register(ARange)(arange)
    for cls in (Elemwise, MakeVector, CAReduce):
        jax_funcify.register(cls)(sizes_at_compile_time(jax_funcify.dispatch(cls)))


def arange(op: Any, node: Apply, **kwargs: Any) -> Callable:
    """``arange(n)``, and so ``x[arange(n), y]``, for any n that follows from shapes.

    PyTensor keeps the start and step as constants of the smallest dtype, int8, and JAX
    converts n to that: "Python integer 300 out of bounds for int8". It also refuses to
    look at numbers that are computed from shapes, though they are known.
    """
    import jax
    import jax.numpy as jnp

    known = [
        var.data.item() if isinstance(var, Constant) else None for var in node.inputs
    ]

    def number(value: Any) -> Any:
        if isinstance(value, jax.core.Tracer):
            raise NotImplementedError(
                "JAX needs the length of arange when it compiles: give it constants,"
                " or what follows from the shapes of variables"
            )
        try:
            return operator.index(value)
        except TypeError:
            return float(value)

    def convert(*values: Any) -> Any:
        pairs = zip(values, known, strict=True)
        numbers = [number(v) if constant is None else constant for v, constant in pairs]
        return jnp.arange(*numbers, dtype=op.dtype)

    return convert


def sizes_at_compile_time(funcify: Callable) -> Callable:
    """Arithmetic with sizes that JAX knows: ``zeros(maximum(x.shape[0], 1))``.

    PyTensor computes sizes by functions of ``jax.numpy``. What these return is unknown
    until the compiled code runs, even if they are given ints: "Shapes must be 1D
    sequences of concrete values".
    """
    import jax

    def convert(op: Any, node: Apply, **kwargs: Any) -> Callable:
        function = funcify(op, node=node, **kwargs)
        if not all(map(_may_be_size, [*node.inputs, *node.outputs])):
            return function

        def call(*values: Any) -> Any:
            if any(isinstance(value, jax.core.Tracer) for value in values):
                return function(*values)
            with jax.ensure_compile_time_eval():
                return function(*values)

        return call

    return convert


def _may_be_size(var: Any) -> bool:
    kind = np.dtype(getattr(var.type, "dtype", "O")).kind
    return kind in "iub" and getattr(var.type, "ndim", 0) <= 1
