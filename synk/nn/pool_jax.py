"""Pooling in JAX: XLA's windowed reduction; its adjoints as sums over places."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .poolops import PoolOp

_UNROLLED = 64
"""Larger windows are looped over when they run, and not when they compile."""


def pool(op: PoolOp, x: Any) -> Any:
    """Return the maximum, sum or average of each window."""
    from jax import lax

    if 0 in op.pooled(x.shape):
        return _zeros((*x.shape[: -op.ndim], *op.pooled(x.shape)), x.dtype)
    leading = (1,) * (x.ndim - op.ndim)
    window = {
        "window_dimensions": (*leading, *op.window),
        "window_strides": (*leading, *op.stride),
        "padding": (*((0, 0),) * len(leading), *op.margins(x.shape)),
    }
    if op.mode == "max":
        return lax.reduce_window(x, -np.inf, lax.max, **window)
    return _averaged(op, x, lax.reduce_window(x, 0.0, lax.add, **window))


def grad(op: PoolOp, x: Any, y: Any, g: Any) -> Any:
    """Return g, the gradient by y, spread over the pixels that y depends on."""
    import jax

    if 0 in g.shape:
        return _zeros(x.shape, x.dtype)
    if op.mode != "max":
        shape = jax.ShapeDtypeStruct(x.shape, g.dtype)
        return jax.linear_transpose(lambda x: pool(op, x), shape)(g)[0]
    padded = _padded(op, x, x, -np.inf)

    def add(total: Any, at: Any) -> Any:
        def slices(array: Any) -> Any:
            return _place(op, array, at, y.shape)

        spread = jax.numpy.where(slices(padded) == y, g, 0)
        shape = jax.ShapeDtypeStruct(total.shape, total.dtype)
        return total + jax.linear_transpose(slices, shape)(spread)[0]

    total = _over_places(op, add, _zeros(padded.shape, g.dtype))
    inner = (
        slice(low, low + size)
        for (low, _), size in zip(op.margins(x.shape), x.shape[-op.ndim :], strict=True)
    )
    return total[(..., *inner)]


def pick(op: PoolOp, x: Any, y: Any, v: Any) -> Any:
    """Return the sum of v over those pixels of each window where x equals y."""
    import jax.numpy as jnp

    if 0 in y.shape:
        return _zeros(y.shape, y.dtype)
    padded, v = _padded(op, x, x, -np.inf), _padded(op, x, v, 0.0)

    def add(total: Any, at: Any) -> Any:
        same = _place(op, padded, at, y.shape) == y
        return total + jnp.where(same, _place(op, v, at, y.shape), 0)

    return _over_places(op, add, _zeros(y.shape, y.dtype))


def _zeros(shape: tuple[int, ...], dtype: Any) -> Any:
    import jax.numpy as jnp

    return jnp.zeros(shape, dtype)


def _averaged(op: PoolOp, x: Any, y: Any) -> Any:
    if not op.mode.startswith("average"):
        return y
    return y / op.counts(x.shape).astype(y.dtype)


def _padded(op: PoolOp, x: Any, array: Any, fill: float) -> Any:
    import jax.numpy as jnp

    leading = ((0, 0),) * (x.ndim - op.ndim)
    return jnp.pad(array, (*leading, *op.margins(x.shape)), constant_values=fill)


def _place(op: PoolOp, padded: Any, at: Any, pooled: tuple[int, ...]) -> Any:
    """Return for each window the pixel at a place in it."""
    from jax import lax

    leading = padded.ndim - op.ndim
    spans = [(n - 1) * s + 1 for n, s in zip(pooled[leading:], op.stride, strict=True)]
    sizes = (*padded.shape[:leading], *spans)
    part = lax.dynamic_slice(padded, (*(0,) * leading, *at), sizes)
    return lax.slice(part, (0,) * part.ndim, sizes, (*(1,) * leading, *op.stride))


def _over_places(op: PoolOp, add: Any, total: Any) -> Any:
    from jax import lax

    if np.prod(op.window) <= _UNROLLED:
        for at in product(*map(range, op.window)):
            total = add(total, at)
        return total

    def body(i: Any, total: Any) -> Any:
        at = []
        for size in reversed(op.window):
            at.append(i % size)
            i = i // size
        return add(total, at[::-1])

    return lax.fori_loop(0, int(np.prod(op.window)), body, total)
