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


def ultra_fast_sigmoid(x: Any) -> Any:
    """Return Theano's approximation of the sigmoid by rational pieces.

    With a = abs(x) / 2, the distance from 0.5 is ``0.75 a / (1 + a)`` below a = 1.7, a
    straight line up to 3, and then constant. The error is at most 0.03; the function is
    not monotonic at 1.7.
    """
    x = pt.as_tensor_variable(x)
    half = 0.5 * x
    a = pt.abs(half)
    z = pt.switch(
        pt.lt(a, 1.7),
        1.5 * a / (1.0 + a),
        pt.switch(
            pt.lt(a, 3.0),
            0.935409070603099 + 0.0458812946797165 * (a - 1.7),
            0.99505475368673,
        ),
    )
    return pt.cast(0.5 * (pt.switch(pt.lt(half, 0.0), -z, z) + 1.0), _floating(x))


def hard_sigmoid(x: Any) -> Any:
    """Return clip(0.2 x + 0.5, 0, 1)."""
    x = pt.as_tensor_variable(x)
    return pt.cast(pt.clip(0.2 * x + 0.5, 0.0, 1.0), _floating(x))


def _floating(x: Any) -> str:
    return x.dtype if x.dtype.startswith("float") else (1.0 * x).dtype


def relu(x: Any, alpha: Any = 0) -> Any:
    """Return `synk.nn.relu`; for NumPy arrays and numbers, without `alpha`, NumPy's."""
    plain = isinstance(alpha, int | float) and alpha == 0
    if plain and isinstance(x, np.ndarray | np.generic | int | float):
        return 0.5 * (x + np.abs(x))
    return nn.relu(x, alpha)


def h_softmax(
    x: Any,
    batch_size: Any,
    n_outputs: Any,
    n_classes: Any,
    n_outputs_per_class: Any,
    W1: Any,
    b1: Any,
    W2: Any,
    b2: Any,
    target: Any = None,
) -> Any:
    """Return a softmax in two levels: of classes, and of outputs within a class.

    It returns the probability of each row's target, shape (batch_size,); without a
    target those of all outputs, shape (batch_size, n_outputs). (Goodman, "Classes for
    fast maximum entropy training", ICASSP 2001.) `W1` and `b1` of the first level have
    the shapes (features, n_classes) and (n_classes,); those of the second (n_classes,
    features, k) and (n_classes, k), with ``k = n_outputs_per_class``.
    """
    x = pt.as_tensor_variable(x)
    W2, b2 = pt.as_tensor_variable(W2), pt.as_tensor_variable(b2)
    classes = softmax(pt.dot(x, W1) + b1)
    if target is None:
        inner = pt.tensordot(x, W2, [[1], [1]]) + b2
        of_class = _softmax(inner, axis=-1)
        joint = classes[:, :, None] * of_class
        return joint.reshape((batch_size, -1))[:, :n_outputs]
    target = pt.as_tensor_variable(target).flatten()
    chosen, within = target // n_outputs_per_class, target % n_outputs_per_class
    inner = (x[:, :, None] * W2[chosen]).sum(axis=1) + b2[chosen]
    row = pt.arange(batch_size)
    return classes[row, chosen] * softmax(inner)[row, within]


# -- cross-entropies


def categorical_crossentropy(coding_dist: Any, true_dist: Any) -> Any:
    """Return the cross-entropy of each row, with true distributions or columns."""
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
        # PyTensor rewrites the logarithm of a softmax, and its gradient, in this form
        # only, so that they are finite if a probability is too small for a number.
        if KNOWS_CHOSEN_COLUMNS:
            return -pt.log(coding_dist)[rows, true_one_of_n]
        # From the logits; so a gradient by the probabilities raises.
        (logits,) = coding_dist.owner.inputs
        axis = coding_dist.owner.op.axis
        return -_log_softmax(logits, axis=axis)[rows, true_one_of_n]
    # No logarithm of other columns: the gradient of that of 0 would be 0 / 0.
    return -pt.log(coding_dist[rows, true_one_of_n])


def _columns(columns: Any) -> Any:
    columns = pt.as_tensor_variable(columns)
    if columns.dtype.startswith(("float", "complex")):
        raise TypeError(f"column numbers must be integers, got {columns.dtype}")
    return columns


def crossentropy_softmax_argmax_1hot_with_bias(
    x: Any, b: Any, y_idx: Any
) -> tuple[Any, Any, Any]:
    """Return cross-entropy, softmax, and the softmax's largest column, of ``x + b``.

    `y_idx` has the true columns. The largest columns have its dtype.
    """
    logits = pt.as_tensor_variable(x) + b
    y_idx = _columns(y_idx)
    rows = pt.arange(logits.shape[0])
    loss = -logsoftmax(logits)[rows, y_idx]
    where = pt.argmax(logits, axis=-1)
    return loss, softmax(logits), pt.cast(where, y_idx.dtype)


def crossentropy_softmax_1hot_with_bias(x: Any, b: Any, y_idx: Any) -> tuple[Any, Any]:
    """Return cross-entropy and softmax of ``x + b``; `y_idx` has the true columns."""
    return crossentropy_softmax_argmax_1hot_with_bias(x, b, y_idx)[:2]


def crossentropy_softmax_1hot(x: Any, y_idx: Any) -> tuple[Any, Any]:
    """Return cross-entropy and softmax of `x`; `y_idx` has the true columns."""
    return crossentropy_softmax_1hot_with_bias(x, 0, y_idx)


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
