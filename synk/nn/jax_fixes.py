"""What PyTensor's JAX mode gets wrong and networks need; each goes when it can.

Found with PyTensor 3.0.7 and JAX 0.10.2. ``tests/test_nn_jax_fixes.py`` has for each a
test that fails once PyTensor does it right by itself.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from pytensor.graph.basic import Apply


def register() -> None:
    """Replace PyTensor's own conversions."""
    from pytensor.link.jax.dispatch import jax_funcify
    from pytensor.tensor.basic import ARange

    jax_funcify.register(ARange)(arange)


def arange(op: Any, node: Apply, **kwargs: Any) -> Callable:
    """``arange(n)``, and with it ``x[arange(n), y]``, for any n that a shape gives.

    PyTensor keeps the start and step as constants of the smallest dtype, int8, and JAX
    converts n to that: "Python integer 300 out of bounds for int8". It also refuses to
    look at numbers that are computed from shapes, though they are known.
    """
    import jax
    import jax.numpy as jnp
    from pytensor.graph.basic import Constant

    known = [
        var.data.item() if isinstance(var, Constant) else None for var in node.inputs
    ]

    def number(value: Any) -> Any:
        try:
            return operator.index(value)
        except TypeError:
            return float(value)

    def convert(*values: Any) -> Any:
        try:
            numbers = [
                number(value) if constant is None else constant
                for value, constant in zip(values, known, strict=True)
            ]
        except jax.errors.ConcretizationTypeError as error:
            raise NotImplementedError(
                "JAX needs the length of arange when it compiles: give it constants,"
                " or the shapes of variables"
            ) from error
        return jnp.arange(*numbers, dtype=op.dtype)

    return convert
