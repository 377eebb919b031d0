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

    def of_image(self, w: Any, y: Any, image: Sequence | None) -> Any:
        """Return the adjoint for images of a shape; None for the smallest that fits."""
        w, y = self.checked(w, y)
        if image is None:
            window = [w.shape[i] for i in range(self.ndim + 2)]
            ends = zip(self.pads(window), window[2:], self.dilation, strict=True)
            image = [
                (y.shape[i + 2] - 1) * self.stride[i] + dilated(k, d) - low - high
                for i, ((low, high), k, d) in enumerate(ends)
            ]
        shape = y.shape[0], w.shape[1] * self.groups, *image
        return self(of_shape(shape, y.type.dtype), w, y)


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


def of_shape(shape: Sequence, dtype: str) -> Any:
    """Return zeros of a shape that take no memory, for Ops that need a shape only."""
    return pt.broadcast_to(pt.zeros((), dtype), tuple(shape))
