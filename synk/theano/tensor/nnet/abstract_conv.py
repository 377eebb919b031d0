"""`theano.tensor.nnet.abstract_conv`: convolutions, by the Ops of `synk.nn`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt

from ...network import network_op
from .conv_ops import (
    AbstractConv2d,
    AbstractConv2d_gradInputs,
    AbstractConv2d_gradWeights,
    AbstractConv3d,
    AbstractConv3d_gradInputs,
    AbstractConv3d_gradWeights,
)

__all__ = [
    "AbstractConv2d",
    "AbstractConv2d_gradInputs",
    "AbstractConv2d_gradWeights",
    "AbstractConv3d",
    "AbstractConv3d_gradInputs",
    "AbstractConv3d_gradWeights",
    "bilinear_kernel_1D",
    "bilinear_kernel_2D",
    "bilinear_upsampling",
    "conv2d",
    "conv2d_grad_wrt_inputs",
    "conv2d_grad_wrt_weights",
    "conv2d_transpose",
    "conv3d",
    "conv3d_grad_wrt_inputs",
    "conv3d_grad_wrt_weights",
    "frac_bilinear_upsampling",
]


def _refuse(unshared: bool, other: dict[str, Any]) -> None:
    if unshared:
        raise NotImplementedError("unshared filters: synk has no Op for them")
    if other:
        raise TypeError(f"unknown arguments: {', '.join(sorted(other))}")


def conv2d(
    input: Any,
    filters: Any,
    input_shape: Any = None,
    filter_shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    filter_flip: bool = True,
    image_shape: Any = None,
    filter_dilation: Any = (1, 1),
    num_groups: int = 1,
    unshared: bool = False,
    **kwargs: Any,
) -> Any:
    """Convolve images with filters; see ``synk.nn.conv2d``.

    Parameters
    ----------
    input : tensor of shape (batch, channels, rows, columns)
        The images.
    filters : tensor of shape (filters, channels / num_groups, rows, columns)
        The filters.
    input_shape, image_shape, filter_shape : tuple of int or None, optional
        Shapes where they are known.
    border_mode, subsample, filter_flip, filter_dilation, num_groups
        As in ``synk.nn.conv2d``.
    unshared : False
        Filters that differ from place to place are not implemented.
    **kwargs
        None are known.
    """
    _refuse(unshared, kwargs)
    known = image_shape if input_shape is None else input_shape
    return network_op("conv2d", "conv2d")(
        _with_shape(input, known),
        _with_shape(filters, filter_shape),
        border_mode=border_mode,
        subsample=subsample,
        filter_flip=filter_flip,
        filter_dilation=filter_dilation,
        num_groups=num_groups,
    )


def conv3d(
    input: Any,
    filters: Any,
    input_shape: Any = None,
    filter_shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = (1, 1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1, 1),
    num_groups: int = 1,
) -> Any:
    """Convolve volumes with filters: `conv2d` with one more axis."""
    return network_op("conv3d", "conv3d")(
        _with_shape(input, input_shape),
        _with_shape(filters, filter_shape),
        border_mode=border_mode,
        subsample=subsample,
        filter_flip=filter_flip,
        filter_dilation=filter_dilation,
        num_groups=num_groups,
    )


def _with_shape(x: Any, shape: Any) -> Any:
    """Return `x`, of which the lengths in `shape` are known.

    The batch's is left out, as Lasagne gives it from the type: each rank has fewer.
    """
    x = pt.as_tensor_variable(x)
    if shape is None or x.owner is None:
        return x
    known = [
        int(length) if isinstance(length, int | np.integer) else None
        for length in shape
    ]
    return pt.specify_shape(x, [None, *known[1:]])


def _gradient(name: str, defaults: Any, *args: Any, **kwargs: Any) -> Any:
    names = ("border_mode", "subsample", "filter_flip", "filter_dilation", "num_groups")
    values = dict(zip(names, ("valid", defaults, True, defaults, 1), strict=True))
    for key in ("input_shape", "filter_shape"):
        kwargs.pop(key, None)
    _refuse(kwargs.pop("unshared", False), {k: 0 for k in kwargs if k not in names})
    return network_op(name, name)(*args, **(values | kwargs))


def conv2d_grad_wrt_inputs(
    output_grad: Any, filters: Any, input_shape: Any, **kwargs: Any
) -> Any:
    """Return the gradient of `conv2d` by its images; keywords as there."""
    args = output_grad, filters, input_shape
    return _gradient("conv2d_grad_wrt_inputs", (1, 1), *args, **kwargs)


def conv2d_grad_wrt_weights(
    input: Any, output_grad: Any, filter_shape: Any, **kwargs: Any
) -> Any:
    """Return the gradient of `conv2d` by its filters; keywords as there."""
    args = input, output_grad, filter_shape
    return _gradient("conv2d_grad_wrt_weights", (1, 1), *args, **kwargs)


def conv3d_grad_wrt_inputs(
    output_grad: Any, filters: Any, input_shape: Any, **kwargs: Any
) -> Any:
    """Return the gradient of `conv3d` by its volumes; keywords as there."""
    args = output_grad, filters, input_shape
    return _gradient("conv3d_grad_wrt_inputs", (1, 1, 1), *args, **kwargs)


def conv3d_grad_wrt_weights(
    input: Any, output_grad: Any, filter_shape: Any, **kwargs: Any
) -> Any:
    """Return the gradient of `conv3d` by its filters; keywords as there."""
    args = input, output_grad, filter_shape
    return _gradient("conv3d_grad_wrt_weights", (1, 1, 1), *args, **kwargs)


def conv2d_transpose(
    input: Any,
    filters: Any,
    output_shape: Any,
    filter_shape: Any = None,
    border_mode: Any = "valid",
    input_dilation: Any = (1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1),
    num_groups: int = 1,
    unshared: bool = False,
) -> Any:
    """Convolve images transposed; see ``synk.nn.conv2d_transpose``.

    Parameters
    ----------
    input, filters
        As in `conv2d`; `filters` are those of the convolution that is transposed.
    output_shape : tuple
        The shape of the result: (batch, channels, rows, columns).
    input_dilation : tuple of int
        By how much the result is larger.
    filter_shape, border_mode, filter_flip, filter_dilation, num_groups, unshared
        As in `conv2d`.
    """
    return conv2d_grad_wrt_inputs(
        input,
        filters,
        output_shape,
        border_mode=border_mode,
        subsample=input_dilation,
        filter_flip=filter_flip,
        filter_dilation=filter_dilation,
        num_groups=num_groups,
        unshared=unshared,
    )


def bilinear_kernel_1D(ratio: int, normalize: bool = True) -> Any:
    """Return the tent of bilinear upsampling: 1, ..., ratio, ..., 1.

    Parameters
    ----------
    ratio : int
        How many times larger.
    normalize : bool
        Whether to divide it by `ratio`.
    """
    tent = ratio - pt.abs(pt.arange(1 - ratio, ratio))
    tent = pt.cast(tent, "float64" if normalize else "int64")
    return tent / ratio if normalize else tent


def bilinear_kernel_2D(ratio: int, normalize: bool = True) -> Any:
    """Return the outer product of `bilinear_kernel_1D` with itself."""
    tent = bilinear_kernel_1D(ratio, normalize)
    return pt.outer(tent, tent)


def _upsampling_matrix(length: Any, ratio: int) -> Any:
    """Return the matrix (length * ratio, length) of bilinear interpolation.

    At the border, the outermost inputs go on.
    """
    # Input i is output i * ratio + (ratio - 1) // 2.
    place = (pt.arange(length * ratio) - (ratio - 1) // 2) / ratio
    place = pt.clip(place, 0, length - 1)
    return pt.maximum(1 - pt.abs(place[:, None] - pt.arange(length)[None, :]), 0)


def bilinear_upsampling(
    input: Any,
    ratio: int | None = None,
    frac_ratio: Any = None,
    batch_size: int | None = None,
    num_input_channels: int | None = None,
    use_1D_kernel: bool = True,
) -> Any:
    """Make images `ratio` times larger, by bilinear interpolation.

    Parameters
    ----------
    input : tensor of shape (batch, channels, rows, columns)
        The images.
    ratio : int
        How many times larger.
    frac_ratio : None
        Fractions are not implemented.
    batch_size, num_input_channels, use_1D_kernel
        Not needed here.
    """
    if frac_ratio is not None or ratio is None:
        raise NotImplementedError("bilinear_upsampling: whole ratios only")
    input = pt.as_tensor_variable(input)
    rows = pt.cast(_upsampling_matrix(input.shape[2], ratio), input.dtype)
    columns = pt.cast(_upsampling_matrix(input.shape[3], ratio), input.dtype)
    return pt.dot(
        pt.tensordot(input, rows, [[2], [1]]).dimshuffle(0, 1, 3, 2), columns.T
    )


def frac_bilinear_upsampling(input: Any, frac_ratio: Any) -> Any:
    """Not implemented: Theano had it for cuDNN's spatial transformer."""
    raise NotImplementedError("frac_bilinear_upsampling: whole ratios only")
