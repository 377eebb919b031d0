"""The gradients of convolutions as functions, and transposed convolution."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt

from .conv import checked_parameters
from .convops import ConvFilters, ConvInputs
from .templates import like_inputs, of_shape


def conv2d_grad_wrt_inputs(
    output_grad: Any,
    filters: Any,
    input_shape: Any,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1),
    num_groups: int = 1,
) -> Any:
    """Return the gradient of a convolution of images by its inputs.

    Parameters
    ----------
    output_grad : tensor_like
        The gradient by the outputs, shape (batch, filters, rows, columns).
    filters : tensor_like
        Shape (filters, channels // num_groups, rows, columns).
    input_shape : sequence of int or scalar variables
        Of the inputs: (batch, channels, rows, columns). None for batch and channels,
        which follow from the others.
    border_mode, subsample, filter_flip, filter_dilation, num_groups
        Those of the convolution; see `conv2d`.

    Returns
    -------
    TensorVariable
        Shape `input_shape`.
    """
    parameters = checked_parameters(
        2, border_mode, subsample, filter_flip, filter_dilation, num_groups
    )
    return _grad_inputs(output_grad, filters, input_shape, parameters)


def conv3d_grad_wrt_inputs(
    output_grad: Any,
    filters: Any,
    input_shape: Any,
    border_mode: Any = "valid",
    subsample: Any = (1, 1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1, 1),
    num_groups: int = 1,
) -> Any:
    """Return the gradient of a convolution of volumes by its inputs.

    Parameters
    ----------
    output_grad, filters, input_shape
        As for `conv2d_grad_wrt_inputs`, with one more axis.
    border_mode, subsample, filter_flip, filter_dilation, num_groups
        Those of the convolution; see `conv3d`.

    Returns
    -------
    TensorVariable
        Shape `input_shape`.
    """
    parameters = checked_parameters(
        3, border_mode, subsample, filter_flip, filter_dilation, num_groups
    )
    return _grad_inputs(output_grad, filters, input_shape, parameters)


def _grad_inputs(y: Any, w: Any, shape: Any, parameters: tuple) -> Any:
    y, w = pt.as_tensor_variable(y), pt.as_tensor_variable(w)
    op = ConvInputs(*parameters)
    shape = list(shape)
    return op(like_inputs(op, w, y, shape[-op.ndim :], batch=shape[0]), w, y)


def conv2d_grad_wrt_weights(
    input: Any,
    output_grad: Any,
    filter_shape: Any,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1),
    num_groups: int = 1,
) -> Any:
    """Return the gradient of a convolution of images by its filters.

    Parameters
    ----------
    input : tensor_like
        Shape (batch, channels, rows, columns).
    output_grad : tensor_like
        The gradient by the outputs, shape (batch, filters, rows, columns).
    filter_shape : sequence of int or scalar variables
        Of the filters: (filters, channels // num_groups, rows, columns). None for the
        first two, which follow from the others.
    border_mode, subsample, filter_flip, filter_dilation, num_groups
        Those of the convolution; see `conv2d`.

    Returns
    -------
    TensorVariable
        Shape `filter_shape`.
    """
    parameters = checked_parameters(
        2, border_mode, subsample, filter_flip, filter_dilation, num_groups
    )
    return _grad_filters(input, output_grad, filter_shape, parameters)


def conv3d_grad_wrt_weights(
    input: Any,
    output_grad: Any,
    filter_shape: Any,
    border_mode: Any = "valid",
    subsample: Any = (1, 1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1, 1),
    num_groups: int = 1,
) -> Any:
    """Return the gradient of a convolution of volumes by its filters.

    Parameters
    ----------
    input, output_grad, filter_shape
        As for `conv2d_grad_wrt_weights`, with one more axis.
    border_mode, subsample, filter_flip, filter_dilation, num_groups
        Those of the convolution; see `conv3d`.

    Returns
    -------
    TensorVariable
        Shape `filter_shape`.
    """
    parameters = checked_parameters(
        3, border_mode, subsample, filter_flip, filter_dilation, num_groups
    )
    return _grad_filters(input, output_grad, filter_shape, parameters)


def _grad_filters(x: Any, y: Any, shape: Any, parameters: tuple) -> Any:
    x, y = pt.as_tensor_variable(x), pt.as_tensor_variable(y)
    op = ConvFilters(*parameters)
    filters, channels, *window = shape
    filters = y.shape[1] if filters is None else filters
    channels = x.shape[1] // op.groups if channels is None else channels
    return op(x, of_shape((filters, channels, *window), x.type.dtype), y)


def conv2d_transpose(
    input: Any,
    filters: Any,
    output_shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = (1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1),
    num_groups: int = 1,
) -> Any:
    """Convolve images transposed: `subsample` makes them larger.

    It is the gradient, by its inputs, of the convolution with the same parameters.

    Parameters
    ----------
    input : tensor_like
        Shape (batch, channels, rows, columns).
    filters : tensor_like
        Shape (channels, outputs // num_groups, rows, columns): the filters of the
        convolution that this one transposes.
    output_shape : sequence of int or scalar variables, optional
        (batch, outputs, rows, columns), or (rows, columns) alone. By default the
        smallest images whose convolution has the shape of the inputs.
    border_mode, subsample, filter_flip, filter_dilation, num_groups
        As for `conv2d`.

    Returns
    -------
    TensorVariable
        Shape (batch, outputs, rows, columns).
    """
    parameters = checked_parameters(
        2, border_mode, subsample, filter_flip, filter_dilation, num_groups
    )
    return _transpose(input, filters, output_shape, parameters)


def conv3d_transpose(
    input: Any,
    filters: Any,
    output_shape: Any = None,
    border_mode: Any = "valid",
    subsample: Any = (1, 1, 1),
    filter_flip: bool = True,
    filter_dilation: Any = (1, 1, 1),
    num_groups: int = 1,
) -> Any:
    """Convolve volumes transposed: `subsample` makes them larger.

    Parameters
    ----------
    input, filters, output_shape
        As for `conv2d_transpose`, with one more axis.
    border_mode, subsample, filter_flip, filter_dilation, num_groups
        As for `conv3d`.

    Returns
    -------
    TensorVariable
        Shape (batch, outputs, depth, rows, columns).
    """
    parameters = checked_parameters(
        3, border_mode, subsample, filter_flip, filter_dilation, num_groups
    )
    return _transpose(input, filters, output_shape, parameters)


def _transpose(y: Any, w: Any, shape: Any, parameters: tuple) -> Any:
    y, w = pt.as_tensor_variable(y), pt.as_tensor_variable(w)
    op = ConvInputs(*parameters)
    sizes = None if shape is None else list(shape)[-op.ndim :]
    if sizes is not None and None in sizes:
        sizes = None
    return op(like_inputs(op, w, y, sizes), w, y)
