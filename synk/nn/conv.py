"""Convolution of images and volumes."""

from __future__ import annotations

from typing import Any

from .convops import Conv
from .geometry import as_border, as_int, as_ints


def conv2d(
    input: Any,
    filters: Any,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1),
    num_groups: int = 1,
) -> Any:
    """Convolve images with filters.

    Parameters
    ----------
    input : tensor_like
        Shape (batch, channels, rows, columns).
    filters : tensor_like
        Shape (filters, channels // num_groups, rows, columns).
    border_mode : {"valid", "full", "half"}, int, or tuple
        How many zeros surround an image: none; one less than the reach of a filter,
        which is the number of pixels it stretches over; half its reach, rounded down;
        a number; or one number, or one pair (before, after), for each axis.
    subsample : int or tuple of int
        By how many pixels the filters move between outputs.
    filter_flip : bool
        True convolves, as mathematics has it; False correlates, as most libraries do.
    filter_dilation : int or tuple of int
        The distance between neighbouring pixels of a filter.
    num_groups : int
        Divides channels and filters into groups: each filter sees those channels that
        belong to its group.

    Returns
    -------
    TensorVariable
        Shape (batch, filters, rows, columns), of the wider dtype of the two.

    Raises
    ------
    TypeError, ValueError
        If parameters are none of these; and from compiled functions, if shapes do not
        fit.

    Examples
    --------
    >>> import numpy as np, pytensor, pytensor.tensor as pt, synk
    >>> x, w = pt.tensor4("x"), pt.tensor4("w")
    >>> y = synk.nn.conv2d(x, w, border_mode="half", subsample=2)
    >>> f = pytensor.function([x, w], y, mode="FAST_COMPILE")
    >>> f(np.ones((1, 1, 4, 4)), np.ones((1, 1, 3, 3)))
    array([[[[4., 6.],
             [6., 9.]]]])
    """
    return _conv(
        2,
        input,
        filters,
        border_mode,
        subsample,
        filter_flip,
        filter_dilation,
        num_groups,
    )


def conv3d(
    input: Any,
    filters: Any,
    border_mode: Any = "valid",
    subsample: Any = (1, 1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1, 1),
    num_groups: int = 1,
) -> Any:
    """Convolve volumes with filters; `conv2d` with one more axis.

    Parameters
    ----------
    input : tensor_like
        Shape (batch, channels, depth, rows, columns).
    filters : tensor_like
        Shape (filters, channels // num_groups, depth, rows, columns).
    border_mode, subsample, filter_flip, filter_dilation, num_groups
        As for `conv2d`, with three numbers where that takes two.

    Returns
    -------
    TensorVariable
        Shape (batch, filters, depth, rows, columns).
    """
    return _conv(
        3,
        input,
        filters,
        border_mode,
        subsample,
        filter_flip,
        filter_dilation,
        num_groups,
    )


def _conv(ndim: int, input: Any, filters: Any, *parameters: Any) -> Any:
    return Conv(*checked_parameters(ndim, *parameters))(input, filters)


def checked_parameters(
    ndim: int,
    border_mode: Any,
    subsample: Any,
    filter_flip: bool,
    filter_dilation: Any,
    num_groups: int,
) -> tuple:
    """Return the parameters of an Op from those of a function."""
    groups = as_int(num_groups, "num_groups")
    if groups < 1:
        raise ValueError(f"num_groups must be at least 1, got {groups}")
    return (
        as_border(border_mode, ndim),
        as_ints(subsample, ndim, "subsample", 1),
        as_ints(filter_dilation, ndim, "filter_dilation", 1),
        bool(filter_flip),
        groups,
    )
