"""Pooling by windows, strides or padding that are variables: known when it runs.

Lasagne's ``SpatialPyramidPoolingLayer`` makes 4 x 4 numbers of images of any size: its
windows follow from their shape. `SizedPool` is one of the three Ops of `poolops` with
the sizes as an input. Where they turn out to be constants, that Op takes its place;
otherwise it is made when the values are there.
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

from .base import KernelOp
from .geometry import as_ints
from .pool_op import PoolOp
from .poolops import Pool, PoolGrad, PoolPick
from .runtime import compute


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
