"""Batch normalisation and local response normalisation, as graphs."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt

from .base import as_floats, number_like
from .pool import sizes_of
from .poolops import Pool
from .windows import as_int, as_ints

_LEAST_EPSILON = 1e-5


def batch_normalization_train(
    inputs: Any,
    gamma: Any,
    beta: Any,
    axes: Any = "per-activation",
    epsilon: float = 1e-4,
    running_average_factor: float = 0.1,
    running_mean: Any = None,
    running_var: Any = None,
) -> tuple[Any, ...]:
    """Normalise by the mean and variance of the batch.

    Parameters
    ----------
    inputs : tensor_like
        Of any shape; axis 0 is the batch.
    gamma, beta : tensor_like
        Scale and offset. Of the inputs' shape, except for `axes`: these have length 1,
        or all are left out.
    axes : {"per-activation", "spatial"}, int or tuple of int
        Over which axes to take means: axis 0; all but axis 1, the channels; or these.
    epsilon : float
        Added to the variance; at least 1e-5.
    running_average_factor : float
        The weight of the batch's statistics in the running averages.
    running_mean, running_var : tensor_like, optional
        The running averages so far, both or none; of gamma's shape.

    Returns
    -------
    tuple of TensorVariable
        The result, the mean and 1 / sqrt(var + epsilon), these two of gamma's shape.
        With running averages, also the two averages after this batch.

    Raises
    ------
    TypeError, ValueError
        If parameters are none of these.

    Notes
    -----
    S. Ioffe and C. Szegedy 2015, "Batch normalization". The running variance is that
    of the population: var * m / (m - 1), with m numbers in a mean. In a function that
    runs on several ranks, the statistics are those of all rows, or, with
    ``statistics="local"``, of each rank's own.
    """
    (x,) = as_floats(inputs)
    reduced = _reduced_axes(x, axes)
    epsilon = _checked_epsilon(epsilon, x)
    if (running_mean is None) != (running_var is None):
        raise TypeError("running_mean and running_var belong together: give both")
    parameters = {"gamma": gamma, "beta": beta}
    if running_mean is not None:
        parameters |= {"running_mean": running_mean, "running_var": running_var}
    are_short, gamma, beta, *running = _spread(x, reduced, parameters)
    mean = x.mean(axis=reduced, keepdims=True)
    var = pt.sqr(x - mean).mean(axis=reduced, keepdims=True)
    invstd = 1 / pt.sqrt(var + epsilon)
    out = (x - mean) * (invstd * gamma) + beta
    results = [mean, invstd]
    if running:
        count = pt.prod([x.shape[axis] for axis in reduced]).astype(x.dtype)
        rate = number_like(running_average_factor, x)
        unbiased = var * (count / (count - 1))
        for before, now in zip(running, (mean, unbiased), strict=True):
            results.append(before * (1 - rate) + now * rate)
    if are_short:
        kept = [axis for axis in range(x.type.ndim) if axis not in reduced]
        results = [value.dimshuffle(*kept) for value in results]
    return (out, *results)


def batch_normalization_test(
    inputs: Any,
    gamma: Any,
    beta: Any,
    mean: Any,
    var: Any,
    axes: Any = "per-activation",
    epsilon: float = 1e-4,
) -> Any:
    """Normalise by a given mean and variance.

    Parameters
    ----------
    inputs, gamma, beta, axes, epsilon
        As for `batch_normalization_train`.
    mean, var : tensor_like
        Usually running averages; of gamma's shape.

    Returns
    -------
    TensorVariable
        Of the inputs' shape: gamma * (inputs - mean) / sqrt(var + epsilon) + beta.
    """
    (x,) = as_floats(inputs)
    parameters = {"gamma": gamma, "beta": beta, "mean": mean, "var": var}
    _, gamma, beta, mean, var = _spread(x, _reduced_axes(x, axes), parameters)
    return (x - mean) * (gamma / pt.sqrt(var + _checked_epsilon(epsilon, x))) + beta


def _reduced_axes(x: Any, axes: Any) -> tuple[int, ...]:
    if axes == "per-activation":
        return (0,)
    if axes == "spatial":
        return (0, *range(2, x.type.ndim))
    if isinstance(axes, str):
        raise ValueError(
            f"axes must be 'per-activation', 'spatial' or numbers, got {axes!r}"
        )
    chosen = list(axes) if isinstance(axes, (tuple, list)) else [axes]
    numbers = as_ints(chosen, len(chosen), "axes", 0)
    if not numbers or len(set(numbers)) < len(numbers):
        raise ValueError(f"axes must be different numbers, got {axes!r}")
    if max(numbers) >= x.type.ndim:
        raise ValueError(f"axes must be below {x.type.ndim}, got {axes!r}")
    return tuple(sorted(numbers))


def _checked_epsilon(epsilon: float, x: Any) -> Any:
    if epsilon < _LEAST_EPSILON:
        raise ValueError(f"epsilon must be at least {_LEAST_EPSILON}, got {epsilon}")
    return number_like(epsilon, x)


def _spread(x: Any, reduced: tuple[int, ...], parameters: dict[str, Any]) -> list[Any]:
    """Return whether parameters leave out axes, and each with the inputs' axes."""
    axes = range(x.type.ndim)
    kept = x.type.ndim - len(reduced)
    found: list[Any] = [False]
    for what, given in parameters.items():
        values = pt.as_tensor_variable(given)
        if values.type.ndim == x.type.ndim:
            found.append(pt.specify_broadcastable(values, *reduced))
            continue
        if values.type.ndim != kept:
            raise ValueError(
                f"{what} must have {x.type.ndim} axes, or {kept} without those that are"
                f" normalised, {reduced}; got {values.type.ndim}"
            )
        found[0] = True
        order = iter(range(kept))
        wider = ["x" if axis in reduced else next(order) for axis in axes]
        found.append(values.dimshuffle(*wider))
    return found


def local_response_normalization(
    inputs: Any, alpha: float = 1e-4, k: float = 2, beta: float = 0.75, n: int = 5
) -> Any:
    """Divide each channel by a norm of its neighbouring channels.

    Parameters
    ----------
    inputs : tensor_like
        Shape (batch, channels, rows, columns).
    alpha, k, beta : float
        See the formula below.
    n : int
        How many channels the norm includes, the channel itself in the middle; odd.

    Returns
    -------
    TensorVariable
        inputs / (k + alpha * sum of the neighbours' squares) ** beta

    Raises
    ------
    ValueError
        If n is even.

    Notes
    -----
    A. Krizhevsky et al. 2012, "ImageNet classification with deep convolutional neural
    networks", section 3.3.
    """
    width = as_int(n, "n")
    if width < 1 or width % 2 == 0:
        raise ValueError(f"n must be odd, got {n}")
    x = as_floats(inputs)[0]
    sizes = (width, 1, 1), (1, 1, 1), (width // 2, 0, 0)
    over_channels: Any = Pool(3, True, "sum")(pt.sqr(x), sizes_of(*sizes))
    alpha, k, beta = (number_like(value, x) for value in (alpha, k, beta))
    return x / (k + alpha * over_channels) ** beta
