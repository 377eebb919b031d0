"""Update rules of optimisers, as graphs.

They have the arguments of Lasagne's rules, ``rule(loss_or_grads, params, learning_rate,
...)``, and return a dict of updates for :func:`synk.function`, in which gradients are
those of all ranks' rows. The formulas and the numbers are those of ``torch.optim``.

State, such as a velocity, is kept in shared variables of the parameters' dtypes; a
float32 parameter stays float32. State is named after parameter and rule, as in
``"W:adam_squares"``, and checkpoints find it by these names. A learning rate may be a
number or a variable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Variable

from .ops import grad

__all__ = [
    "adadelta",
    "adagrad",
    "adam",
    "adamax",
    "adamw",
    "momentum",
    "nesterov_momentum",
    "rmsprop",
    "sgd",
]

Updates: TypeAlias = dict[SharedVariable, Variable]


def sgd(loss_or_grads: Any, params: Sequence, learning_rate: Any) -> Updates:
    """Return updates of stochastic gradient descent.

    ``p = p - learning_rate * g``

    Parameters
    ----------
    loss_or_grads : scalar variable, or list of TensorVariable
        A loss, or a gradient for each parameter.
    params : list of shared variables
    learning_rate : float or scalar variable

    Returns
    -------
    dict
        New values by shared variable.

    Raises
    ------
    ValueError
        If there are not as many gradients as parameters.
    """
    return {
        p: p - _like(learning_rate, p) * g for p, g in _gradients(loss_or_grads, params)
    }


def momentum(
    loss_or_grads: Any, params: Sequence, learning_rate: Any, momentum: Any = 0.9
) -> Updates:
    """Return updates of stochastic gradient descent with momentum.

    ``v = momentum * v - learning_rate * g``, ``p = p + v``. With a learning rate that
    changes, torch's velocity forgets the old rates at once, and this one by and by.

    Parameters
    ----------
    loss_or_grads, params, learning_rate
        See `sgd`.
    momentum : float or scalar variable
        How much of the velocity is kept at each step.
    """
    updates: Updates = {}
    for p, g in _gradients(loss_or_grads, params):
        velocity = state_like(p, "momentum_velocity")
        step = _like(momentum, p) * velocity - _like(learning_rate, p) * g
        updates[velocity] = step
        updates[p] = p + step
    return updates


def nesterov_momentum(
    loss_or_grads: Any, params: Sequence, learning_rate: Any, momentum: Any = 0.9
) -> Updates:
    """Return updates of stochastic gradient descent with Nesterov's momentum.

    ``v = momentum * v - learning_rate * g``, ``p = p + momentum * v - learning_rate *
    g``: the form of Sutskever et al., ICML 2013, in which the gradient is taken at the
    parameters themselves.

    Parameters
    ----------
    loss_or_grads, params, learning_rate, momentum
        See `momentum`.
    """
    updates: Updates = {}
    for p, g in _gradients(loss_or_grads, params):
        velocity, kept = state_like(p, "nesterov_momentum_velocity"), _like(momentum, p)
        move = _like(learning_rate, p) * g
        step = kept * velocity - move
        updates[velocity] = step
        updates[p] = p + kept * step - move
    return updates


def adagrad(
    loss_or_grads: Any,
    params: Sequence,
    learning_rate: Any = 0.01,
    epsilon: float = 1e-10,
) -> Updates:
    """Return updates of Adagrad: steps shrink with the squares of gradients so far.

    ``a = a + g**2``, ``p = p - learning_rate * g / (sqrt(a) + epsilon)``; Duchi et al.,
    JMLR 12, 2011.

    Parameters
    ----------
    loss_or_grads, params, learning_rate
        See `sgd`.
    epsilon : float
        Added to the root, against a division by zero.
    """
    return by_squares(
        "adagrad", _gradients(loss_or_grads, params), learning_rate, None, epsilon
    )


def rmsprop(
    loss_or_grads: Any,
    params: Sequence,
    learning_rate: Any = 0.01,
    rho: Any = 0.99,
    epsilon: float = 1e-8,
) -> Updates:
    """Return updates of RMSProp: steps are divided by the root mean square gradient.

    ``a = rho * a + (1 - rho) * g**2``,
    ``p = p - learning_rate * g / (sqrt(a) + epsilon)``; Tieleman and Hinton, 2012.

    Parameters
    ----------
    loss_or_grads, params, learning_rate
        See `sgd`.
    rho : float or scalar variable
        How much of the running mean is kept at each step.
    epsilon : float
        See `adagrad`.
    """
    return by_squares(
        "rmsprop", _gradients(loss_or_grads, params), learning_rate, rho, epsilon
    )


def by_squares(
    name: str,
    gradients: Iterable[tuple[Any, Any]],
    learning_rate: Any,
    rho: Any,
    epsilon: Any,
    is_within: bool = False,
) -> Updates:
    """Return updates that divide gradients by the root of their squares.

    `gradients` has pairs of a parameter and its gradient. Squares are added up if `rho`
    is None, else averaged. `is_within`: `epsilon` is added under the root.
    """
    updates: Updates = {}
    for p, g in gradients:
        squares, small = state_like(p, f"{name}_squares"), _like(epsilon, p)
        new = squares + g**2 if rho is None else _mean(squares, g**2, rho, p)
        root = pt.sqrt(new + small) if is_within else pt.sqrt(new) + small
        updates[squares] = new
        updates[p] = p - _like(learning_rate, p) * g / root
    return updates


def adadelta(
    loss_or_grads: Any,
    params: Sequence,
    learning_rate: Any = 1.0,
    rho: Any = 0.9,
    epsilon: float = 1e-6,
) -> Updates:
    """Return updates of Adadelta: steps in the proportion of past steps to gradients.

    ``a = rho * a + (1 - rho) * g**2``,
    ``s = g * sqrt(d + epsilon) / sqrt(a + epsilon)``,
    ``d = rho * d + (1 - rho) * s**2``, ``p = p - learning_rate * s``; Zeiler,
    arXiv 1212.5701.

    Parameters
    ----------
    loss_or_grads, params, learning_rate
        See `sgd`.
    rho : float or scalar variable
        See `rmsprop`.
    epsilon : float
        Added under the roots.
    """
    updates: Updates = {}
    for p, g in _gradients(loss_or_grads, params):
        squares = state_like(p, "adadelta_squares")
        steps = state_like(p, "adadelta_steps")
        small = _like(epsilon, p)
        new = _mean(squares, g**2, rho, p)
        step = g * pt.sqrt(steps + small) / pt.sqrt(new + small)
        updates[squares] = new
        updates[steps] = _mean(steps, step**2, rho, p)
        updates[p] = p - _like(learning_rate, p) * step
    return updates


def adam(
    loss_or_grads: Any,
    params: Sequence,
    learning_rate: Any = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> Updates:
    """Return updates of Adam: momentum and RMSProp, corrected for their start at 0.

    Algorithm 1 of Kingma and Ba, arXiv 1412.6980.

    Parameters
    ----------
    loss_or_grads, params, learning_rate
        See `sgd`.
    beta1, beta2 : float
        How much of the running means, of gradients and of their squares, is kept.
    epsilon : float
        Added to the root, against a division by zero.
    """
    return _adam("adam", loss_or_grads, params, learning_rate, beta1, beta2, epsilon)


def adamw(
    loss_or_grads: Any,
    params: Sequence,
    learning_rate: Any = 0.001,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
    weight_decay: float = 0.01,
) -> Updates:
    """Return updates of Adam with weight decay that does not pass through the means.

    Algorithm 2 of Loshchilov and Hutter, arXiv 1711.05101.

    Parameters
    ----------
    loss_or_grads, params, learning_rate, beta1, beta2, epsilon
        See `adam`.
    weight_decay : float
        Each step reduces parameters by this fraction, times the learning rate.
    """
    options = learning_rate, beta1, beta2, epsilon, weight_decay
    return _adam("adamw", loss_or_grads, params, *options)


def adamax(
    loss_or_grads: Any,
    params: Sequence,
    learning_rate: Any = 0.002,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-8,
) -> Updates:
    """Return updates of Adam with the largest gradient so far for the mean square.

    Algorithm 2 of Kingma and Ba, arXiv 1412.6980.

    Parameters
    ----------
    loss_or_grads, params, learning_rate
        See `sgd`.
    beta1, beta2 : float
        How much of the running mean and of the largest gradient is kept.
    epsilon : float
        Added to a gradient's size, against a division by zero.
    """
    updates: Updates = {}
    params = list(params)
    step_number = _count(updates, params, "adamax")
    for p, g in _gradients(loss_or_grads, params):
        means, largest = state_like(p, "adamax_means"), state_like(p, "adamax_largest")
        new_mean = _mean(means, g, beta1, p)
        size = pt.maximum(_like(beta2, p) * largest, pt.abs(g) + _like(epsilon, p))
        rate = _like(learning_rate, p) / _correction(beta1, step_number, p)
        updates[means], updates[largest] = new_mean, size
        updates[p] = p - rate * new_mean / size
    return updates


def _adam(
    name: str,
    loss_or_grads: Any,
    params: Sequence,
    learning_rate: Any,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float = 0.0,
) -> Updates:
    """Return the updates of Adam, with states named after the rule `name`."""
    updates: Updates = {}
    params = list(params)
    step_number = _count(updates, params, name)
    for p, g in _gradients(loss_or_grads, params):
        means = state_like(p, f"{name}_means")
        squares = state_like(p, f"{name}_squares")
        new_mean = _mean(means, g, beta1, p)
        new_squares = _mean(squares, g**2, beta2, p)
        rate = _like(learning_rate, p)
        root = pt.sqrt(new_squares / _correction(beta2, step_number, p))
        corrected = new_mean / _correction(beta1, step_number, p)
        step = corrected / (root + _like(epsilon, p))
        updates[means], updates[squares] = new_mean, new_squares
        shrunk = p * (1 - rate * _like(weight_decay, p)) if weight_decay else p
        updates[p] = shrunk - rate * step
    return updates


def _gradients(loss_or_grads: Any, params: Sequence) -> Iterator[tuple[Any, Any]]:
    """Yield parameters with their gradients, in the parameters' dtypes."""
    params = list(params)
    for p in params:
        if not isinstance(p, SharedVariable):
            raise TypeError(f"parameters must be shared variables, got {p!r}")
    if isinstance(loss_or_grads, (list, tuple)):
        grads = list(loss_or_grads)
        if len(grads) != len(params):
            raise ValueError(f"got {len(grads)} gradients for {len(params)} parameters")
    else:
        grads = grad(loss_or_grads, params)
    for p, g in zip(params, grads, strict=True):
        yield p, pt.cast(g, p.type.dtype)


def state_like(param: SharedVariable, what: str) -> SharedVariable:
    """Return a shared variable of zeros like a parameter, named "param:what"."""
    value = np.zeros_like(param.get_value(borrow=True))
    name = None if param.name is None else f"{param.name}:{what}"
    return pytensor.shared(value, name=name, shape=param.type.shape)


def _like(value: Any, param: SharedVariable) -> Any:
    """Return a number or scalar variable in a parameter's dtype."""
    return pt.cast(pt.as_tensor_variable(value), param.type.dtype)


def _mean(old: Any, new: Any, kept: Any, param: SharedVariable) -> Any:
    """Return the running mean ``kept * old + (1 - kept) * new``."""
    # In double precision: 1 - 0.999 of float32 would be off in the fifth digit.
    rest = 1 - pt.cast(pt.as_tensor_variable(kept), "float64")
    return _like(kept, param) * old + _like(rest, param) * new


def _count(updates: Updates, params: list, rule: str) -> Variable:
    """Add a step counter to the updates; return the number of the step, from 1 on."""
    # One for all parameters, named after the first, so that two rules' names differ.
    named = bool(params) and params[0].name is not None
    name = f"{params[0].name}:{rule}_step" if named else None
    count = pytensor.shared(np.int64(0), name=name)
    updates[count] = count + 1
    return updates[count]


def _correction(beta: Any, step_number: Variable, param: SharedVariable) -> Any:
    """Return ``1 - beta**step``: a running mean's fraction of its full size."""
    # In double precision: beta2**t of float32 would be off in the fifth digit.
    power = pt.power(pt.as_tensor_variable(float(beta)).astype("float64"), step_number)
    return pt.cast(1 - power, param.type.dtype)
