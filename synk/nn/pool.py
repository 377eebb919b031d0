"""Pooling of images and volumes."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from .poolops import Pool, SizedPool, as_sizes, check_sizes
from .windows import MODES


def pool_2d(
    input: Any,
    ws: Any,
    ignore_border: bool = True,
    stride: Any = None,
    pad: Any = (0, 0),
    mode: str = "max",
) -> Any:
    """Reduce each window of images to one number.

    Parameters
    ----------
    input : tensor_like
        Shape (..., rows, columns).
    ws : int or tuple of int
        The size of a window. It, `stride` and `pad` may be variables as well, scalars
        or a vector: then each image size has the windows that follow from it.
    ignore_border : bool
        Whether to leave out windows that reach over the end of an image. If not, there
        are enough to see every pixel, the last ones cut short, and `pad` must be 0.
    stride : int or tuple of int, optional
        By how much windows move; by default their size.
    pad : int or tuple of int, optional
        How many rows and columns to add at both ends, less than a window has; None
        is 0.
    mode : {"max", "sum", "average_inc_pad", "average_exc_pad"}
        Averages count the padding or do not.

    Returns
    -------
    TensorVariable
        Shape (..., rows of windows, columns of windows).

    Raises
    ------
    TypeError, ValueError
        If parameters are none of these; for variables, when they are computed.

    Notes
    -----
    In JAX mode variables must follow from shapes, which JAX knows when it compiles.

    Pixels that are equal to a window's maximum all get its gradient.
    """
    return _pool(2, input, ws, ignore_border, stride, pad, mode)


def pool_3d(
    input: Any,
    ws: Any,
    ignore_border: bool = True,
    stride: Any = None,
    pad: Any = (0, 0, 0),
    mode: str = "max",
) -> Any:
    """Reduce each window of volumes to one number; `pool_2d` with one more axis.

    Parameters
    ----------
    input : tensor_like
        Shape (..., depth, rows, columns).
    ws, ignore_border, stride, pad, mode
        As for `pool_2d`, with three numbers where that takes two.

    Returns
    -------
    TensorVariable
        Shape (..., windows along each axis).
    """
    return _pool(3, input, ws, ignore_border, stride, pad, mode)


def _pool(
    ndim: int,
    input: Any,
    ws: Any,
    ignore_border: bool,
    stride: Any,
    pad: Any,
    mode: str,
) -> Any:
    if mode not in MODES:
        raise ValueError(f"mode must be one of {MODES}, got {mode!r}")
    window = as_sizes(ws, ndim, "ws", 1)
    strides = window if stride is None else as_sizes(stride, ndim, "stride", 1)
    pads = as_sizes(0 if pad is None else pad, ndim, "pad", 0)
    sizes = (window, strides, pads)
    if any(isinstance(each, Variable) for each in sizes):
        op = SizedPool(Pool, ndim, bool(ignore_border), mode)
        return op(input, pt.stack([pt.as_tensor_variable(each) for each in sizes]))
    check_sizes(window, pads, bool(ignore_border))
    return Pool(window, strides, pads, bool(ignore_border), mode)(input)
