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
from contextlib import suppress
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.tensor.rewriting.basic import register_canonicalize
from pytensor.tensor.type import TensorType

from . import numpy_kernels, pool_jax
from .base import KernelOp, compute
from .windows import PoolOp, as_ints


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
        return numpy_kernels.pool(self, *arrays)

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
        return numpy_kernels.grad(self, *arrays)

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
        return numpy_kernels.pick(self, *arrays)

    def jax_kernel(self, *arrays: Any) -> Any:
        """Compute by XLA."""
        return pool_jax.pick(self, *arrays)

    def gradients(
        self, inputs: Sequence[Variable], output: Variable, cotangent: Variable
    ) -> list[Variable | None]:
        """Return the adjoint."""
        x, y, _ = inputs
        return self.linear(x, y, self.sibling(PoolGrad)(x, y, cotangent))


def as_sizes(values: Any, ndim: int, what: str, least: int) -> Any:
    """Return an int for each of `ndim` axes, or a vector of int64 if one is a variable.

    Parameters
    ----------
    values : int, scalar variable, vector variable, or sequence of ints and variables
    ndim : int
        One number stands for so many.
    what : str
        The parameter's name, for messages.
    least : int
        What each must be at least.
    """
    if isinstance(values, Constant):
        values = np.asarray(values.data).tolist()
    parts = list(values) if isinstance(values, Sequence) else [values]
    if all(isinstance(p, Constant) or not isinstance(p, Variable) for p in parts):
        return as_ints(values, ndim, what, least)
    tensors = [pt.as_tensor_variable(part) for part in parts]
    if any(tensor.type.dtype.startswith(("float", "complex")) for tensor in tensors):
        raise TypeError(f"{what} must be ints, got {values!r}, which are not")
    if len(tensors) == 1 and tensors[0].type.ndim == 1:
        (vector,) = tensors
    elif len(tensors) == 1:
        vector = pt.stack(tensors * ndim)
    else:
        vector = pt.stack(tensors)
    if vector.type.ndim != 1 or vector.type.shape[0] not in (None, ndim):
        raise ValueError(f"{what} must be one int or {ndim}, got {values!r}")
    return pt.cast(vector, "int64")


def check_sizes(
    window: Sequence[int], pads: Sequence[int], ignore_border: bool
) -> None:
    """Raise for padding that makes no sense."""
    if any(pads) and not ignore_border:
        raise ValueError(f"pad must be 0 without ignore_border, got {pads}")
    if any(p >= w for p, w in zip(pads, window, strict=True)):
        raise ValueError(f"pad must be less than ws, got {pads} and {window}")


class SizedPool(KernelOp):
    """One of the Ops of pooling, with a last input for its sizes.

    Parameters
    ----------
    kind : {Pool, PoolGrad, PoolPick}
        The Op.
    ndim : int
        The number of axes of a window.
    ignore_border : bool
    mode : {"max", "sum", "average_inc_pad", "average_exc_pad"}

    Notes
    -----
    The sizes are a matrix of integers: window, stride and padding in its rows, an axis
    in each column.
    """

    __props__ = ("kind", "ndim", "ignore_border", "mode")

    def __init__(
        self, kind: type[PoolOp], ndim: int, ignore_border: bool, mode: str
    ) -> None:
        self.kind = kind
        self.ndim = ndim
        self.ignore_border = ignore_border
        self.mode = mode

    def __str__(self) -> str:
        return f"Sized{self.kind.__name__}"

    def sibling(self, kind: type[PoolOp]) -> SizedPool:
        """Return one of the two other Ops."""
        return SizedPool(kind, self.ndim, self.ignore_border, self.mode)

    def fixed(self, sizes: Any) -> PoolOp:
        """Return the Op of these sizes.

        Raises
        ------
        ValueError
            If there is no such pooling.
        """
        rows = np.asarray(sizes).tolist()
        window = as_ints(rows[0], self.ndim, "ws", 1)
        stride = as_ints(rows[1], self.ndim, "stride", 1)
        pads = as_ints(rows[2], self.ndim, "pad", 0)
        check_sizes(window, pads, self.ignore_border)
        return self.kind(window, stride, pads, self.ignore_border, self.mode)

    def make_node(self, *inputs: Any) -> Apply:
        """Apply the Op to what its fixed Op takes, and sizes."""
        *images, sizes = inputs
        ones = (1,) * self.ndim
        fixed = self.kind(ones, ones, (0,) * self.ndim, self.ignore_border, self.mode)
        node = fixed.make_node(*images)
        shape = node.outputs[0].type.shape
        if self.kind is Pool:
            shape = (*shape[: len(shape) - self.ndim], *(None,) * self.ndim)
        output = TensorType(node.outputs[0].type.dtype, shape)()
        return Apply(self, [*node.inputs, pt.as_tensor_variable(sizes)], [output])

    def perform(self, node: Apply, inputs: Sequence, output_storage: Sequence) -> None:
        """Compute the output on this process's cores."""
        *images, sizes = inputs
        output_storage[0][0] = compute(self.fixed(sizes), *images)

    def jax_kernel(self, *arrays: Any) -> Any:
        """Compute by JAX, for sizes that follow from shapes."""
        import jax

        *images, sizes = arrays
        if isinstance(sizes, jax.core.Tracer):
            raise NotImplementedError(
                "JAX needs the windows, strides and padding of pooling when it"
                " compiles: give numbers, or what follows from the shapes of variables;"
                " or compile for another mode"
            )
        return self.fixed(sizes).jax_kernel(*images)

    def infer_shape(self, *args: Any) -> Sequence:
        """Return the shape of the output, which takes the values of the sizes."""
        node, shapes = args[-2:]
        if self.kind is not Pool:
            return [shapes[0] if self.kind is PoolGrad else shapes[1]]
        images, sizes = shapes[0], node.inputs[-1]
        counts = [
            self._count(size, *(sizes[row, axis] for row in range(3)))
            for axis, size in enumerate(images[-self.ndim :])
        ]
        return [(*images[: -self.ndim], *counts)]

    def _count(self, size: Any, window: Any, stride: Any, pad: Any) -> Any:
        if self.ignore_border:
            return pt.maximum(0, (size + 2 * pad - window) // stride + 1)
        apart = (size - 1) // stride
        overlapping = pt.maximum(0, (size - 1 - window + stride) // stride)
        found = pt.switch(pt.ge(stride, window), apart, overlapping) + 1
        return pt.switch(pt.eq(size, 0), 0, pt.maximum(0, found))

    def gradients(
        self, inputs: Sequence[Variable], output: Variable, cotangent: Variable
    ) -> list[Variable | None]:
        """Return those of the fixed Op, of the same sizes."""
        *images, sizes = inputs
        if self.kind is Pool:
            y = output if self.mode == "max" else cotangent
            return [self.sibling(PoolGrad)(*images, y, cotangent, sizes), None]
        x, y, _ = images
        if self.kind is PoolPick:
            other = self.sibling(PoolGrad)(x, y, cotangent, sizes)
        elif self.mode == "max":
            other = self.sibling(PoolPick)(x, y, cotangent, sizes)
        else:
            other = self.sibling(Pool)(cotangent, sizes)
        return [pt.zeros_like(x), pt.zeros_like(y), other, None]

    def connection_pattern(self, node: Apply) -> list[list[bool]]:
        """Sizes have no gradient."""
        return [*([True] for _ in node.inputs[:-1]), [False]]


@register_canonicalize("fast_compile")
@node_rewriter([SizedPool])
def fix_sizes(fgraph: Any, node: Apply) -> list[Variable] | None:
    """Replace the Op by its fixed one, where sizes are constants."""
    *images, sizes = node.inputs
    op: Any = node.op
    if isinstance(sizes, Constant):
        with suppress(ValueError):  # which is raised when it runs
            return [op.fixed(sizes.data)(*images)]
    return None
