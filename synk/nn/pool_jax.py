"""Pooling in JAX: XLA's windowed reduction; its adjoints as sums over places.

Which pixels are a window's maximum cannot be told by comparing them with it afterwards:
XLA may compute them anew for that, with other roundings, and then none is equal to it.
On the CPU a second reduction tells it, of pixels and bits at the same time. Elsewhere,
where that is slow, a barrier has all who read the pixels read the same ones; on the CPU
XLA drops barriers before it decides what to compute anew.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from .pool_op import PoolOp

_UNROLLED = 64
"""Larger windows are looped over when they run, and not when they compile; there are no
integers with a bit for each of their pixels."""


def pool(op: PoolOp, x: Any) -> Any:
    """Return the maximum, sum or average of each window."""
    from jax import lax

    if 0 in op.pooled(x.shape):
        return _zeros((*x.shape[: -op.ndim], *op.pooled(x.shape)), x.dtype)
    windows = _windows(op, x.shape)
    if op.mode == "max":
        x = lax.optimization_barrier(x)
        return lax.reduce_window(x, -np.inf, lax.max, **windows)
    return _averaged(op, x, lax.reduce_window(x, 0.0, lax.add, **windows))


def grad(op: PoolOp, x: Any, y: Any, g: Any) -> Any:
    """Return g, the gradient by y, spread over the pixels that y depends on."""
    import jax

    if 0 in g.shape:
        return _zeros(x.shape, x.dtype)
    if op.mode != "max":
        shape = jax.ShapeDtypeStruct(x.shape, g.dtype)
        return jax.linear_transpose(lambda x: pool(op, x), shape)(g)[0]
    return _by_platform(op, _spread, x, y, g)


def pick(op: PoolOp, x: Any, y: Any, v: Any) -> Any:
    """Return the sum of v over those pixels of each window where x equals y."""
    if 0 in y.shape:
        return _zeros(y.shape, y.dtype)
    return _by_platform(op, _pick, x, y, v)


Maxima = Callable[[Any], Any]
"""For a place in the windows, tells for each window whether its maximum is there."""


def _by_platform(op: PoolOp, adjoint: Callable, x: Any, y: Any, v: Any) -> Any:
    """Return what an adjoint makes of maxima, found in the way of the platform."""
    from jax import lax

    def by(find: Callable[..., Maxima], x: Any, y: Any, v: Any) -> Any:
        return adjoint(op, x, y.shape, v, find(op, x, y))

    if np.prod(op.window) > _UNROLLED:
        return by(_by_value, x, y, v)
    ways = {"cpu": partial(by, _by_bits), "default": partial(by, _by_value)}
    return lax.platform_dependent(x, y, v, **ways)


def _by_value(op: PoolOp, x: Any, y: Any) -> Maxima:
    from jax import lax

    padded = _padded(op, x, lax.optimization_barrier(x), -np.inf)
    return lambda at: _place(op, padded, at, y.shape) == y


def _by_bits(op: PoolOp, x: Any, y: Any) -> Maxima:
    import jax.numpy as jnp
    from jax import lax

    # Each pixel has a bit that no other pixel has in any window that it is in: the one
    # of its place in a tiling of the image by windows.
    dtype = "uint32" if np.prod(op.window) <= 32 else "uint64"
    image = x.shape[-op.ndim :]
    place = jnp.zeros(image, dtype)
    for axis, size in enumerate(op.window):
        place = place * size + lax.broadcasted_iota(dtype, image, axis) % size
    bit = jnp.left_shift(jnp.ones((), dtype), place)

    def larger(a: Any, b: Any) -> Any:
        (x, mine), (y, other) = a, b
        none = jnp.zeros((), dtype)
        bits = jnp.where(x >= y, mine, none) | jnp.where(y >= x, other, none)
        return jnp.maximum(x, y), bits

    nothing = (jnp.array(-np.inf, x.dtype), jnp.zeros((), dtype))
    pixels = (x, jnp.broadcast_to(bit, x.shape))
    _, found = lax.reduce_window(pixels, nothing, larger, **_windows(op, x.shape))
    bit = _padded(op, bit, bit, 0)
    return lambda at: (found & _place(op, bit, at, found.shape[-op.ndim :])) != 0


def _spread(
    op: PoolOp, x: Any, pooled: tuple[int, ...], g: Any, is_maximum: Maxima
) -> Any:
    """Return g spread over maxima."""
    import jax

    margins = op.margins(x.shape)
    padded = [
        low + size + high
        for (low, high), size in zip(margins, x.shape[-op.ndim :], strict=True)
    ]

    def add(total: Any, at: Any) -> Any:
        shape = jax.ShapeDtypeStruct(total.shape, total.dtype)
        adjoint = jax.linear_transpose(lambda x: _place(op, x, at, pooled), shape)
        return total + adjoint(jax.numpy.where(is_maximum(at), g, 0))[0]

    total = _over_places(op, add, _zeros((*x.shape[: -op.ndim], *padded), g.dtype))
    inner = (
        slice(low, low + size)
        for (low, _), size in zip(margins, x.shape[-op.ndim :], strict=True)
    )
    return total[(..., *inner)]


def _pick(
    op: PoolOp, x: Any, pooled: tuple[int, ...], v: Any, is_maximum: Maxima
) -> Any:
    """Return the sum of v over maxima."""
    import jax.numpy as jnp

    v = _padded(op, x, v, 0.0)

    def add(total: Any, at: Any) -> Any:
        return total + jnp.where(is_maximum(at), _place(op, v, at, pooled), 0)

    return _over_places(op, add, _zeros(pooled, v.dtype))


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
