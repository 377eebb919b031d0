"""Cross-entropies of `theano.tensor.nnet`."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.tensor.special import Softmax, log_softmax

from ...pytensor_versions import KNOWS_CHOSEN_COLUMNS
from .nnet import logsoftmax, softmax

__all__ = [
    "binary_crossentropy",
    "categorical_crossentropy",
    "confusion_matrix",
    "crossentropy_categorical_1hot",
    "crossentropy_softmax_1hot",
    "crossentropy_softmax_1hot_with_bias",
    "crossentropy_softmax_argmax_1hot_with_bias",
    "crossentropy_softmax_max_and_argmax_1hot",
    "crossentropy_softmax_max_and_argmax_1hot_with_bias",
    "sigmoid_binary_crossentropy",
]


def binary_crossentropy(output: Any, target: Any) -> Any:
    """Return -(t log o + (1 - t) log(1 - o)), elementwise."""
    output, target = pt.as_tensor_variable(output), pt.as_tensor_variable(target)
    return -(target * pt.log(output) + (1.0 - target) * pt.log(1.0 - output))


def sigmoid_binary_crossentropy(output: Any, target: Any) -> Any:
    """Return `binary_crossentropy` of ``sigmoid(output)``, without overflow."""
    output, target = pt.as_tensor_variable(output), pt.as_tensor_variable(target)
    return pt.maximum(output, 0) - output * target + pt.log1p(pt.exp(-pt.abs(output)))


def categorical_crossentropy(coding_dist: Any, true_dist: Any) -> Any:
    """Return the cross-entropy of each row.

    Parameters
    ----------
    coding_dist : matrix
        A distribution in each row.
    true_dist : matrix, or vector of int
        The distributions it is compared with, or the columns that are the true ones.

    Returns
    -------
    vector
    """
    coding_dist = pt.as_tensor_variable(coding_dist)
    true_dist = pt.as_tensor_variable(true_dist)
    if true_dist.ndim == coding_dist.ndim:
        return -(true_dist * pt.log(coding_dist)).sum(axis=coding_dist.ndim - 1)
    if true_dist.ndim == coding_dist.ndim - 1:
        return crossentropy_categorical_1hot(coding_dist, true_dist)
    raise TypeError(
        f"true_dist has {true_dist.ndim} dimensions; for coding_dist of "
        f"{coding_dist.ndim} it needs as many, or one less and integers"
    )


def crossentropy_categorical_1hot(coding_dist: Any, true_one_of_n: Any) -> Any:
    """Return -log of the true column of each row."""
    coding_dist = pt.as_tensor_variable(coding_dist)
    true_one_of_n = _columns(true_one_of_n)
    if coding_dist.ndim != 2 or true_one_of_n.ndim != 1:
        raise TypeError(
            "expected a matrix and a vector of int, got "
            f"{coding_dist.type} and {true_one_of_n.type}"
        )
    rows = pt.arange(coding_dist.shape[0])
    if coding_dist.owner is not None and isinstance(coding_dist.owner.op, Softmax):
        # PyTensor knows the logarithm of a softmax, and its gradient, in this form
        # only: they are finite where a probability is too small for a number.
        if KNOWS_CHOSEN_COLUMNS:
            return -pt.log(coding_dist)[rows, true_one_of_n]
        # Not computed from the probabilities: a gradient by these is refused.
        (logits,) = coding_dist.owner.inputs
        axis = coding_dist.owner.op.axis
        return -log_softmax(logits, axis=axis)[rows, true_one_of_n]
    # Of the other columns no logarithm is taken: the gradient of one of 0 is 0 / 0.
    return -pt.log(coding_dist[rows, true_one_of_n])


def _columns(columns: Any) -> Any:
    columns = pt.as_tensor_variable(columns)
    if columns.dtype.startswith(("float", "complex")):
        raise TypeError(f"column numbers must be integers, got {columns.dtype}")
    return columns


def crossentropy_softmax_1hot_with_bias(
    x: Any, b: Any, y_idx: Any, **_: Any
) -> tuple[Any, Any]:
    """Return the cross-entropy of softmax(x + b) with columns, and that softmax."""
    return crossentropy_softmax_argmax_1hot_with_bias(x, b, y_idx)[:2]


def crossentropy_softmax_1hot(x: Any, y_idx: Any, **_: Any) -> tuple[Any, Any]:
    """Return the cross-entropy of softmax(x) with columns, and that softmax."""
    return crossentropy_softmax_1hot_with_bias(x, 0, y_idx)


def crossentropy_softmax_argmax_1hot_with_bias(
    x: Any, b: Any, y_idx: Any
) -> tuple[Any, Any, Any]:
    """Return cross-entropy, softmax and its largest column, of ``x + b``.

    Parameters
    ----------
    x : matrix
        A row for each example.
    b : vector
        Added to each row.
    y_idx : vector of int
        The true columns. The largest columns are returned in its dtype.
    """
    logits = pt.as_tensor_variable(x) + b
    y_idx = _columns(y_idx)
    rows = pt.arange(logits.shape[0])
    loss = -logsoftmax(logits)[rows, y_idx]
    where = pt.argmax(logits, axis=-1)
    return loss, softmax(logits), pt.cast(where, y_idx.dtype)


def crossentropy_softmax_max_and_argmax_1hot_with_bias(
    x: Any, b: Any, y_idx: Any, **_: Any
) -> tuple[Any, Any, Any, Any]:
    """Return cross-entropy, softmax, its maximum and where that is, of ``x + b``."""
    loss, p, _ = crossentropy_softmax_argmax_1hot_with_bias(x, b, y_idx)
    return loss, p, *pt.max_and_argmax(p, axis=-1)


def crossentropy_softmax_max_and_argmax_1hot(
    x: Any, y_idx: Any, **_: Any
) -> tuple[Any, Any, Any, Any]:
    """Return cross-entropy, softmax, its maximum and where that is."""
    return crossentropy_softmax_max_and_argmax_1hot_with_bias(x, 0, y_idx)


def confusion_matrix(actual: Any, pred: Any) -> list:
    """Return how often each label was taken for each.

    Parameters
    ----------
    actual, pred : vector of int
        True and predicted labels.

    Returns
    -------
    list of TensorVariable
        The matrix, a row for each true label, and the labels in order.
    """
    actual, pred = pt.as_tensor_variable(actual), pt.as_tensor_variable(pred)
    for name, labels in ("actual", actual), ("pred", pred):
        if labels.ndim != 1:
            raise ValueError(f"{name} must be a vector, got {labels.ndim} dimensions")
    order = pt.unique(pt.concatenate([actual, pred]))
    of_actual = pt.eq(actual[:, None], order).astype("int64")
    of_pred = pt.eq(pred[:, None], order).astype("int64")
    return [pt.dot(of_actual.T, of_pred), order]
