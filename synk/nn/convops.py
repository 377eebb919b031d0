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
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable

from . import conv_jax, numpy_kernels
from .base import KernelOp
from .windows import ConvOp, dilated


class Conv(ConvOp):
    """The outputs of a convolution, from inputs and filters."""

    KERNELS = numpy_kernels.outputs, conv_jax.outputs

    def shape(self, *shapes: Sequence) -> Sequence:
        """Return the shape of the outputs."""
        return self.outputs_shape(*shapes)

    def static_shape(self, *shapes: Sequence) -> Sequence:
        """Return the static shape of the outputs."""
        x, w = shapes
        if None in (*x[1:], *w):
            return (x[0], w[0], *(None,) * self.ndim)
        return self.outputs_shape(x, w)

    def gradients(self, inputs: Sequence, output: Any, cotangent: Any) -> list[Any]:
        """Return the two adjoints."""
        x, w = inputs
        return [
            self.sibling(ConvInputs)(x, w, cotangent),
            self.sibling(ConvFilters)(x, w, cotangent),
        ]


class ConvInputs(ConvOp):
    """The adjoint of a convolution in its inputs; also a transposed convolution."""

    KERNELS = numpy_kernels.inputs, conv_jax.inputs
    UNCONNECTED = (0,)

    def shape(self, *shapes: Sequence) -> Sequence:
        """Return the shape of the inputs."""
        return shapes[0]

    def gradients(self, inputs: Sequence, output: Any, cotangent: Any) -> list[Any]:
        """Return the gradients by filters and outputs."""
        _, w, y = inputs
        by_filters = self.sibling(ConvFilters)(cotangent, w, y)
        return [None, by_filters, self.sibling(Conv)(cotangent, w)]


class ConvFilters(ConvOp):
    """The adjoint of a convolution in its filters."""

    KERNELS = numpy_kernels.filters, conv_jax.filters
    UNCONNECTED = (1,)

    def shape(self, *shapes: Sequence) -> Sequence:
        """Return the shape of the filters."""
        return shapes[1]

    def gradients(self, inputs: Sequence, output: Any, cotangent: Any) -> list[Any]:
        """Return the gradients by inputs and outputs."""
        x, _, y = inputs
        by_inputs = self.sibling(ConvInputs)(x, cotangent, y)
        return [by_inputs, None, self.sibling(Conv)(x, cotangent)]


@dataclass(eq=False, repr=False)
class LikeInputs(KernelOp):
    """Zeros in the shape of a convolution's inputs, from filters and outputs."""

    conv: ConvInputs
    image: tuple[int, ...] | None
    """The shape of an image; None for the smallest that fits."""

    __props__ = ("conv", "image")
    UNCONNECTED = (0, 1)

    def checked(self, *variables: Any) -> list[Any]:
        """Return filters and outputs, of one dtype and with enough axes."""
        return self.conv.checked(*variables)

    def shape(self, *shapes: Sequence) -> Sequence:
        """Return the shape of the inputs, with None for unknown lengths."""
        w, y = shapes
        conv = self.conv
        channels = None if w[1] is None else w[1] * conv.groups
        image: Sequence = self.image or (None,) * conv.ndim
        if self.image is None and None not in (*w[2:], *y[2:]):
            axes = zip(y[2:], conv.stride, w[2:], conv.dilation, strict=True)
            reached = [(n - 1) * s + dilated(k, d) for n, s, k, d in axes]
            ends = zip(reached, conv.pads(w), strict=True)
            image = [n - low - high for n, (low, high) in ends]
        return (y[0], channels, *image)

    def perform(self, node: Apply, inputs: Sequence, output_storage: Sequence) -> None:
        """Return zeros that take no memory."""
        w, y = inputs
        zero = np.zeros((), y.dtype)
        output_storage[0][0] = np.broadcast_to(zero, self.shape(w.shape, y.shape))

    def jax_kernel(self, *arrays: Any) -> Any:
        """Return zeros; XLA drops them."""
        import jax.numpy as jnp

        w, y = arrays
        return jnp.zeros(self.shape(w.shape, y.shape), y.dtype)

    def gradients(self, inputs: Sequence, output: Any, cotangent: Any) -> list[Any]:
        """Return no gradients: zeros depend on nothing."""
        return [None, None]


def like_inputs(op: ConvInputs, w: Any, y: Any, image: Any, batch: Any = None) -> Any:
    """Return zeros in the shape of a convolution's inputs.

    `image` is the shape of an image; None for the smallest that fits. `batch` is the
    number of images; None for that of `y`. JAX mode needs constant sizes.
    """
    if image is None:
        return LikeInputs(op, None)(w, y)
    known = [_constant(size) for size in image]
    if None not in known:
        return LikeInputs(op, tuple(known))(w, y)  # type: ignore[arg-type]
    batch = y.shape[0] if batch is None else batch
    return of_shape((batch, w.shape[1] * op.groups, *image), y.type.dtype)


def of_shape(shape: Sequence, dtype: str) -> Any:
    """Return zeros of a shape that take no memory, for Ops that need a shape only."""
    return pt.broadcast_to(pt.zeros((), dtype), tuple(shape))


def _constant(size: Any) -> int | None:
    """Return a size as an int; None if it is a variable that is no constant."""
    if isinstance(size, Constant):
        return int(size.data)
    return None if isinstance(size, Variable) else int(size)
