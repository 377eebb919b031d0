"""Pooling in JAX: XLA's windowed reduction, and its adjoints as sums over places.

XLA may compute pixels again for each reader, with other rounding. A barrier makes all
readers use the same pixels, so that a maximum is equal to one of them. On the CPU, XLA
drops barriers too early, and reduces windows pixel by pixel. So `_Windows` is for CPUs.

XLA is fast if it reduces along an axis other than the last. So for each axis of the
image, `_Windows` puts the windows' pixels along an axis of their own, with channels
last. XLA convolves with channels last as well, so between convolutions nothing is
transposed. The same reduction also returns which pixels are a window's maximum, as a
bit for each place in the window, since XLA does not compute a reduction again.

``python tests/bench/conv.py`` has the figures.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from itertools import product
from math import prod
from typing import Any

import numpy as np

from .conv_jax import adjoint
from .numpy_kernels import pad
from .windows import Pooling

_PLACES = 64
"""The most pixels of a window for an integer with a bit for each. For more, compiled
code loops over the places."""

_CHANNELS = 8
"""Fewer channels do not come last: a loop over them would be too short."""


def pool(op: Pooling, x: Any) -> Any:
    """Return the maximum, sum or average of each window."""
    if 0 in op.pooled(x.shape):
        return _zeros((*x.shape[: -op.ndim], *op.pooled(x.shape)), x.dtype)
    return op.averaged(_by_platform(op, _pool_on_cpu, _reduced, x), x.shape)


def grad(op: Pooling, x: Any, y: Any, g: Any) -> Any:
    """Return the gradient by x, from `g`, that by the pooled y."""
    if 0 in g.shape:
        return _zeros(x.shape, x.dtype)
    return _by_platform(op, _grad_on_cpu, _spread, x, y, op.averaged(g, x.shape))


def pick(op: Pooling, x: Any, y: Any, v: Any) -> Any:
    """Return the sum of v over those pixels of each window where x equals y."""
    if 0 in y.shape:
        return _zeros(y.shape, y.dtype)
    return _by_platform(op, _pick_on_cpu, _pick, x, y, v)


def _by_platform(
    op: Pooling, on_cpu: Callable, elsewhere: Callable, *arrays: Any
) -> Any:
    """Return the result of the function for the CPU, or of that for other devices."""
    import jax

    if prod(op.window) > _PLACES:
        return elsewhere(op, *arrays)
    if jax.default_backend() == "cpu":  # so only one function is traced
        return on_cpu(op, *arrays)
    ways = {"cpu": partial(on_cpu, op), "default": partial(elsewhere, op)}
    return jax.lax.platform_dependent(*arrays, **ways)


def _reduced(op: Pooling, x: Any) -> Any:
    """Return the maximum of each window, or the sum."""
    from jax import lax

    leading = (1,) * (x.ndim - op.ndim)
    windows = {
        "window_dimensions": (*leading, *op.window),
        "window_strides": (*leading, *op.stride),
        "padding": (*((0, 0),) * len(leading), *op.margins(x.shape)),
    }
    if op.mode == "max":
        x = lax.optimization_barrier(x)
        return lax.reduce_window(x, -np.inf, lax.max, **windows)
    return lax.reduce_window(x, 0.0, lax.add, **windows)


def _spread(op: Pooling, x: Any, y: Any, g: Any) -> Any:
    """Return g spread over the pixels that are a window's maximum, or all."""
    import jax.numpy as jnp

    if op.mode != "max":
        return adjoint(lambda x: _reduced(op, x), x, g)
    is_maximum = _maxima(op, x, y)
    image = op.with_margins(x.shape)

    def add(total: Any, at: Any) -> Any:
        chosen = jnp.where(is_maximum(at), g, 0)
        return total + adjoint(lambda x: _place(op, x, at, y.shape), total, chosen)

    total = _over_places(op, add, _zeros((*x.shape[: -op.ndim], *image), g.dtype))
    return total[(..., *op.inner(x.shape))]


def _pick(op: Pooling, x: Any, y: Any, v: Any) -> Any:
    """Return the sum of v over the pixels that are a window's maximum."""
    import jax.numpy as jnp

    is_maximum = _maxima(op, x, y)
    v = pad(v, op.margins(x.shape), 0.0, jnp)

    def add(total: Any, at: Any) -> Any:
        return total + jnp.where(is_maximum(at), _place(op, v, at, y.shape), 0)

    return _over_places(op, add, _zeros(y.shape, v.dtype))


def _maxima(op: Pooling, x: Any, y: Any) -> Callable[[Any], Any]:
    """Return a function of a place: whether each window has its maximum there."""
    import jax.numpy as jnp
    from jax import lax

    pixels = pad(lax.optimization_barrier(x), op.margins(x.shape), -np.inf, jnp)
    return lambda at: _place(op, pixels, at, y.shape) == y


def _zeros(shape: tuple[int, ...], dtype: Any) -> Any:
    import jax.numpy as jnp

    return jnp.zeros(shape, dtype)


def _place(op: Pooling, images: Any, at: Any, pooled: tuple[int, ...]) -> Any:
    """Return the pixel at a place in each window."""
    from jax import lax

    leading = images.ndim - op.ndim
    spans = [(n - 1) * s + 1 for n, s in zip(pooled[leading:], op.stride, strict=True)]
    sizes = (*images.shape[:leading], *spans)
    part = lax.dynamic_slice(images, (*(0,) * leading, *at), sizes)
    return lax.slice(part, (0,) * part.ndim, sizes, (*(1,) * leading, *op.stride))


def _over_places(op: Pooling, add: Any, total: Any) -> Any:
    from jax import lax

    if prod(op.window) <= _PLACES:
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


# -- on the CPU


def _pool_on_cpu(op: Pooling, x: Any) -> Any:
    """Return the maximum of each window, or the sum."""
    import jax.numpy as jnp

    windows = _Windows(op, x.shape)
    pixels = windows.channels_last(x)
    if op.mode != "max":
        return windows.channels_back(windows.reduced(jnp.add, pixels, 0.0))
    if any(s < w for s, w in zip(op.stride, op.window, strict=True)):
        return windows.channels_back(windows.reduced(jnp.maximum, pixels, -np.inf))
    # Uses `places`, so that XLA shares this reduction with that of the gradient.
    values, places = windows.maxima(pixels)
    values = jnp.where(places != 0, values, x.dtype.type(np.nan))
    return windows.channels_back(values)


def _grad_on_cpu(op: Pooling, x: Any, y: Any, g: Any) -> Any:
    """Return g, the gradient by the maxima or sums y, spread over their pixels."""
    windows = _Windows(op, x.shape)
    places = None
    if op.mode == "max":
        _, places = windows.maxima(windows.channels_last(x))
    return windows.channels_back(windows.spread(places, windows.channels_last(g)))


def _pick_on_cpu(op: Pooling, x: Any, y: Any, v: Any) -> Any:
    """Return the sum of v over those pixels of each window that are its maximum y."""
    windows = _Windows(op, x.shape)
    _, places = windows.maxima(windows.channels_last(x))
    return windows.channels_back(windows.picked(places, windows.channels_last(v)))


class _Windows:
    """The windows in images (..., channels, *image); methods take channels last."""

    def __init__(self, op: Pooling, shape: tuple[int, ...]) -> None:
        self.op = op
        self.shape = shape
        self.leading = len(shape) - op.ndim
        self.moved = self.leading > 0 and shape[self.leading - 1] >= _CHANNELS
        if self.moved:
            self.leading -= 1
        self.counts = op.pooled(shape)

    def channels_last(self, x: Any) -> Any:
        """Return images, of any size, with channels last."""
        import jax.numpy as jnp

        return jnp.moveaxis(x, self.leading, -1) if self.moved else x[..., None]

    def channels_back(self, x: Any) -> Any:
        """Return an array of `channels_last` with its channels moved back."""
        import jax.numpy as jnp

        return jnp.moveaxis(x, -1, self.leading) if self.moved else x[..., 0]

    def reduced(self, combine: Callable, x: Any, fill: float) -> Any:
        """Return each window's pixels combined."""
        values = self._padded(x, fill)
        for axis in range(self.op.ndim):
            values = reduce(combine, self._parts(values, axis))
        return values

    def maxima(self, x: Any) -> tuple[Any, Any]:
        """Return the maximum of each window, and integers with its places.

        An integer has a bit for each place in the window, set if the pixel there is the
        maximum. Several may be equal to it; none is set if a pixel is NaN.
        """
        import jax.numpy as jnp
        from jax import lax

        values = self._padded(x, -np.inf)
        # An integer has a bit for each place. Never 16 bits, as compiled loops do not
        # vectorise shifts of these.
        many = prod(self.op.window)
        dtype = "uint8" if many <= 8 else "uint32" if many <= 32 else "uint64"
        places = jnp.ones(values.shape, dtype)

        def larger(a: Any, b: Any) -> Any:
            # By `lax`, as functions of `jnp` become calls in the program, and XLA
            # (jaxlib 0.10.2) may crash when it compiles a reduction with a call.
            (x, mine), (y, other) = a, b
            zeros = lax.full_like(mine, 0)
            places = lax.select(x >= y, mine, zeros) | lax.select(y >= x, other, zeros)
            return lax.max(x, y), places

        for axis, weight in enumerate(self._weights()):
            bits = [
                jnp.left_shift(part, places.dtype.type(weight * i))
                for i, part in enumerate(self._parts(places, axis))
            ]
            along = self.leading + axis
            values, places = lax.reduce(
                (jnp.stack(self._parts(values, axis), along), jnp.stack(bits, along)),
                (values.dtype.type(-np.inf), places.dtype.type(0)),
                larger,
                (along,),
            )
        return values, places

    def spread(self, places: Any, g: Any) -> Any:
        """Return the windows' values g, added to their pixels at `places`.

        `places` are integers of `maxima`; None for all places. Along an axis, pixel
        ``stride * q + r`` is in window ``q - t`` at place ``r + stride * t``, for each
        t with a place in the window. So the result is a sum over t of g, shifted by t
        and repeated `stride` times.
        """
        import jax.numpy as jnp
        from jax import lax

        window, stride = self.op.window, self.op.stride
        image = zip(self.op.with_margins(self.shape), stride, strict=True)
        blocks = [-(-size // s) for size, s in image]
        pixels = [n for pair in zip(blocks, stride, strict=True) for n in pair]
        shape = (*g.shape[: self.leading], *pixels, g.shape[-1])

        def repeated(of_windows: Any, shifts: tuple[int, ...]) -> Any:
            axes = zip(self.counts, blocks, shifts, strict=True)
            ends = [(t, block - count - t, 0) for count, block, t in axes]
            ends = [(0, 0, 0)] * self.leading + ends + [(0, 0, 0)]
            shifted = lax.pad(of_windows, of_windows.dtype.type(0), ends)
            along = [self.leading + 2 * axis + 1 for axis in range(self.op.ndim)]
            return jnp.broadcast_to(jnp.expand_dims(shifted, along), shape)

        def chosen(shifts: tuple[int, ...]) -> Any:
            number: Any = np.int32(0)
            inside: Any = np.True_
            for axis, weight in enumerate(self._weights()):
                place: Any = np.int32(stride[axis] * shifts[axis])
                if stride[axis] > 1:
                    along = self.leading + 2 * axis + 1
                    place = place + lax.broadcasted_iota("int32", shape, along)
                number = number + weight * place
                inside = inside & (place < window[axis])
            if places is None:
                return inside
            bit = places.dtype.type(1) << number.astype(places.dtype)
            return inside & (repeated(places, shifts) & bit != 0)

        total = nothing = g.dtype.type(0)
        axes = zip(window, stride, strict=True)
        for shifts in product(*(range(-(-w // s)) for w, s in axes)):
            total += jnp.where(chosen(shifts), repeated(g, shifts), nothing)
        sizes = [n * s for n, s in zip(blocks, stride, strict=True)]
        total = total.reshape(*g.shape[: self.leading], *sizes, g.shape[-1])
        return total[(..., *self.op.inner(self.shape), slice(None))]

    def picked(self, places: Any, v: Any) -> Any:
        """Return the sum of v over those pixels of each window that `places` has."""
        import jax.numpy as jnp

        v = self._padded(v, 0.0)
        total = nothing = v.dtype.type(0)
        for number, at in enumerate(product(*map(range, self.op.window))):
            part = v
            for axis, place in enumerate(at):
                part = self._part(part, axis, place)
            bit = places.dtype.type(1) << places.dtype.type(number)
            total += jnp.where(places & bit != 0, part, nothing)
        return total

    def _padded(self, x: Any, fill: float) -> Any:
        """Return images with the margins over which windows reach."""
        import jax.numpy as jnp

        return pad(x, (*self.op.margins(self.shape), (0, 0)), fill, jnp)

    def _parts(self, x: Any, axis: int) -> list[Any]:
        """Return, for each place along a window's axis, the windows' pixels there."""
        return [self._part(x, axis, place) for place in range(self.op.window[axis])]

    def _part(self, x: Any, axis: int, place: int) -> Any:
        from jax import lax

        stride = self.op.stride[axis]
        end = place + (self.counts[axis] - 1) * stride + 1
        return lax.slice_in_dim(x, place, end, stride, axis=self.leading + axis)

    def _weights(self) -> list[int]:
        """Return the strides of a place's number, for each axis of a window."""
        return [prod(self.op.window[axis + 1 :]) for axis in range(self.op.ndim)]
