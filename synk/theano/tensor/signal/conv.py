"""`theano.tensor.signal.conv`: convolution of images without channels."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt

from ..nnet.abstract_conv import conv2d as _conv2d

__all__ = ["conv2d"]


def conv2d(
    input: Any,
    filters: Any,
    image_shape: Any = None,
    filter_shape: Any = None,
    border_mode: str = "valid",
    subsample: Any = (1, 1),
    **_: Any,
) -> Any:
    """Convolve every image with every filter.

    Parameters
    ----------
    input : matrix or tensor3
        One image, or several.
    filters : matrix or tensor3
        One filter, or several.
    image_shape, filter_shape
        Not needed here.
    border_mode, subsample
        As in `theano.tensor.nnet.conv2d`.

    Returns
    -------
    TensorVariable
        Shape (images, filters, rows, columns), without the axes that `input` or
        `filters` did not have.
    """
    images, kernels = pt.as_tensor_variable(input), pt.as_tensor_variable(filters)
    for name, value in ("input", images), ("filters", kernels):
        if value.ndim not in (2, 3):
            raise ValueError(f"{name} needs 2 or 3 dimensions, got {value.ndim}")
    x = images[None, None] if images.ndim == 2 else images[:, None]
    w = kernels[None, None] if kernels.ndim == 2 else kernels[:, None]
    out = _conv2d(x, w, border_mode=border_mode, subsample=subsample)
    if kernels.ndim == 2:
        out = out[:, 0]
    return out[0] if images.ndim == 2 else out
