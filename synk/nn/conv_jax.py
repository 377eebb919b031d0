"""Convolution in JAX: XLA's correlation, and its transposes as JAX derives them.

On the CPU much of it is faster by products of matrices: `conv_jax_cpu`.
"""

from __future__ import annotations

from typing import Any

from . import conv_jax_cpu
from .conv_op import ConvOp


def outputs(op: ConvOp, x: Any, w: Any) -> Any:
    """Return the outputs from inputs (batch, channels, *image) and filters."""
    if conv_jax_cpu.is_for_outputs(op, x, w):
        return conv_jax_cpu.outputs(op, x, w)
    return _correlation(op, x, w)


def inputs(op: ConvOp, x: Any, w: Any, y: Any) -> Any:
    """Return the adjoint in the inputs, of which x has the shape."""
    import jax

    if conv_jax_cpu.is_for_inputs(op, x, w):
        return conv_jax_cpu.inputs(op, x, w, y)
    shape = jax.ShapeDtypeStruct(x.shape, y.dtype)
    return jax.linear_transpose(lambda x: _correlation(op, x, w), shape)(y)[0]


def filters(op: ConvOp, x: Any, w: Any, y: Any) -> Any:
    """Return the adjoint in the filters, of which w has the shape."""
    import jax

    if conv_jax_cpu.is_for_filters(op, x, w):
        return conv_jax_cpu.filters(op, x, w, y)
    shape = jax.ShapeDtypeStruct(w.shape, y.dtype)
    return jax.linear_transpose(lambda w: _correlation(op, x, w), shape)(y)[0]


def _correlation(op: ConvOp, x: Any, w: Any) -> Any:
    import jax.numpy as jnp
    from jax import lax

    pads = op.pads(w.shape)
    axes = "DHW"[-op.ndim :]
    filters = "OI" + axes
    if op.flip and max(w.shape[-op.ndim :]) > 1:
        # Window by window in memory: half the time where it counts, with many filters.
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
