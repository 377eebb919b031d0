"""Pooling of images, with two axes, and of volumes, with three."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable

from .base import named
from .poolops import Pool
from .windows import MODES, as_ints


def _pooling(ndim: int) -> Callable[..., Any]:
    def pool(
        input: Any,
        ws: Any,
        ignore_border: bool = True,
        stride: Any = None,
        pad: Any = 0,
        mode: str = "max",
    ) -> Any:
        """Reduce each window of images, or of volumes, to one number.

        Parameters
        ----------
        input : tensor_like
            Shape (..., rows, columns); of volumes (..., depth, rows, columns).
        ws : int or tuple of int
            The size of a window. `ws`, `stride` and `pad` may also be variables,
            scalars or a vector, for example to depend on the images' size.
        ignore_border : bool
            Whether to leave out windows that reach over the end of an image. If not,
            windows cover every pixel, the last ones are cut short, and `pad` must be 0.
        stride : int or tuple of int, optional
            The distance between windows; by default their size.
        pad : int or tuple of int, optional
            How many rows and columns to add at both ends, fewer than a window has; None
            is 0.
        mode : {"max", "sum", "average_inc_pad", "average_exc_pad"}
            "average_inc_pad" counts the padding, "average_exc_pad" does not.

        Returns
        -------
        TensorVariable
            Shape (..., windows along each axis).

        Raises
        ------
        TypeError, ValueError
            If parameters are none of these; for variables, in a call.

        Notes
        -----
        In JAX mode variables must follow from shapes, which JAX knows when it compiles.

        All pixels that equal a window's maximum get its gradient.
        """
        if mode not in MODES:
            raise ValueError(f"mode must be one of {MODES}, got {mode!r}")
        window = _as_sizes(ws, ndim, "ws", 1)
        strides = window if stride is None else _as_sizes(stride, ndim, "stride", 1)
        pads = _as_sizes(0 if pad is None else pad, ndim, "pad", 0)
        sizes = sizes_of(window, strides, pads)
        return Pool(ndim, bool(ignore_border), mode)(input, sizes)

    return named(f"pool_{ndim}d", pool)


def sizes_of(window: Any, stride: Any, pads: Any) -> Variable:
    """Return the Ops' matrix of sizes, from three tuples of ints or vectors."""
    rows = (window, stride, pads)
    if any(isinstance(row, Variable) for row in rows):
        return pt.stack([pt.as_tensor_variable(row) for row in rows])
    return pt.constant(np.array(rows, "int64"))


def _as_sizes(values: Any, ndim: int, what: str, least: int) -> Any:
    """Return an int for each of `ndim` axes, or a vector of int64 if one is a variable.

    One number stands for all axes. `what` is its name in errors, and `least` its least
    value.
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


pool_2d, pool_3d = map(_pooling, (2, 3))
