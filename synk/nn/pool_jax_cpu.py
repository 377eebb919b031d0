"""Pooling in JAX on the CPU: an axis at a time, by loops that vectorize.

XLA reduces windows there a pixel at a time; with the pixels' places, which the gradient
of maxima takes, in five times that. A reduction along an axis other than the last takes
whole rows; so the windows' pixels are laid out along an axis of their own, for each of
the image's axes in turn.

Which pixels are a window's maximum is told by that same reduction, as a bit for each
place in the window. To compare pixels with the maximum afterwards would not do: XLA may
compute them anew for that, with other roundings, and then none is equal to it. What a
reduction gives is not computed anew.

``python tests/bench/pool.py`` has the figures.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .pool_op import PoolOp

PLACES = 64
"""Windows of more pixels have too many for an integer with a bit for each."""


class Maxima(NamedTuple):
    """Windows' maxima, and where in the windows they are.

    Attributes
    ----------
    values : array, shape (..., *pooled)
    places : array of unsigned int, same shape
        A bit for each place in a window, set where the pixel there is the maximum: all
        of several that are equal, and none where one is NaN.
    """

    values: Any
    places: Any


def pool(op: PoolOp, x: Any) -> Any:
    """Return the maximum of each window, or the sum."""
    import jax.numpy as jnp

    if op.mode != "max":
        return _reduced(op, jnp.add, x, 0.0)
    if all(s >= w for s, w in zip(op.stride, op.window, strict=True)):
        # As fast as without places, and XLA computes it once for the gradient as well.
        return maxima(op, x).values
    return _reduced(op, jnp.maximum, x, -np.inf)


def _reduced(op: PoolOp, combine: Callable, x: Any, fill: float) -> Any:
    values = padded(op, x, fill)
    for axis in range(op.ndim):
        values = reduce(combine, _parts(op, values, axis, x.shape))
    return values


def maxima(op: PoolOp, x: Any) -> Maxima:
    """Return the maximum of each window, and the places where it is."""
    import jax.numpy as jnp
    from jax import lax

    values = padded(op, x, -np.inf)
    places = jnp.ones(values.shape, _dtype(op))

    def larger(a: Any, b: Any) -> Any:
        # Not by jnp's functions, which are functions in the program as well: XLA
        # (jaxlib 0.10.2) may crash when it compiles a reduction that calls one.
        (x, mine), (y, other) = a, b
        zeros = lax.full_like(mine, 0)
        places = lax.select(x >= y, mine, zeros) | lax.select(y >= x, other, zeros)
        return lax.max(x, y), places

    for axis, weight in enumerate(_weights(op)):
        parts = _parts(op, values, axis, x.shape)
        bits = [
            jnp.left_shift(part, places.dtype.type(weight * i))
            for i, part in enumerate(_parts(op, places, axis, x.shape))
        ]
        along = x.ndim - op.ndim + axis
        values, places = lax.reduce(
            (jnp.stack(parts, along), jnp.stack(bits, along)),
            (values.dtype.type(-np.inf), places.dtype.type(0)),
            larger,
            (along,),
        )
    return Maxima(values, places)


def grad(op: PoolOp, x: Any, y: Any, g: Any) -> Any:
    """Return g, the gradient by the maxima or sums y, spread over their pixels.

    Along an axis, pixel ``stride * q + r`` is in window ``q - t`` at place ``r + stride
    * t``, for each t that has it there. So the result is a sum over t of windows'
    gradients, repeated `stride` times.
    """
    import jax.numpy as jnp
    from jax import lax

    places = maxima(op, x).places if op.mode == "max" else None
    strides = op.stride
    leading = x.ndim - op.ndim
    image = zip(padded_image(op, x.shape), strides, strict=True)
    blocks = [-(-size // stride) for size, stride in image]
    pixels = [n for pair in zip(blocks, strides, strict=True) for n in pair]
    shape = (*x.shape[:leading], *pixels)

    def repeated(of_windows: Any, shifts: tuple[int, ...]) -> Any:
        axes = zip(of_windows.shape[leading:], blocks, shifts, strict=True)
        ends = [(t, block - windows - t, 0) for windows, block, t in axes]
        zero = of_windows.dtype.type(0)
        shifted = lax.pad(of_windows, zero, [(0, 0, 0)] * leading + ends)
        along = [leading + 2 * axis + 1 for axis in range(op.ndim)]
        return jnp.broadcast_to(jnp.expand_dims(shifted, along), shape)

    def chosen(shifts: tuple[int, ...]) -> Any:
        number: Any = np.int32(0)
        inside: Any = np.True_
        for axis, weight in enumerate(_weights(op)):
            place: Any = np.int32(strides[axis] * shifts[axis])
            if strides[axis] > 1:
                r = lax.broadcasted_iota("int32", shape, leading + 2 * axis + 1)
                place = place + r
            number = number + weight * place
            inside = inside & (place < op.window[axis])
        if places is None:
            return inside
        bits = places.dtype.type(1) << number.astype(places.dtype)
        return inside & (repeated(places, shifts) & bits != 0)

    total = nothing = g.dtype.type(0)
    axes = zip(op.window, strides, strict=True)
    for shifts in product(*(range(-(-window // stride)) for window, stride in axes)):
        total += jnp.where(chosen(shifts), repeated(g, shifts), nothing)
    sizes = [n * stride for n, stride in zip(blocks, strides, strict=True)]
    return unpadded(op, total.reshape(*x.shape[:leading], *sizes), x.shape)


def pick(op: PoolOp, x: Any, y: Any, v: Any) -> Any:
    """Return the sum of v over those pixels of each window that are its maximum y."""
    import jax.numpy as jnp

    places = maxima(op, x).places
    one, nothing = places.dtype.type(1), v.dtype.type(0)
    v = padded(op, v, 0.0)
    total = nothing
    for number, at in enumerate(product(*map(range, op.window))):
        part = v
        for axis, place in enumerate(at):
            part = _part(op, part, axis, x.shape, place)
        is_maximum = places & (one << places.dtype.type(number)) != 0
        total += jnp.where(is_maximum, part, nothing)
    return total


def padded(op: PoolOp, x: Any, fill: float) -> Any:
    """Return images with the margins over which windows reach."""
    import jax.numpy as jnp

    leading = ((0, 0),) * (x.ndim - op.ndim)
    return jnp.pad(x, (*leading, *op.margins(x.shape)), constant_values=fill)


def padded_image(op: PoolOp, shape: tuple[int, ...]) -> list[int]:
    """Return the lengths of an image's axes with its margins."""
    sizes = zip(op.margins(shape), shape[-op.ndim :], strict=True)
    return [low + size + high for (low, high), size in sizes]


def unpadded(op: PoolOp, x: Any, shape: tuple[int, ...]) -> Any:
    """Return the images of a shape that have margins around them."""
    sizes = zip(op.margins(shape), shape[-op.ndim :], strict=True)
    return x[(..., *(slice(low, low + size) for (low, _), size in sizes))]


def _parts(op: PoolOp, x: Any, axis: int, shape: tuple[int, ...]) -> list[Any]:
    """Return for each place along an axis of windows the pixels that are there."""
    return [_part(op, x, axis, shape, place) for place in range(op.window[axis])]


def _part(op: PoolOp, x: Any, axis: int, shape: tuple[int, ...], place: int) -> Any:
    from jax import lax

    stride = op.stride[axis]
    end = place + (op.pooled(shape)[axis] - 1) * stride + 1
    return lax.slice_in_dim(x, place, end, stride, axis=x.ndim - op.ndim + axis)


def _weights(op: PoolOp) -> list[int]:
    """Return by how much a place's number grows along each axis of a window."""
    return [prod(op.window[axis + 1 :]) for axis in range(op.ndim)]


def _dtype(op: PoolOp) -> str:
    """Return the integers that have a bit for each place.

    None of 16 bits, of which loops do not shift several at a time.
    """
    places = prod(op.window)
    return "uint8" if places <= 8 else "uint32" if places <= 32 else "uint64"
