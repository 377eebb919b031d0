"""Tensors of which only the shape counts, for Ops that take one input for its shape.

The gradients of an Op take the Op's own inputs for their shape; a user of a gradient as
such gives sizes, from which a template is made. JAX has to know shapes when it
compiles, so that they must not pass through its arrays on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.type import TensorType

from .base import KernelOp
from .convops import ConvInputs
from .geometry import input_length


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
