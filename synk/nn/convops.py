"""Convolution as three Ops, each of which is linear in two of its inputs.

============================  ===========================================
``Conv(x, w)``                the outputs, from inputs and filters
``ConvInputs(x, w, y)``       its adjoint in x: only the shape of x counts
``ConvFilters(x, w, y)``      its adjoint in w: only the shape of w counts
============================  ===========================================

The gradients of each are the two others, so that there are derivatives of any order.
Inputs have the shape (batch, channels, *image), filters (outputs, channels per group,
*window). The kernels correlate; a convolution flips the filters first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.type import TensorType

from . import conv_jax, numpy_kernels
from .base import KernelOp
from .windows import ConvOp, input_length


class Conv(ConvOp):
    """The outputs of a convolution, from inputs and filters."""

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the Op to inputs and filters."""
        x, w = self.checked(*inputs)
        xs, ws = x.type.shape, w.type.shape
        shape: tuple[int | None, ...] = (xs[0], ws[0], *(None,) * self.ndim)
        if None not in (*xs[1:], *ws):
            known = self.outputs_shape((1, *xs[1:]), ws)
            shape = (xs[0], *known[1:])
        return Apply(self, [x, w], [TensorType(x.type.dtype, shape)()])

    def symbolic_shape(self, input_shapes: Sequence) -> Sequence:
        """Return the shape of the outputs, symbolic."""
        x, w = input_shapes
        reach = [(w[i + 2] - 1) * d + 1 for i, d in enumerate(self.dilation)]
        pads = self.symbolic_pads(reach)
        image = [
            (x[i + 2] + pads[i] - reach[i]) // s + 1 for i, s in enumerate(self.stride)
        ]
        return (x[0], w[0], *image)

    def numpy_kernel(self, *arrays: np.ndarray) -> np.ndarray:
        """Compute by products of matrices."""
        x, w = arrays
        return numpy_kernels.outputs(self, x, w, self.outputs_shape(x.shape, w.shape))

    def jax_kernel(self, *arrays: Any) -> Any:
        """Compute by XLA's convolution."""
        x, w = arrays
        self.outputs_shape(x.shape, w.shape)
        return conv_jax.outputs(self, x, w)

    def gradients(
        self, inputs: Sequence[Variable], output: Variable, cotangent: Variable
    ) -> list[Variable | None]:
        """Return the two adjoints."""
        x, w = inputs
        return [
            self.sibling(ConvInputs)(x, w, cotangent),
            self.sibling(ConvFilters)(x, w, cotangent),
        ]


class ConvInputs(ConvOp):
    """The adjoint of a convolution in its inputs; also a transposed convolution."""

    shaped_like = 0

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the Op to inputs (for their shape), filters and outputs."""
        x, w, y = self.checked(*inputs)
        return Apply(self, [x, w, y], [TensorType(x.type.dtype, x.type.shape)()])

    def symbolic_shape(self, input_shapes: Sequence) -> Sequence:
        """Return the shape of the inputs."""
        return input_shapes[0]

    def numpy_kernel(self, *arrays: np.ndarray) -> np.ndarray:
        """Compute by products of matrices."""
        x, w, y = arrays
        self.check_outputs(x.shape, w.shape, y.shape)
        return numpy_kernels.inputs(self, x.shape, w, y)

    def jax_kernel(self, *arrays: Any) -> Any:
        """Compute by XLA's convolution, transposed."""
        x, w, y = arrays
        self.check_outputs(x.shape, w.shape, y.shape)
        return conv_jax.inputs(self, x, w, y)

    def gradients(
        self, inputs: Sequence[Variable], output: Variable, cotangent: Variable
    ) -> list[Variable | None]:
        """Return the gradients by filters and outputs."""
        _, w, y = inputs
        by_filters = self.sibling(ConvFilters)(cotangent, w, y)
        return [None, by_filters, self.sibling(Conv)(cotangent, w)]


class ConvFilters(ConvOp):
    """The adjoint of a convolution in its filters."""

    shaped_like = 1

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the Op to inputs, filters (for their shape) and outputs."""
        x, w, y = self.checked(*inputs)
        return Apply(self, [x, w, y], [TensorType(x.type.dtype, w.type.shape)()])

    def symbolic_shape(self, input_shapes: Sequence) -> Sequence:
        """Return the shape of the filters."""
        return input_shapes[1]

    def numpy_kernel(self, *arrays: np.ndarray) -> np.ndarray:
        """Compute by products of matrices."""
        x, w, y = arrays
        self.check_outputs(x.shape, w.shape, y.shape)
        return numpy_kernels.filters(self, x, w.shape, y)

    def jax_kernel(self, *arrays: Any) -> Any:
        """Compute by XLA's convolution, transposed."""
        x, w, y = arrays
        self.check_outputs(x.shape, w.shape, y.shape)
        return conv_jax.filters(self, x, w, y)

    def gradients(
        self, inputs: Sequence[Variable], output: Variable, cotangent: Variable
    ) -> list[Variable | None]:
        """Return the gradients by inputs and outputs."""
        x, _, y = inputs
        by_inputs = self.sibling(ConvInputs)(x, cotangent, y)
        return [by_inputs, None, self.sibling(Conv)(x, cotangent)]


class LikeInputs(KernelOp):
    """Zeros in the shape of a convolution's inputs, from filters and outputs.

    Parameters
    ----------
    conv : ConvInputs
        The convolution.
    image : tuple of int, optional
        The shape of an image; by default the smallest that fits.
    """

    __props__ = ("conv", "image")

    def __init__(self, conv: ConvInputs, image: tuple[int, ...] | None) -> None:
        self.conv = conv
        self.image = image

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the Op to filters and outputs."""
        w, y = self.conv.checked(*inputs)
        shape = self._known(w.type.shape, y.type.shape)
        return Apply(self, [w, y], [TensorType(y.type.dtype, shape)()])

    def _known(self, w: Sequence, y: Sequence) -> tuple[int | None, ...]:
        channels = None if w[1] is None else w[1] * self.conv.groups
        image = self.image
        if image is None and None not in (*w[2:], *y[2:]):
            image = self._smallest(w, y)
        return (y[0], channels, *(image or (None,) * self.conv.ndim))

    def _smallest(self, w: Sequence[int], y: Sequence[int]) -> tuple[int, ...]:
        conv = self.conv
        axes = zip(y[2:], w[2:], conv.pads(w), conv.stride, conv.dilation, strict=True)
        return tuple(input_length(*axis) for axis in axes)

    def _shape(self, w: Sequence[int], y: Sequence[int]) -> tuple[int, ...]:
        image = self._smallest(w, y) if self.image is None else self.image
        return (y[0], w[1] * self.conv.groups, *image)

    def symbolic_shape(self, input_shapes: Sequence) -> Sequence:
        """Return the shape, symbolic."""
        w, y = input_shapes
        if self.image is not None:
            return (y[0], w[1] * self.conv.groups, *map(pt.constant, self.image))
        conv = self.conv
        reach = [(w[i + 2] - 1) * d + 1 for i, d in enumerate(conv.dilation)]
        pads = conv.symbolic_pads(reach)
        image = [
            (y[i + 2] - 1) * s + reach[i] - pads[i] for i, s in enumerate(conv.stride)
        ]
        return (y[0], w[1] * conv.groups, *image)

    def perform(self, node: Apply, inputs: Sequence, output_storage: Sequence) -> None:
        """Return zeros that take no memory."""
        w, y = inputs
        zero = np.zeros((), y.dtype)
        output_storage[0][0] = np.broadcast_to(zero, self._shape(w.shape, y.shape))

    def jax_kernel(self, *arrays: Any) -> Any:
        """Return zeros; XLA drops them."""
        import jax.numpy as jnp

        w, y = arrays
        return jnp.zeros(self._shape(w.shape, y.shape), y.dtype)

    def gradients(
        self, inputs: Sequence[Variable], output: Variable, cotangent: Variable
    ) -> list[Variable | None]:
        """Zeros depend on nothing."""
        return [None, None]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Zeros depend on nothing."""
        return [[False], [False]]


def like_inputs(op: ConvInputs, w: Any, y: Any, image: Any, batch: Any = None) -> Any:
    """Return a template for the inputs of a convolution, of an image's shape or None.

    Sizes that are no constants are for modes other than JAX.
    """
    if image is None:
        return LikeInputs(op, None)(w, y)
    known = [_constant(size) for size in image]
    if None not in known:
        return LikeInputs(op, tuple(known))(w, y)  # type: ignore[arg-type]
    batch = y.shape[0] if batch is None else batch
    return of_shape((batch, w.shape[1] * op.groups, *image), y.type.dtype)


def of_shape(shape: Sequence, dtype: str) -> Any:
    """Return a template of a shape."""
    return pt.broadcast_to(pt.zeros((), dtype), tuple(shape))


def _constant(size: Any) -> int | None:
    if isinstance(size, Constant):
        return int(size.data)
    return None if isinstance(size, Variable) else int(size)
