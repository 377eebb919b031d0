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
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.type import TensorType

from . import conv_jax, conv_numpy
from .conv_op import ConvOp


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
        return conv_numpy.outputs(self, x, w, self.outputs_shape(x.shape, w.shape))

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
        return conv_numpy.inputs(self, x.shape, w, y)

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
        return conv_numpy.filters(self, x, w.shape, y)

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
