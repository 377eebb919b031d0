"""Products along a batch axis, by ``matmul``: PyTensor gives up its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt

__all__ = ["batched_dot", "batched_tensordot"]


def batched_dot(a: Any, b: Any) -> Any:
    """Return the dot product of each pair of elements along axis 0.

    Parameters
    ----------
    a, b : TensorVariable
        Of 2 or 3 dimensions each, or one of them of 1; more as `batched_tensordot`.
    """
    a, b = pt.as_tensor_variable(a), pt.as_tensor_variable(b)
    if a.ndim == 0 or b.ndim == 0:
        raise TypeError(f"a scalar has no batch: got {a.ndim} and {b.ndim} dimensions")
    if a.ndim == 1:
        return a.dimshuffle(0, *["x"] * (b.ndim - 1)) * b
    if b.ndim == 1:
        return a * b.dimshuffle(0, *["x"] * (a.ndim - 1))
    if a.ndim > 3 or b.ndim > 3:
        return batched_tensordot(a, b, [[a.ndim - 1], [max(1, b.ndim - 2)]])
    left = a[:, None, :] if a.ndim == 2 else a
    right = b[:, :, None] if b.ndim == 2 else b
    product = pt.matmul(left, right)
    if b.ndim == 2:
        product = product[:, :, 0]
    return product[:, 0] if a.ndim == 2 else product


def batched_tensordot(x: Any, y: Any, axes: Any = 2) -> Any:
    """Return the `tensordot` of each pair of elements along axis 0.

    Parameters
    ----------
    x, y : TensorVariable
        With the batch along axis 0.
    axes : int or pair of lists of int
        How many axes to sum over, the last of `x` and the first of `y`; or which.
    """
    x, y = pt.as_tensor_variable(x), pt.as_tensor_variable(y)
    if isinstance(axes, int):
        axes = list(range(x.ndim - axes, x.ndim)), list(range(1, 1 + axes))
    of_x = [axis % x.ndim for axis in np.atleast_1d(axes[0])]
    of_y = [axis % y.ndim for axis in np.atleast_1d(axes[1])]
    if 0 in of_x + of_y:
        raise ValueError(f"axes={axes!r}: axis 0 is the batch and is not summed over")
    rest_x = [a for a in range(1, x.ndim) if a not in of_x]
    rest_y = [a for a in range(1, y.ndim) if a not in of_y]

    def size(v: Any, some: list[int]) -> Any:
        return pt.prod([1, *(v.shape[a] for a in some)])

    left = x.dimshuffle(0, *rest_x, *of_x)
    right = y.dimshuffle(0, *of_y, *rest_y)
    left = left.reshape((x.shape[0], size(x, rest_x), size(x, of_x)))
    right = right.reshape((x.shape[0], size(y, of_y), size(y, rest_y)))
    shape = x.shape[0], *(x.shape[a] for a in rest_x), *(y.shape[a] for a in rest_y)
    return pt.matmul(left, right).reshape(shape)
