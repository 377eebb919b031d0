"""Activation functions and cross-entropies, as graphs."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.tensor import special

from .base import as_floats, number_like

_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946


def relu(x: Any, alpha: Any = 0) -> Any:
    """Return max(x, alpha * x): the rectifier, leaky if alpha is not 0.

    Parameters
    ----------
    x : tensor_like
    alpha : scalar or tensor_like
        The slope for negative x, of a shape that broadcasts to that of x; at most 1.

    Returns
    -------
    TensorVariable
        Of the shape of x. The gradient at 0 is the mean of both sides'.
    """
    (x,) = as_floats(x)
    if isinstance(alpha, (int, float)) and alpha == 0:
        return 0.5 * (x + pt.abs(x))
    alpha = number_like(alpha, x)
    return 0.5 * (1 + alpha) * x + 0.5 * (1 - alpha) * pt.abs(x)


def elu(x: Any, alpha: Any = 1) -> Any:
    """Return x where it is positive, and alpha * (exp(x) - 1) elsewhere.

    Parameters
    ----------
    x : tensor_like
    alpha : scalar or tensor_like

    Returns
    -------
    TensorVariable
        Of the shape of x.

    Notes
    -----
    D.-A. Clevert et al. 2015, "Fast and accurate deep network learning by exponential
    linear units".
    """
    (x,) = as_floats(x)
    # For large x, expm1 would overflow, and its gradient times 0 would be NaN.
    negative = number_like(alpha, x) * pt.expm1(pt.minimum(x, 0))
    return pt.switch(x > 0, x, negative)


def selu(x: Any) -> Any:
    """Return `elu`, scaled so that activations keep mean 0 and variance 1.

    Parameters
    ----------
    x : tensor_like

    Returns
    -------
    TensorVariable
        Of the shape of x.

    Notes
    -----
    G. Klambauer et al. 2017, "Self-normalizing neural networks".
    """
    result = elu(x, _SELU_ALPHA)
    return number_like(_SELU_SCALE, result) * result


def softmax(x: Any, axis: int | None = -1) -> Any:
    """Return exp(x), normalised to sum 1.

    Parameters
    ----------
    x : tensor_like
        At least one axis.
    axis : int, optional
        The axis along which the sum is 1; None for all axes together.

    Returns
    -------
    TensorVariable
        Of the shape of x.
    """
    return special.softmax(as_floats(x)[0], axis=axis)


def log_softmax(x: Any, axis: int | None = -1) -> Any:
    """Return the logarithm of `softmax`, without overflow.

    Parameters
    ----------
    x : tensor_like
        At least one axis.
    axis : int, optional
        The axis along which the exponentials sum to 1; None for all axes together.

    Returns
    -------
    TensorVariable
        Of the shape of x.
    """
    return special.log_softmax(as_floats(x)[0], axis=axis)


def categorical_crossentropy(coding_dist: Any, true_dist: Any) -> Any:
    """Return the cross-entropy of predicted and true classes, for each row.

    Parameters
    ----------
    coding_dist : tensor_like
        Predicted probabilities, shape (..., classes).
    true_dist : tensor_like
        True probabilities, of the same shape; or true classes, ints of shape (...).

    Returns
    -------
    TensorVariable
        Shape (...): -log of the true class's probability, or its mean under the true
        probabilities.

    Raises
    ------
    TypeError
        If the two have other numbers of axes, or classes are no ints.

    Notes
    -----
    PyTensor computes the logarithm of a softmax directly, without underflow.
    """
    coding, true = pt.as_tensor_variable(coding_dist), pt.as_tensor_variable(true_dist)
    if true.type.ndim == coding.type.ndim:
        return -pt.sum(true * pt.log(coding), axis=-1)
    if true.type.ndim != coding.type.ndim - 1:
        raise TypeError(
            f"true_dist must have {coding.type.ndim} axes (probabilities) or"
            f" {coding.type.ndim - 1} (classes), got {true.type.ndim}"
        )
    if true.type.numpy_dtype.kind not in "iu":
        raise TypeError(f"classes must be ints, got {true.type.dtype}")
    # As matrices and vectors, for which JAX mode knows the shapes of the results.
    chosen = coding.reshape((-1, coding.shape[-1])) if coding.type.ndim > 2 else coding
    if coding.type.ndim == 1:
        return -pt.log(coding)[true]
    flat = true.flatten()
    # `arange` of the predictions' number, so that each rank takes all of its rows.
    loss = -pt.log(chosen)[pt.arange(chosen.shape[0]), flat]
    return loss if true.type.ndim == 1 else loss.reshape(true.shape)


def binary_crossentropy(output: Any, target: Any) -> Any:
    """Return the cross-entropy of predicted and true probabilities, elementwise.

    Parameters
    ----------
    output : tensor_like
        Predicted probabilities, between 0 and 1.
    target : tensor_like
        True probabilities, of the same shape.

    Returns
    -------
    TensorVariable
        -(target * log(output) + (1 - target) * log(1 - output))

    Notes
    -----
    PyTensor computes both logarithms of a sigmoid directly, without underflow.
    """
    output, target = as_floats(output, target)
    return -(target * pt.log(output) + (1 - target) * pt.log(1 - output))


def sigmoid_binary_crossentropy(output: Any, target: Any) -> Any:
    """Return `binary_crossentropy` of sigmoid(output), exact for any output.

    Parameters
    ----------
    output : tensor_like
        Predictions before the sigmoid.
    target : tensor_like
        True probabilities, of the same shape.

    Returns
    -------
    TensorVariable
        Of the same shape.
    """
    output, target = as_floats(output, target)
    return pt.maximum(output, 0) - output * target + pt.log1p(pt.exp(-pt.abs(output)))
