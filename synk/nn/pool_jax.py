"""Pooling in JAX: XLA's windowed reduction; its adjoints as sums over places.

That is slow on the CPU, which has a way of its own: `pool_jax_cpu`. Elsewhere pixels
are compared with a window's maximum, and a barrier has all who read the pixels read the
same ones; the CPU's XLA drops barriers before it decides what to compute anew.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from math import prod
from typing import Any

import numpy as np

from . import pool_jax_cpu
from .pool_op import PoolOp

_UNROLLED = pool_jax_cpu.PLACES
"""Larger windows are looped over when they run, and not when they compile."""


def pool(op: PoolOp, x: Any) -> Any:
    """Return the maximum, sum or average of each window."""
    if 0 in op.pooled(x.shape):
        return _zeros((*x.shape[: -op.ndim], *op.pooled(x.shape)), x.dtype)
    return op.averaged(_by_platform(op, pool_jax_cpu.pool, _reduced, x), x.shape)


def grad(op: PoolOp, x: Any, y: Any, g: Any) -> Any:
    """Return g, the gradient by y, spread over the pixels that y depends on."""
    if 0 in g.shape:
        return _zeros(x.shape, x.dtype)
    elsewhere = _spread if op.mode == "max" else _spread_evenly
    g = op.averaged(g, x.shape)
    return _by_platform(op, pool_jax_cpu.grad, elsewhere, x, y, g)


def pick(op: PoolOp, x: Any, y: Any, v: Any) -> Any:
    """Return the sum of v over those pixels of each window where x equals y."""
    if 0 in y.shape:
        return _zeros(y.shape, y.dtype)
    return _by_platform(op, pool_jax_cpu.pick, _pick, x, y, v)


def _by_platform(
    op: PoolOp, on_cpu: Callable, elsewhere: Callable, *arrays: Any
) -> Any:
    """Return what the function for the platform makes of arrays."""
    import jax

    if prod(op.window) > _UNROLLED:
        return elsewhere(op, *arrays)
    if jax.default_backend() == "cpu":  # the other way need not be traced
        return on_cpu(op, *arrays)
    ways = {"cpu": partial(on_cpu, op), "default": partial(elsewhere, op)}
    return jax.lax.platform_dependent(*arrays, **ways)


def _reduced(op: PoolOp, x: Any) -> Any:
    """Return the maximum of each window, or the sum."""
    from jax import lax

    windows = _windows(op, x.shape)
    if op.mode == "max":
        x = lax.optimization_barrier(x)
        return lax.reduce_window(x, -np.inf, lax.max, **windows)
    return lax.reduce_window(x, 0.0, lax.add, **windows)


def _spread_evenly(op: PoolOp, x: Any, y: Any, g: Any) -> Any:
    """Return g spread over all pixels of a window."""
    import jax

    shape = jax.ShapeDtypeStruct(x.shape, g.dtype)
    return jax.linear_transpose(lambda x: _reduced(op, x), shape)(g)[0]


def _spread(op: PoolOp, x: Any, y: Any, g: Any) -> Any:
    """Return g spread over the pixels that are a window's maximum."""
    import jax

    is_maximum = _maxima(op, x, y)
    image = op.with_margins(x.shape)

    def add(total: Any, at: Any) -> Any:
        shape = jax.ShapeDtypeStruct(total.shape, total.dtype)
        adjoint = jax.linear_transpose(lambda x: _place(op, x, at, y.shape), shape)
        return total + adjoint(jax.numpy.where(is_maximum(at), g, 0))[0]

    total = _over_places(op, add, _zeros((*x.shape[: -op.ndim], *image), g.dtype))
    return total[(..., *op.inner(x.shape))]


def _pick(op: PoolOp, x: Any, y: Any, v: Any) -> Any:
    """Return the sum of v over the pixels that are a window's maximum."""
    import jax.numpy as jnp

    is_maximum = _maxima(op, x, y)
    v = _padded(op, v, 0.0)

    def add(total: Any, at: Any) -> Any:
        return total + jnp.where(is_maximum(at), _place(op, v, at, y.shape), 0)

    return _over_places(op, add, _zeros(y.shape, v.dtype))


def _maxima(op: PoolOp, x: Any, y: Any) -> Callable[[Any], Any]:
    """Return what tells for each window whether its maximum is at a place."""
    from jax import lax

    pixels = _padded(op, lax.optimization_barrier(x), -np.inf)
    return lambda at: _place(op, pixels, at, y.shape) == y


def _windows(op: PoolOp, shape: tuple[int, ...]) -> dict[str, Any]:
    """Return how XLA is told of windows."""
    leading = (1,) * (len(shape) - op.ndim)
    return {
        "window_dimensions": (*leading, *op.window),
        "window_strides": (*leading, *op.stride),
        "padding": (*((0, 0),) * len(leading), *op.margins(shape)),
    }


def _zeros(shape: tuple[int, ...], dtype: Any) -> Any:
    import jax.numpy as jnp

    return jnp.zeros(shape, dtype)


def _padded(op: PoolOp, x: Any, fill: float) -> Any:
    """Return images with the margins over which windows reach."""
    import jax.numpy as jnp

    leading = ((0, 0),) * (x.ndim - op.ndim)
    return jnp.pad(x, (*leading, *op.margins(x.shape)), constant_values=fill)


def _place(op: PoolOp, images: Any, at: Any, pooled: tuple[int, ...]) -> Any:
    """Return for each window the pixel at a place in it."""
    from jax import lax

    leading = images.ndim - op.ndim
    spans = [(n - 1) * s + 1 for n, s in zip(pooled[leading:], op.stride, strict=True)]
    sizes = (*images.shape[:leading], *spans)
    part = lax.dynamic_slice(images, (*(0,) * leading, *at), sizes)
    return lax.slice(part, (0,) * part.ndim, sizes, (*(1,) * leading, *op.stride))


def _over_places(op: PoolOp, add: Any, total: Any) -> Any:
    from jax import lax

    if prod(op.window) <= _UNROLLED:
        for at in product(*map(range, op.window)):
            total = add(total, at)
        return total

    def body(i: Any, total: Any) -> Any:
        at = []
        for size in reversed(op.window):
            at.append(i % size)
            i = i // size
        return add(total, at[::-1])

    return lax.fori_loop(0, prod(op.window), body, total)
