"""`theano.tensor.nnet.conv3d2d`: the convolution of volumes, time first."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt

from .abstract_conv import conv3d as _conv3d

__all__ = ["conv3d"]


def conv3d(
    signals: Any,
    filters: Any,
    signals_shape: Any = None,
    filters_shape: Any = None,
    border_mode: str = "valid",
) -> Any:
    """Convolve volumes with filters.

    Parameters
    ----------
    signals : tensor of shape (batch, time, channels, rows, columns)
        The volumes.
    filters : tensor of shape (filters, time, channels, rows, columns)
        The filters.
    signals_shape, filters_shape
        Not needed here.
    border_mode
        As in `theano.tensor.nnet.conv3d`.

    Returns
    -------
    tensor of shape (batch, time, filters, rows, columns)
    """
    channels_first = 0, 2, 1, 3, 4
    x = pt.as_tensor_variable(signals).dimshuffle(*channels_first)
    w = pt.as_tensor_variable(filters).dimshuffle(*channels_first)
    return _conv3d(x, w, border_mode=border_mode).dimshuffle(*channels_first)
