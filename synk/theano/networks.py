"""`theano.tensor.nnet`: nonlinearities, cross-entropies, batch normalisation.

Convolutions and pooling are in `convolution`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.special import Softmax
from pytensor.tensor.special import log_softmax as _log_softmax
from pytensor.tensor.special import softmax as _softmax

from .. import nn
from .pytensor_versions import KNOWS_CHOSEN_COLUMNS

# -- nonlinearities


def _rows(x: Any) -> Any:
    """Return `x`; a vector becomes a matrix of one row, as in Theano."""
    x = pt.as_tensor_variable(x)
    if x.ndim == 0:
        raise ValueError(f"softmax needs a vector or a matrix, got the scalar {x}")
    return pt.shape_padleft(x) if x.ndim == 1 else x


def softmax(c: Any) -> Any:
    """Return the softmax of each row; a vector counts as a matrix of one row."""
    return _softmax(_rows(c), axis=-1)


def logsoftmax(c: Any) -> Any:
    """Return the logarithm of `softmax`, without overflow."""
    return _log_softmax(_rows(c), axis=-1)


def softsign(x: Any) -> Any:
    """Return x / (1 + abs(x))."""
    x = pt.as_tensor_variable(x)
    return x / (1.0 + pt.abs(x))


def hard_sigmoid(x: Any) -> Any:
    """Return clip(0.2 x + 0.5, 0, 1)."""
    x = pt.as_tensor_variable(x)
    dtype = x.dtype if x.dtype.startswith("float") else (1.0 * x).dtype
    return pt.cast(pt.clip(0.2 * x + 0.5, 0.0, 1.0), dtype)


def relu(x: Any, alpha: Any = 0) -> Any:
    """Return `synk.nn.relu`; for NumPy arrays and numbers, without `alpha`, NumPy's."""
    plain = isinstance(alpha, int | float) and alpha == 0
    if plain and isinstance(x, np.ndarray | np.generic | int | float):
        return 0.5 * (x + np.abs(x))
    return nn.relu(x, alpha)


# -- cross-entropies


def categorical_crossentropy(coding_dist: Any, true_dist: Any) -> Any:
    """Return the cross-entropy of each row, with true distributions or columns."""
    coding_dist = pt.as_tensor_variable(coding_dist)
    true_dist = pt.as_tensor_variable(true_dist)
    if true_dist.ndim == coding_dist.ndim:
        return -(true_dist * pt.log(coding_dist)).sum(axis=coding_dist.ndim - 1)
    is_chosen = (coding_dist.ndim, true_dist.ndim) == (2, 1)
    if not is_chosen or true_dist.type.numpy_dtype.kind in "fc":
        raise TypeError(
            "true_dist needs as many dimensions as coding_dist, or is a vector of int"
            f" for a matrix; got {coding_dist.type} and {true_dist.type}"
        )
    rows = pt.arange(coding_dist.shape[0])
    if coding_dist.owner is not None and isinstance(coding_dist.owner.op, Softmax):
        # PyTensor rewrites the logarithm of a softmax, and its gradient, in this form
        # only, so that they are finite if a probability is too small for a number.
        if KNOWS_CHOSEN_COLUMNS:
            return -pt.log(coding_dist)[rows, true_dist]
        # From the logits; so a gradient by the probabilities raises.
        (logits,) = coding_dist.owner.inputs
        axis = coding_dist.owner.op.axis
        return -_log_softmax(logits, axis=axis)[rows, true_dist]
    # No logarithm of other columns: the gradient of that of 0 would be 0 / 0.
    return -pt.log(coding_dist[rows, true_dist])


def confusion_matrix(actual: Any, pred: Any) -> list:
    """Return the confusion matrix, and the labels in order.

    The matrix has a row for each true label, and a column for each predicted one.
    """
    actual, pred = pt.as_tensor_variable(actual), pt.as_tensor_variable(pred)
    for name, labels in ("actual", actual), ("pred", pred):
        if labels.ndim != 1:
            raise ValueError(f"{name} must be a vector, got {labels.ndim} dimensions")
    order = pt.unique(pt.concatenate([actual, pred]))
    of_actual = pt.eq(actual[:, None], order).astype("int64")
    of_pred = pt.eq(pred[:, None], order).astype("int64")
    return [pt.dot(of_actual.T, of_pred), order]


# -- batch normalisation


def batch_normalization(
    inputs: Any, gamma: Any, beta: Any, mean: Any, std: Any, mode: str = "low_mem"
) -> Any:
    """Return ``(inputs - mean) * (gamma / std) + beta``; `mode` has no effect."""
    if mode not in ("low_mem", "high_mem"):
        raise ValueError(f"mode must be 'low_mem' or 'high_mem', got {mode!r}")
    return (pt.as_tensor_variable(inputs) - mean) * (gamma / std) + beta
