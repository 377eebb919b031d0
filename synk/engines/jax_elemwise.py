"""JAX mode: element-wise functions in forms that XLA makes vector code of.

XLA's power on the CPU is slow, and so is PyTensor's softplus, which chooses among four
formulas. Of 1,000,000 float64, on one core:

=====================  =========  ======
..                     PyTensor   here
=====================  =========  ======
``x ** 1.5``           12 ms      0.9 ms
``softplus(x).sum()``  10.8 ms    2.7 ms
``softplus(x)``        10.3 ms    8.7 ms
=====================  =========  ======

Errors are at most one unit in the last place more for softplus, and two for powers.
NaN, infinities and the zeros of powers are as before, and so is that XLA returns 0 for
what is below the smallest normal number. ``test_modes_mended.py`` tells when any
of it can go.

``log1mexp`` stays as it is: ``log(-expm1(x))`` takes a sixth of the time, but is 0 from
-37 on, and whatever form is exact there took as long as PyTensor's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.basic import get_underlying_scalar_constant_value
from pytensor.tensor.exceptions import NotScalarConstantError


def softplus(funcify: Callable) -> Callable:
    """Return the conversion of `Softplus`, with ``log(1 + exp(x))`` in one formula."""
    import jax
    import jax.numpy as jnp

    def convert(op: Any, **kwargs: Any) -> Callable:
        function = funcify(op, **kwargs)

        def call(x: Any) -> Any:
            if not _is_float(x) or jax.default_backend() != "cpu":
                return function(x)
            return jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))

        return call

    return convert


def power(funcify: Callable) -> Callable:
    """Return the conversion of `Pow`, with roots for some constant exponents."""
    import jax

    def convert(op: Any, node: Apply, **kwargs: Any) -> Callable:
        function = funcify(op, node=node, **kwargs)
        exponent = _constant(node.inputs[1])
        (out,) = node.outputs
        if exponent not in _POWERS or out.type.dtype != node.inputs[0].type.dtype:
            return function

        def call(x: Any, given: Any) -> Any:
            if (
                _is_float(x)
                and np.broadcast_shapes(np.shape(x), np.shape(given)) == np.shape(x)
                and jax.default_backend() == "cpu"
            ):
                return _by_root(x, exponent)
            return function(x, given)

        return call

    return convert


_POWERS: dict[float, Callable] = {
    1.5: lambda x, sqrt: x * sqrt(x),
    2.5: lambda x, sqrt: x * (x * sqrt(x)),
    -1.5: lambda x, sqrt: (1 / x) * sqrt(1 / x),
}
"""What is computed of positive numbers. Others would be off by more than two units in
the last place, or overflow on the way."""


def _by_root(x: Any, exponent: float) -> Any:
    import jax.numpy as jnp

    # That of -inf is defined, and not as that of other negative numbers NaN.
    made = _POWERS[exponent](jnp.abs(x), jnp.sqrt)
    return jnp.where((x < 0) & (x > -jnp.inf), jnp.nan, made)


def _is_float(x: Any) -> bool:
    return getattr(x, "dtype", None) in ("float32", "float64")


def _constant(var: Variable) -> float | None:
    try:
        return float(get_underlying_scalar_constant_value(var))
    except NotScalarConstantError:
        return None
