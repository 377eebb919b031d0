"""Pooling as three Ops; their gradients are among them.

==========================  ==================================================
``Pool(x)``                 the maximum, sum or average of each window
``PoolGrad(x, y, g)``       its adjoint: g spread over the windows' pixels
``PoolPick(x, y, v)``       the sum of v over those pixels that are the maximum
==========================  ==================================================

Windows lie on the last axes. The gradient of a maximum goes to every pixel that is
equal to it, as Theano has it. Only maxima look at the values of x and y; otherwise x
counts for its shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.type import TensorType

from . import pool_jax, pool_numpy
from .pool_op import PoolOp


class Pool(PoolOp):
    """The maximum, sum or average of each window."""

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the Op to images."""
        (x,) = self.checked(*inputs)
        leading = x.type.shape[: x.type.ndim - self.ndim]
        last = x.type.shape[x.type.ndim - self.ndim :]
        pooled = (None,) * self.ndim if None in last else self.pooled(last)
        return Apply(self, [x], [TensorType(x.type.dtype, (*leading, *pooled))()])

    def symbolic_shape(self, input_shapes: Sequence) -> Sequence:
        """Return the shape of the result, symbolic."""
        (shape,) = input_shapes
        lengths = []
        for size, window, stride, pad in zip(
            shape[-self.ndim :], self.window, self.stride, self.padding, strict=True
        ):
            if self.ignore_border:
                room = (size + 2 * pad - window) // stride
            elif stride >= window:
                room = (size - 1) // stride
            else:
                room = pt.maximum(0, (size - 1 - window + stride) // stride)
                room = pt.switch(pt.eq(size, 0), -1, room)
            lengths.append(pt.maximum(0, room + 1))
        return (*shape[: -self.ndim], *lengths)

    def numpy_kernel(self, *arrays: np.ndarray) -> np.ndarray:
        """Compute a place in the window at a time."""
        return pool_numpy.pool(self, *arrays)

    def jax_kernel(self, *arrays: Any) -> Any:
        """Compute by XLA."""
        return pool_jax.pool(self, *arrays)

    def gradients(
        self, inputs: Sequence[Variable], output: Variable, cotangent: Variable
    ) -> list[Variable | None]:
        """Return the adjoint."""
        (x,) = inputs
        if self.mode != "max":
            output = cotangent  # which is at hand, and of the same shape
        return [self.sibling(PoolGrad)(x, output, cotangent)]


class _LikeImages(PoolOp):
    """An Op of images x, their pooled y and a third tensor, in which it is linear."""

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the Op to images, pooled images, and what it is linear in."""
        x, y, g = self.checked(*inputs)
        like = self.result_like(x, y)
        return Apply(self, [x, y, g], [TensorType(x.type.dtype, like.type.shape)()])

    def result_like(self, x: Any, y: Any) -> Any:
        """Return the one of two whose shape the result has."""
        raise NotImplementedError

    def symbolic_shape(self, input_shapes: Sequence) -> Sequence:
        """Return the shape of the result."""
        x, y, _ = input_shapes
        return self.result_like(x, y)

    def linear(
        self, x: Variable, y: Variable, gradient: Variable
    ) -> list[Variable | None]:
        """Return the gradients: the result is linear in the last input alone.

        With the others it jumps, or does not change.
        """
        return [pt.zeros_like(x), pt.zeros_like(y), gradient]


class PoolGrad(_LikeImages):
    """The gradient of pooling, from that by the result."""

    def result_like(self, x: Any, y: Any) -> Any:
        """Return x."""
        return x

    def numpy_kernel(self, *arrays: np.ndarray) -> np.ndarray:
        """Compute a place in the window at a time."""
        return pool_numpy.grad(self, *arrays)

    def jax_kernel(self, *arrays: Any) -> Any:
        """Compute by XLA."""
        return pool_jax.grad(self, *arrays)

    def gradients(
        self, inputs: Sequence[Variable], output: Variable, cotangent: Variable
    ) -> list[Variable | None]:
        """Return what pooling is to a small change of x."""
        x, y, _ = inputs
        if self.mode != "max":
            return self.linear(x, y, self.sibling(Pool)(cotangent))
        return self.linear(x, y, self.sibling(PoolPick)(x, y, cotangent))


class PoolPick(_LikeImages):
    """The sum of some images over those pixels of each window that are its maximum."""

    def result_like(self, x: Any, y: Any) -> Any:
        """Return y."""
        return y

    def numpy_kernel(self, *arrays: np.ndarray) -> np.ndarray:
        """Compute a place in the window at a time."""
        return pool_numpy.pick(self, *arrays)

    def jax_kernel(self, *arrays: Any) -> Any:
        """Compute by XLA."""
        return pool_jax.pick(self, *arrays)

    def gradients(
        self, inputs: Sequence[Variable], output: Variable, cotangent: Variable
    ) -> list[Variable | None]:
        """Return the adjoint."""
        x, y, _ = inputs
        return self.linear(x, y, self.sibling(PoolGrad)(x, y, cotangent))
