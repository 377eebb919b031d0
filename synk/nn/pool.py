"""Pooling of images and volumes."""

from __future__ import annotations

from typing import Any

from .geometry import as_ints
from .pool_op import MODES
from .poolops import Pool


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
        The size of a window.
    ignore_border : bool
        Whether to leave out windows that reach over the end of an image. If not, there
        are enough to see every pixel, the last ones cut short, and `pad` must be 0.
    stride : int or tuple of int, optional
        By how much windows move; by default their size.
    pad : int or tuple of int
        How many rows and columns to add at both ends, less than a window has.
    mode : {"max", "sum", "average_inc_pad", "average_exc_pad"}
        Averages count the padding or do not.

    Returns
    -------
    TensorVariable
        Shape (..., rows of windows, columns of windows).

    Raises
    ------
    TypeError, ValueError
        If parameters are none of these.

    Notes
    -----
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
    window = as_ints(ws, ndim, "ws", 1)
    strides = window if stride is None else as_ints(stride, ndim, "stride", 1)
    pads = as_ints(pad, ndim, "pad", 0)
    if mode not in MODES:
        raise ValueError(f"mode must be one of {MODES}, got {mode!r}")
    if any(pads) and not ignore_border:
        raise ValueError(f"pad must be 0 without ignore_border, got {pads}")
    if any(p >= w for p, w in zip(pads, window, strict=True)):
        raise ValueError(f"pad must be less than ws, got {pads} and {window}")
    return Pool(window, strides, pads, bool(ignore_border), mode)(input)
