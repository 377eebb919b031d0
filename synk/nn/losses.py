"""Cross-entropies, as graphs."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt

from .base import as_floats


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
    Of a softmax, PyTensor computes the logarithm directly, without its underflow.
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
    # Matrices and vectors, for which JAX mode finds the shapes of what follows.
    chosen = coding.reshape((-1, coding.shape[-1])) if coding.type.ndim > 2 else coding
    if coding.type.ndim == 1:
        return -pt.log(coding)[true]
    flat = true.flatten()
    # As many as there are predictions, all of which are taken on each rank.
    loss = -pt.log(chosen)[pt.arange(chosen.shape[0]), flat]
    return loss if true.type.ndim == 1 else loss.reshape(true.shape)


def binary_crossentropy(output: Any, target: Any) -> Any:
    """Return the cross-entropy of predicted and true probabilities, elementwise.

    Parameters
    ----------
    output : tensor_like
        Predicted probabilities, between 0 and 1.
    target : tensor_like
        True ones, of the same shape.

    Returns
    -------
    TensorVariable
        -(target * log(output) + (1 - target) * log(1 - output))

    Notes
    -----
    Of a sigmoid, PyTensor computes both logarithms directly, without their underflow.
    """
    output, target = as_floats(output, target)
    return -(target * pt.log(output) + (1 - target) * pt.log(1 - output))


def sigmoid_binary_crossentropy(output: Any, target: Any) -> Any:
    """Return `binary_crossentropy` of sigmoid(output), for any output.

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
