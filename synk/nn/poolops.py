"""Pooling as three Ops, whose gradients are again among these Ops.

==========================  ==================================================
``Pool(x)``                 the maximum, sum or average of each window
``PoolGrad(x, y, g)``       its adjoint: g spread over the windows' pixels
``PoolPick(x, y, v)``       the sum of v over those pixels that are the maximum
==========================  ==================================================

Windows lie on the last axes. The gradient of a maximum goes to every pixel that is
equal to it, as in Theano. For sums and averages, only the shapes of x and y count.

Each Op has one more input, the last: a matrix of integers with the rows window, stride
and padding, and a column for each axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant

from . import numpy_kernels, pool_jax
from .base import KernelOp
from .windows import Pooling, as_ints


@dataclass(eq=False, repr=False)
class PoolOp(KernelOp):
    """The base of the three Ops of pooling, with its parameters."""

    ndim: int
    """The number of axes of a window."""
    ignore_border: bool
    """Whether to leave out windows that reach over the end."""
    mode: str
    """One of `windows.MODES`."""

    __props__ = ("ndim", "ignore_border", "mode")

    def of_sizes(self, sizes: Any) -> Pooling:
        """Return the parameters for kernels; raise if the sizes are invalid."""
        rows = map(tuple, np.asarray(sizes).tolist())
        return _pooling(*rows, self.ignore_border, self.mode)

    def checked(self, *variables: Any) -> list[Any]:
        *images, sizes = variables
        tensors = super().checked(*images)
        for var in tensors:
            if var.type.ndim < self.ndim:
                raise TypeError(
                    f"pooling of {self.ndim} axes takes tensors that have them, got"
                    f" {var} with {var.type.ndim}"
                )
        return [*tensors, pt.as_tensor_variable(sizes)]

    def arguments(self, *arrays: Any) -> tuple:
        *images, sizes = arrays
        return (self.of_sizes(sizes), *images)

    def jax_kernel(self, *arrays: Any) -> Any:
        """Compute by JAX, for sizes that follow from shapes."""
        import jax

        if isinstance(arrays[-1], jax.core.Tracer):
            raise NotImplementedError(
                "JAX needs the windows, strides and padding of pooling when it"
                " compiles: give numbers, or what follows from the shapes of variables;"
                " or compile for another mode"
            )
        return super().jax_kernel(*arrays)


@lru_cache  # as every call of a kernel asks
def _pooling(
    window: tuple, stride: tuple, pads: tuple, ignore_border: bool, mode: str
) -> Pooling:
    n = len(window)
    given = ("ws", window, 1), ("stride", stride, 1), ("pad", pads, 0)
    window, stride, pads = (as_ints(row, n, what, least) for what, row, least in given)
    if any(pads) and not ignore_border:
        raise ValueError(f"pad must be 0 without ignore_border, got {pads}")
    if any(p >= w for p, w in zip(pads, window, strict=True)):
        raise ValueError(f"pad must be less than ws, got {pads} and {window}")
    return Pooling(window, stride, pads, ignore_border, mode)


class Pool(PoolOp):
    """The maximum, sum or average of each window."""

    KERNELS = numpy_kernels.pool, pool_jax.pool
    UNCONNECTED = (1,)

    def shape(self, inputs: Sequence, *shapes: Sequence) -> Sequence:
        sizes = inputs[-1]
        first, last = shapes[0][: -self.ndim], shapes[0][-self.ndim :]
        if isinstance(sizes, Constant):
            how = self.of_sizes(sizes.data)
        else:
            axes = range(self.ndim)
            window, stride, pads = (tuple(sizes[i, j] for j in axes) for i in range(3))
            how = Pooling(window, stride, pads, self.ignore_border, self.mode)
        if None in last:
            return (*first, *[None] * self.ndim)
        return (*first, *how.pooled(last))

    def gradients(self, inputs: Sequence, output: Any, cotangent: Any) -> list[Any]:
        x, sizes = inputs
        if self.mode != "max":
            output = cotangent  # only its shape counts, and this spares computing y
        return [self.sibling(PoolGrad)(x, output, cotangent, sizes), None]


class PoolGrad(PoolOp):
    """The gradient of pooling by the images, from that by the result."""

    KERNELS = numpy_kernels.grad, pool_jax.grad
    UNCONNECTED = (3,)

    def shape(self, inputs: Sequence, *shapes: Sequence) -> Sequence:
        return shapes[0]

    def gradients(self, inputs: Sequence, output: Any, cotangent: Any) -> list[Any]:
        # x and y only choose pixels.
        x, y, _, sizes = inputs
        is_max = self.mode == "max"
        adjoint = self.sibling(PoolPick if is_max else Pool)
        by_result = adjoint(*([x, y] if is_max else []), cotangent, sizes)
        return [pt.zeros_like(x), pt.zeros_like(y), by_result, None]


class PoolPick(PoolOp):
    """The sum of some images over those pixels of each window that are its maximum."""

    KERNELS = numpy_kernels.pick, pool_jax.pick
    UNCONNECTED = (3,)

    def shape(self, inputs: Sequence, *shapes: Sequence) -> Sequence:
        return shapes[1]

    def gradients(self, inputs: Sequence, output: Any, cotangent: Any) -> list[Any]:
        x, y, _, sizes = inputs
        by_images = self.sibling(PoolGrad)(x, y, cotangent, sizes)
        return [pt.zeros_like(x), pt.zeros_like(y), by_images, None]
