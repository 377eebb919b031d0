"""`theano.tensor.nnet.nnet`: nonlinearities."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.tensor.special import log_softmax as _log_softmax
from pytensor.tensor.special import softmax as _softmax

from ...forwarding import forward

__all__ = [
    "elu",
    "h_softmax",
    "hard_sigmoid",
    "logsoftmax",
    "prepend_0_to_each_row",
    "prepend_1_to_each_row",
    "prepend_scalar_to_each_row",
    "relu",
    "selu",
    "sigmoid",
    "softmax",
    "softmax_graph",
    "softmax_with_bias",
    "softplus",
    "softsign",
    "ultra_fast_sigmoid",
]

sigmoid = pt.sigmoid
softplus = pt.softplus


def _rows(x: Any) -> Any:
    """Return `x`; of a vector, a matrix of one row, as Theano has it."""
    x = pt.as_tensor_variable(x)
    if x.ndim == 0:
        raise ValueError(f"softmax needs a vector or a matrix, got the scalar {x}")
    return pt.shape_padleft(x) if x.ndim == 1 else x


def softmax(c: Any) -> Any:
    """Return the softmax of each row: along the last axis.

    Parameters
    ----------
    c : TensorVariable
        A vector counts as a matrix of one row, and so does the result.
    """
    return _softmax(_rows(c), axis=-1)


def logsoftmax(c: Any) -> Any:
    """Return the logarithm of `softmax`, without overflow."""
    return _log_softmax(_rows(c), axis=-1)


def softmax_graph(c: Any) -> Any:
    """Return the softmax written out: its gradient has an Rop."""
    c = _rows(c)
    e = pt.exp(c - c.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def softmax_with_bias(x: Any, b: Any) -> Any:
    """Return the softmax of ``x + b``."""
    return softmax(pt.as_tensor_variable(x) + b)


def softsign(x: Any) -> Any:
    """Return x / (1 + abs(x))."""
    x = pt.as_tensor_variable(x)
    return x / (1.0 + pt.abs(x))


def ultra_fast_sigmoid(x: Any) -> Any:
    """Return Theano's approximation of the sigmoid by rational pieces.

    Notes
    -----
    With a = abs(x) / 2: ``0.75 a / (1 + a)`` added to 0.5 below 1.7, then straight
    lines to 3 and a constant. Off by 0.03 at most; not monotonous at 1.7.
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
    """Return max(x, 0), or with `alpha` the slope below 0: max(x, alpha x).

    Written, as Theano did, by x and abs(x): the gradient at 0 is half that above. So
    without `alpha` the result of NumPy's arrays and numbers is one of NumPy's.
    """
    plain = isinstance(alpha, int | float) and alpha == 0
    if not plain or not isinstance(x, np.ndarray | np.generic | int | float):
        x = pt.as_tensor_variable(x)
    if plain:
        return 0.5 * (x + abs(x))
    alpha = pt.as_tensor_variable(alpha)
    return 0.5 * (1 + alpha) * x + 0.5 * (1 - alpha) * pt.abs(x)


def elu(x: Any, alpha: Any = 1) -> Any:
    """Return x above 0, alpha (exp(x) - 1) below.

    References
    ----------
    Clevert et al., "Fast and accurate deep network learning by exponential linear
    units", arXiv 1511.07289.
    """
    x = pt.as_tensor_variable(x)
    # The minimum keeps the exponential, and its gradient, finite where it is not used.
    return pt.switch(pt.gt(x, 0), x, alpha * pt.expm1(pt.minimum(x, 0)))


def selu(x: Any) -> Any:
    """Return the scaled `elu` that keeps mean 0 and variance 1.

    References
    ----------
    Klambauer et al., "Self-normalizing neural networks", arXiv 1706.02515.
    """
    return 1.0507009873554804934193349852946 * elu(x, 1.6732632423543772848170429916717)


def prepend_scalar_to_each_row(value: Any, matrix: Any) -> Any:
    """Return `matrix` with a first column of `value`."""
    matrix = pt.as_tensor_variable(matrix)
    value = pt.cast(pt.as_tensor_variable(value), matrix.dtype)
    return pt.concatenate([pt.alloc(value, matrix.shape[0], 1), matrix], axis=1)


def prepend_1_to_each_row(matrix: Any) -> Any:
    """Return `matrix` with a first column of ones."""
    return prepend_scalar_to_each_row(1, matrix)


def prepend_0_to_each_row(matrix: Any) -> Any:
    """Return `matrix` with a first column of zeros."""
    return prepend_scalar_to_each_row(0, matrix)


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

    Parameters
    ----------
    x : matrix of shape (batch_size, features)
        The input.
    batch_size, n_outputs, n_classes, n_outputs_per_class : int
        Sizes; ``n_classes * n_outputs_per_class >= n_outputs``.
    W1 : matrix of shape (features, n_classes)
        Weights of the first level, with `b1` of shape (n_classes,).
    W2 : tensor of shape (n_classes, features, n_outputs_per_class)
        Weights of the second, with `b2` of shape (n_classes, n_outputs_per_class).
    target : vector of int, optional
        One output for each row.

    Returns
    -------
    TensorVariable
        The probability of each row's target, shape (batch_size,); without a target,
        of all outputs, shape (batch_size, n_outputs).

    References
    ----------
    Goodman, "Classes for fast maximum entropy training", ICASSP 2001.
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


__getattr__, __dir__ = forward(
    __name__,
    "synk.theano.tensor.nnet.crossentropies",
    "pytensor.tensor.special",
)
