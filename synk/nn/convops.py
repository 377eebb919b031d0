"""Convolution as three Ops, each linear in two of its inputs.

============================  ===========================================
``Conv(x, w)``                the outputs, from inputs and filters
``ConvInputs(x, w, y)``       its adjoint in x: only the shape of x counts
``ConvFilters(x, w, y)``      its adjoint in w: only the shape of w counts
============================  ===========================================

The gradients of each are the two others, so derivatives of any order exist.
Inputs have the shape (batch, channels, *image), filters (outputs, channels per group,
*window). The kernels correlate; a convolution flips the filters first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt

from . import conv_jax, numpy_kernels
from .windows import ConvOp, dilated


class Conv(ConvOp):
    """The outputs of a convolution, from inputs and filters."""

    KERNELS = numpy_kernels.outputs, conv_jax.outputs

    def shape(self, inputs: Sequence, *shapes: Sequence) -> Sequence:
        return self.outputs_shape(*shapes)

    def static_shape(self, inputs: Sequence, *shapes: Sequence) -> Sequence:
        x, w = shapes
        if None in (*x[1:], *w):
            return (x[0], w[0], *(None,) * self.ndim)
        return self.outputs_shape(x, w)

    def gradients(self, inputs: Sequence, output: Any, cotangent: Any) -> list[Any]:
        x, w = inputs
        return [
            self.sibling(ConvInputs)(x, w, cotangent),
            self.sibling(ConvFilters)(x, w, cotangent),
        ]


class ConvInputs(ConvOp):
    """The adjoint of a convolution in its inputs; also a transposed convolution."""

    KERNELS = numpy_kernels.inputs, conv_jax.inputs
    UNCONNECTED = (0,)

    def shape(self, inputs: Sequence, *shapes: Sequence) -> Sequence:
        return shapes[0]

    def gradients(self, inputs: Sequence, output: Any, cotangent: Any) -> list[Any]:
        _, w, y = inputs
        by_filters = self.sibling(ConvFilters)(cotangent, w, y)
        return [None, by_filters, self.sibling(Conv)(cotangent, w)]


class ConvFilters(ConvOp):
    """The adjoint of a convolution in its filters."""

    KERNELS = numpy_kernels.filters, conv_jax.filters
    UNCONNECTED = (1,)

    def shape(self, inputs: Sequence, *shapes: Sequence) -> Sequence:
        return shapes[1]

    def gradients(self, inputs: Sequence, output: Any, cotangent: Any) -> list[Any]:
        x, _, y = inputs
        by_inputs = self.sibling(ConvInputs)(x, cotangent, y)
        return [by_inputs, None, self.sibling(Conv)(x, cotangent)]


def like_inputs(op: ConvInputs, w: Any, y: Any, image: Any) -> Any:
    """Return zeros in the shape of a convolution's inputs.

    `image` is the shape of an image; None for the smallest that fits.
    """
    w, y = op.checked(w, y)
    window, outputs = [w.shape[i + 2] for i in range(op.ndim)], y.shape[2:]
    if image is None:
        axes = zip(range(op.ndim), op.stride, window, op.dilation, strict=True)
        reached = [(outputs[i] - 1) * s + dilated(k, d) for i, s, k, d in axes]
        pads = op.pads([*w.shape[:2], *window])
        image = [n - sum(ends) for n, ends in zip(reached, pads, strict=True)]
    return of_shape((y.shape[0], w.shape[1] * op.groups, *image), y.type.dtype)


def of_shape(shape: Sequence, dtype: str) -> Any:
    """Return zeros of a shape that take no memory, for Ops that need a shape only."""
    return pt.broadcast_to(pt.zeros((), dtype), tuple(shape))
