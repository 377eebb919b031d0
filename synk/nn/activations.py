"""Activation functions, as graphs."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.tensor import special

from .base import as_floats, number_like

_SELU_ALPHA = 1.6732632423543772848170429916717
_SELU_SCALE = 1.0507009873554804934193349852946


def relu(x: Any, alpha: Any = 0) -> Any:
    """Return max(x, alpha * x): the rectifier, leaky where alpha is not 0.

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
    # Of positive x, expm1 overflows, and its gradient times 0 is NaN.
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
        Along which the sum is 1; None for all together.

    Returns
    -------
    TensorVariable
        Of the shape of x.
    """
    return special.softmax(as_floats(x)[0], axis=axis)


def log_softmax(x: Any, axis: int | None = -1) -> Any:
    """Return the logarithm of `softmax`, without its overflows.

    Parameters
    ----------
    x : tensor_like
        At least one axis.
    axis : int, optional
        Along which the sum of the exponentials is 1; None for all together.

    Returns
    -------
    TensorVariable
        Of the shape of x.
    """
    return special.log_softmax(as_floats(x)[0], axis=axis)
