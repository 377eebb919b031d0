"""Convolution of images and volumes, its gradients, and transposed convolution.

Each function exists for images, with two axes, and for volumes, with three.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytensor.tensor as pt

from .base import named
from .convops import Conv, ConvFilters, ConvInputs, of_shape
from .windows import as_border, as_int, as_ints


def _parameters(
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


def _convolution(ndim: int) -> Callable[..., Any]:
    def conv(
        input: Any,
        filters: Any,
        border_mode: Any = "valid",
        subsample: Any = 1,
        filter_flip: bool = True,
        filter_dilation: Any = 1,
        num_groups: int = 1,
    ) -> Any:
        """Convolve images, or volumes, with filters.

        Parameters
        ----------
        input : tensor_like
            Shape (batch, channels, rows, columns); of volumes, here and below, (batch,
            channels, depth, rows, columns).
        filters : tensor_like
            Shape (filters, channels // num_groups, rows, columns).
        border_mode : {"valid", "full", "half"}, int, or tuple
            How many zeros surround an image: none; one less than the number of pixels
            over which a filter reaches; half that number, rounded down; a number; or
            one number, or one pair (before, after), for each axis.
        subsample : int or tuple of int
            By how many pixels the filters move between outputs.
        filter_flip : bool
            True convolves, as defined in mathematics; False correlates, as most
            libraries do.
        filter_dilation : int or tuple of int
            The distance between neighbouring pixels of a filter.
        num_groups : int
            The number of groups of channels and filters. A filter reads the channels
            of its group.

        Returns
        -------
        TensorVariable
            Shape (batch, filters, rows, columns), of the wider dtype of the two.

        Raises
        ------
        TypeError, ValueError
            If parameters are none of these; and from compiled functions, if shapes do
            not fit.

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
        how = border_mode, subsample, filter_flip, filter_dilation, num_groups
        return Conv(*_parameters(ndim, *how))(input, filters)

    return named(f"conv{ndim}d", conv)


def _by_inputs(ndim: int) -> Callable[..., Any]:
    def conv_grad_wrt_inputs(
        output_grad: Any,
        filters: Any,
        input_shape: Any,
        border_mode: Any = "valid",
        subsample: Any = 1,
        filter_flip: bool = True,
        filter_dilation: Any = 1,
        num_groups: int = 1,
    ) -> Any:
        """Return the gradient of a convolution by its inputs.

        Parameters
        ----------
        output_grad : tensor_like
            The gradient by the outputs, shape (batch, filters, rows, columns).
        filters : tensor_like
            Shape (filters, channels // num_groups, rows, columns).
        input_shape : sequence of int or scalar variables
            The inputs' shape: (batch, channels, rows, columns). Batch and channels may
            be None, as they follow from the others.
        border_mode, subsample, filter_flip, filter_dilation, num_groups
            Those of the convolution; see `conv2d`.

        Returns
        -------
        TensorVariable
            Shape `input_shape`.
        """
        how = border_mode, subsample, filter_flip, filter_dilation, num_groups
        op = ConvInputs(*_parameters(ndim, *how))
        return op.of_image(filters, output_grad, input_shape[2:])

    return named(f"conv{ndim}d_grad_wrt_inputs", conv_grad_wrt_inputs)


def _by_weights(ndim: int) -> Callable[..., Any]:
    def conv_grad_wrt_weights(
        input: Any,
        output_grad: Any,
        filter_shape: Any,
        border_mode: Any = "valid",
        subsample: Any = 1,
        filter_flip: bool = True,
        filter_dilation: Any = 1,
        num_groups: int = 1,
    ) -> Any:
        """Return the gradient of a convolution by its filters.

        Parameters
        ----------
        input : tensor_like
            Shape (batch, channels, rows, columns).
        output_grad : tensor_like
            The gradient by the outputs, shape (batch, filters, rows, columns).
        filter_shape : sequence of int or scalar variables
            The filters' shape: (filters, channels // num_groups, rows, columns). The
            first two may be None, as they follow from the others.
        border_mode, subsample, filter_flip, filter_dilation, num_groups
            Those of the convolution; see `conv2d`.

        Returns
        -------
        TensorVariable
            Shape `filter_shape`.
        """
        how = border_mode, subsample, filter_flip, filter_dilation, num_groups
        x, y = pt.as_tensor_variable(input), pt.as_tensor_variable(output_grad)
        op = ConvFilters(*_parameters(ndim, *how))
        filters, channels, *window = filter_shape
        filters = y.shape[1] if filters is None else filters
        channels = x.shape[1] // op.groups if channels is None else channels
        return op(x, of_shape((filters, channels, *window), x.type.dtype), y)

    return named(f"conv{ndim}d_grad_wrt_weights", conv_grad_wrt_weights)


def _transposed(ndim: int) -> Callable[..., Any]:
    def conv_transpose(
        input: Any,
        filters: Any,
        output_shape: Any = None,
        border_mode: Any = "valid",
        subsample: Any = 1,
        filter_flip: bool = True,
        filter_dilation: Any = 1,
        num_groups: int = 1,
    ) -> Any:
        """Convolve images, or volumes, transposed: `subsample` makes them larger.

        This is the gradient by the inputs of the convolution with the same parameters.

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
        how = border_mode, subsample, filter_flip, filter_dilation, num_groups
        op = ConvInputs(*_parameters(ndim, *how))
        image = [None] if output_shape is None else list(output_shape)[-ndim:]
        return op.of_image(filters, input, None if None in image else image)

    return named(f"conv{ndim}d_transpose", conv_transpose)


conv2d, conv3d = map(_convolution, (2, 3))
conv2d_grad_wrt_inputs, conv3d_grad_wrt_inputs = map(_by_inputs, (2, 3))
conv2d_grad_wrt_weights, conv3d_grad_wrt_weights = map(_by_weights, (2, 3))
conv2d_transpose, conv3d_transpose = map(_transposed, (2, 3))
