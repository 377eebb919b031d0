"""Ops whose values in JAX mode differ from those in other modes, or that fail there."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
import pytensor.tensor.random.basic as ptr
from pytensor.graph.basic import Apply
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.subtensor import indices_from_subtensor


def of_declared_dtype(original: Callable, op: Any, node: Apply) -> Callable:
    """Make values have the dtypes that the graph declares.

    In PyTensor's JAX mode a sum of float32 returns the float64 in which it is added.
    And for float32 times int32, or the logarithm of int32, JAX returns float32, and the
    graph declares float64. A later convolution, say, would get arguments of two dtypes.
    ``test_gpu_jax_mode.py`` compares dtypes.
    """
    function = original(op, node)
    dtypes = [np.dtype(var.type.dtype) for var in node.outputs]  # type: ignore[attr-defined]

    def call(*given: Any) -> Any:
        found = function(*given)
        fit = [
            value
            if getattr(value, "dtype", dtype) == dtype
            # Computed again, from wider operands, for all digits.
            else _listed(function(*_widened(given, dtype)))[i].astype(dtype)
            for i, (value, dtype) in enumerate(zip(_listed(found), dtypes, strict=True))
        ]
        return tuple(fit) if isinstance(found, (tuple, list)) else fit[0]

    return call


def _listed(found: Any) -> Sequence[Any]:
    """Return an Op's values as a sequence; a single one may not be in a sequence."""
    return found if isinstance(found, (tuple, list)) else [found]


def _widened(values: Sequence[Any], dtype: np.dtype) -> list[Any]:
    """Return values with integers converted to `dtype`, if that is a float dtype."""
    return [
        value.astype(dtype)
        if dtype.kind == "f" and getattr(value, "dtype", dtype).kind in "iu"
        else value
        for value in values
    ]


def with_arrays(original: Callable, op: Any, node: Apply) -> Callable:
    """Pass float constants as arrays of their dtype (for indexing until PyTensor 3.3).

    PyTensor passes Python floats to JAX, so that ``alloc`` of a float32 is float64, and
    adding one to rows raises AttributeError.
    """
    import jax.numpy as jnp

    function = original(op, node)
    dtypes = [getattr(var.type, "dtype", None) for var in node.inputs]

    def call(*values: Any) -> Any:
        return function(
            *(
                jnp.asarray(value, dtype) if isinstance(value, float) else value
                for value, dtype in zip(values, dtypes, strict=True)
            )
        )

    return call


def set_all(original: Callable, op: Any, node: Apply) -> Callable:
    """Convert setting or increasing all of an array, without ``x.at[:]``.

    XLA (jaxlib 0.10.2, on the CPU) crashes when it compiles ``x.at[:].add(y)[::-1]``,
    which gradients of recurrent layers contain: "Invalid binary instruction opcode
    map".
    """
    import jax.numpy as jnp

    function = original(op, node)
    out: Any = node.outputs[0]

    def call(x: Any, y: Any, *indices: Any) -> Any:
        places = indices_from_subtensor(indices, op.idx_list)
        if not all(map(_is_all, places, jnp.shape(x))):
            return function(x, y, *indices)
        if op.set_instead_of_inc:
            return jnp.broadcast_to(y, jnp.shape(x)).astype(out.dtype)
        return jnp.add(x, y).astype(out.dtype)

    return call


def _is_all(place: Any, length: int) -> bool:
    import jax

    if not isinstance(place, slice):
        return False
    ends = (place.start, place.stop, place.step)
    if any(isinstance(end, jax.core.Tracer) for end in ends):
        return False
    start, stop, step = (None if end is None else operator.index(end) for end in ends)
    return slice(start, stop, step).indices(length) == (0, length, 1)


def prod_without_zeros(original: Callable, op: Any, node: Apply) -> Callable:
    """Convert gradients of ``prod``; until 3.3 PyTensor calls a name JAX lacks."""
    import jax.numpy as jnp

    def call(x: Any) -> Any:
        some = x != 0
        product = jnp.prod(x, axis=op.axis, dtype=op.acc_dtype, where=some)
        return jnp.where(some.any(axis=op.axis), product, 0).astype(op.dtype)

    return call


def copied_stream(original: Callable, op: Any, node: Apply) -> Callable:
    """Convert the copy of a random stream, which is a dict in JAX mode."""
    is_stream = isinstance(node.inputs[0].type, RandomType)
    return dict if is_stream else original(op, node)


def sampled(original: Callable, op: Any, node: Apply) -> Callable:
    """Convert binomial draws, as in dropout, for which PyTensor needs NumPyro."""
    if not isinstance(op, ptr.BinomialRV):
        return original(op, node=node)
    import jax
    import jax.numpy as jnp

    try:
        once = pt.get_underlying_scalar_constant_value(node.inputs[2]) == 1
    except NotScalarConstantError:
        once = False

    def sample(key: Any, size: Any, dtype: Any, n: Any, p: Any) -> Any:
        if size is None:
            size = jnp.broadcast_shapes(jnp.shape(n), jnp.shape(p))
        if once:
            return (jax.random.uniform(key, size) < p).astype(dtype)
        return jax.random.binomial(key, n, p, size).astype(dtype)

    return sample
