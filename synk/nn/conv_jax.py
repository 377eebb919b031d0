"""Convolution in JAX: XLA's correlation, and its transposes as JAX derives them.

On one core of a CPU many convolutions are faster as products of matrices, image by
image. The windows of an image become the columns of a matrix (im2col, K. Chellapilla,
S. Puri and P. Simard, *High performance convolutional neural networks for document
processing*, 2006), which the filters multiply. One image's windows stay in the cache;
those of a batch do not. XLA's own convolution takes several times as long for few
channels, for windows of one pixel, and for gradients by filters; but it can use several
cores, and so is used if the process has several. The bounds below come from twenty
shapes, timed in both ways on a core of an Intel Xeon.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

from ..workers.affinity import allowed_cores
from .numpy_kernels import cut
from .windows import ConvOp


def outputs(op: ConvOp, x: Any, w: Any) -> Any:
    """Return the outputs from inputs (batch, channels, *image) and filters."""
    filters, channels = w.shape[:2]
    pixels = prod(w.shape[2:])
    is_small = filters <= 16 or (channels > 1 and filters * pixels <= 64 * 9)
    if _by_image(op, x, w) and (pixels == 1 or (channels <= 4 and is_small)):
        return _outputs_by_image(op, x, w)
    return _correlation(op, x, w)


def inputs(op: ConvOp, x: Any, w: Any, y: Any) -> Any:
    """Return the adjoint in the inputs; of x only the shape counts."""
    if _by_image(op, x, w) and (w.shape[1] <= 8 or prod(w.shape[2:]) == 1):
        return _inputs_by_image(op, x, w, y)
    return adjoint(lambda x: _correlation(op, x, w), x, y)


def filters(op: ConvOp, x: Any, w: Any, y: Any) -> Any:
    """Return the adjoint in the filters; of w only the shape counts."""
    if _by_image(op, x, w) and (w.shape[0] >= 32 or prod(w.shape[2:]) <= 9):
        return _filters_by_image(op, x, w, y)
    return adjoint(lambda w: _correlation(op, x, w), w, y)


def adjoint(linear: Callable, like: Any, y: Any) -> Any:
    """Return the adjoint of a linear function at y; `like` has its input's shape."""
    import jax

    return jax.linear_transpose(linear, jax.ShapeDtypeStruct(like.shape, y.dtype))(y)[0]


def _correlation(op: ConvOp, x: Any, w: Any) -> Any:
    import jax.numpy as jnp
    from jax import lax

    pads = op.pads(w.shape)
    axes = "DHW"[-op.ndim :]
    filters = "OI" + axes
    if op.flip and max(w.shape[-op.ndim :]) > 1:
        # Flipped with windows first in memory: half the time with many filters.
        w = lax.rev(jnp.moveaxis(w, (0, 1), (-1, -2)), tuple(range(op.ndim)))
        filters = axes + "IO"
    return lax.conv_general_dilated(
        x,
        w,
        window_strides=op.stride,
        padding=pads,
        rhs_dilation=op.dilation,
        feature_group_count=op.groups,
        dimension_numbers=("NC" + axes, filters, "NC" + axes),
    )


# -- by image, on the CPU

_PIXELS = 49
"""The most pixels of a window: each is a slice of the image in compiled code."""

_PLACES = 64
"""The least windows of an image: with fewer, reading the filters takes longest."""


def _by_image(op: ConvOp, x: Any, w: Any) -> bool:
    """Return whether a convolution can go image by image, and may be faster so."""
    import jax

    is_whole = op.groups == 1 and x.dtype in ("float32", "float64")
    has_any = all([*x.shape, *w.shape])
    places = prod(op.outputs_shape(x.shape, w.shape)[2:])
    fits = prod(w.shape[2:]) <= _PIXELS and places >= _PLACES
    is_core = jax.default_backend() == "cpu" and len(allowed_cores()) == 1
    return is_whole and has_any and fits and is_core


def _outputs_by_image(op: ConvOp, x: Any, w: Any) -> Any:
    from jax import lax

    windows, by_rows = _windows(op, x, w), w.reshape(w.shape[0], -1)
    made = lax.map(lambda image: by_rows @ windows(image), x)
    return made.reshape(op.outputs_shape(x.shape, w.shape))


def _inputs_by_image(op: ConvOp, x: Any, w: Any, y: Any) -> Any:
    import jax

    image = jax.ShapeDtypeStruct(x.shape[1:], y.dtype)
    spread = jax.linear_transpose(_windows(op, x, w), image)
    columns = w.reshape(w.shape[0], -1).T

    def of_one(outputs: Any) -> Any:
        return spread(columns @ outputs.reshape(len(outputs), -1))[0]

    return jax.lax.map(of_one, y)


def _filters_by_image(op: ConvOp, x: Any, w: Any, y: Any) -> Any:
    import jax.numpy as jnp
    from jax import lax

    windows = _windows(op, x, w)

    def add(total: Any, image_and_outputs: tuple[Any, Any]) -> tuple[Any, None]:
        image, outputs = image_and_outputs
        return total + outputs.reshape(len(total), -1) @ windows(image).T, None

    zeros = jnp.zeros((w.shape[0], prod(w.shape[1:])), y.dtype)
    return lax.scan(add, zeros, (x, y))[0].reshape(w.shape)


def _windows(op: ConvOp, x: Any, w: Any) -> Callable[[Any], Any]:
    """Return a linear function of an image (channels, *image), to its windows.

    It returns a matrix with a column for each window. The rows are the window's pixels,
    channel by channel, in the order of the filter's pixels that multiply them.
    """
    import jax.numpy as jnp
    from jax import lax

    padding = [(0, 0, 0), *((low, high, 0) for low, high in op.pads(w.shape))]
    places = op.outputs_shape(x.shape, w.shape)[2:]
    offsets = list(product(*map(range, w.shape[2:])))
    if op.flip:
        offsets.reverse()

    def windows(image: Any) -> Any:
        image = lax.pad(image, jnp.zeros((), image.dtype), padding)
        found = []
        for offset in offsets:
            starts = [i * d for i, d in zip(offset, op.dilation, strict=True)]
            found.append(image[:, *cut(starts, places, op.stride)])
        return jnp.stack(found, 1).reshape(len(image) * len(offsets), -1)

    return windows
