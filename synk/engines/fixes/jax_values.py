"""Values in JAX mode that are others than in PyTensor's other modes, or that fail."""

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


def of_declared_dtype(theirs: Callable, op: Any, node: Apply) -> Callable:
    """Values of the dtypes that a graph declares: sums of float32, products with ints.

    PyTensor adds up float32 as float64, and returns that in JAX. JAX itself makes
    float32 of float32 times int32, and of the logarithm of int32; PyTensor float64. A
    convolution, for one, then gets arguments of two dtypes. ``test_gpu_jax_mode.py``
    compares dtypes.
    """
    function = theirs(op, node)
    dtypes = [np.dtype(var.type.dtype) for var in node.outputs]  # type: ignore[attr-defined]

    def call(*given: Any) -> Any:
        found = function(*given)
        fit = [
            value
            if getattr(value, "dtype", dtype) == dtype
            # Computed once more, with all the digits.
            else _listed(function(*_widened(given, dtype)))[i].astype(dtype)
            for i, (value, dtype) in enumerate(zip(_listed(found), dtypes, strict=True))
        ]
        return tuple(fit) if isinstance(found, (tuple, list)) else fit[0]

    return call


def _listed(found: Any) -> Sequence[Any]:
    """Return an Op's values, of which one may come by itself."""
    return found if isinstance(found, (tuple, list)) else [found]


def _widened(values: Sequence[Any], dtype: np.dtype) -> list[Any]:
    """Return values with whole numbers made floats, if it is floats that are wanted."""
    return [
        value.astype(dtype)
        if dtype.kind == "f" and getattr(value, "dtype", dtype).kind in "iu"
        else value
        for value in values
    ]


def with_arrays(theirs: Callable, op: Any, node: Apply) -> Callable:
    """Float constants as arrays of their own dtype (for indexing until PyTensor 3.3).

    PyTensor gives JAX Python's floats in their place: ``alloc`` of one has the dtype of
    those, and adding one to rows is an AttributeError.
    """
    import jax.numpy as jnp

    function = theirs(op, node)
    dtypes = [getattr(var.type, "dtype", None) for var in node.inputs]

    def call(*values: Any) -> Any:
        return function(
            *(
                jnp.asarray(value, dtype) if isinstance(value, float) else value
                for value, dtype in zip(values, dtypes, strict=True)
            )
        )

    return call


def set_all(theirs: Callable, op: Any, node: Apply) -> Callable:
    """Set all of an array, or add to all of it.

    XLA (jaxlib 0.10.2, on the CPU) ends the process when it compiles
    ``x.at[:].add(y)[::-1]``, as gradients of recurrent layers have it: "Invalid binary
    instruction opcode map".
    """
    import jax.numpy as jnp

    function = theirs(op, node)
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


def prod_without_zeros(theirs: Callable, op: Any, node: Apply) -> Callable:
    """Gradients of ``prod``: PyTensor calls what JAX has not (until PyTensor 3.3)."""
    import jax.numpy as jnp

    def call(x: Any) -> Any:
        some = x != 0
        product = jnp.prod(x, axis=op.axis, dtype=op.acc_dtype, where=some)
        return jnp.where(some.any(axis=op.axis), product, 0).astype(op.dtype)

    return call


def copied_stream(theirs: Callable, op: Any, node: Apply) -> Callable:
    """Streams, which are dicts, where a graph gives one as it is."""
    is_stream = isinstance(node.inputs[0].type, RandomType)
    return dict if is_stream else theirs(op, node)


def sampled(theirs: Callable, op: Any, node: Apply) -> Callable:
    """Binomial numbers, so dropout; PyTensor needs NumPyro for them."""
    if not isinstance(op, ptr.BinomialRV):
        return theirs(op, node=node)
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
