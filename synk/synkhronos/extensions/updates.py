"""`synkhronos.extensions.updates`: rules in two halves, with a reduction between them.

``rule(loss, params, ...)`` returns ``(grad_updates, param_updates, grad_shared)``: a
function with the first updates stores the gradient of a rank's own rows in one flat
shared variable, ``synk.all_reduce(grad_shared)`` averages it over the ranks, and a
function with the second moves the parameters, on all ranks alike.

Formulas and default settings are those of Lasagne's rules, which Synkhronos had taken
over. `synk.updates` has rules of one function each, which reduce within the graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Variable

from synk.also_named import also_named

__all__ = [
    "adadelta",
    "adagrad",
    "adam",
    "adamax",
    "momentum",
    "nesterov_momentum",
    "rmsprop",
    "sgd",
]

Updates: TypeAlias = list[tuple[SharedVariable, Variable]]
Halves: TypeAlias = tuple[Updates, Updates, SharedVariable]

# Scripts use both names.
_takes_lr = also_named("lr", "learning_rate")


@_takes_lr
def sgd(loss: Any, params: Sequence, learning_rate: Any) -> Halves:
    """Stochastic gradient descent: ``p = p - learning_rate * g``.

    Parameters
    ----------
    loss : scalar variable
        A mean over the rows.
    params : list of shared variables
        What is moved.
    learning_rate : float or scalar variable

    Returns
    -------
    grad_updates, param_updates : list of (shared variable, new value)
    grad_shared : shared variable
    """
    halves = _Halves(loss, params, "sgd")
    for p, g in halves:
        halves.update(p, p - learning_rate * g)
    return halves.all()


@_takes_lr
def momentum(
    loss: Any, params: Sequence, learning_rate: Any, momentum: Any = 0.9
) -> Halves:
    """Descent with momentum: ``v = momentum * v - learning_rate * g``, ``p = p + v``.

    Parameters
    ----------
    loss, params, learning_rate
        As for :func:`sgd`.
    momentum : float or scalar variable

    Returns
    -------
    grad_updates, param_updates, grad_shared
        As for :func:`sgd`.
    """
    halves = _Halves(loss, params, "momentum")
    for p, g in halves:
        velocity = halves.state(p, "velocity")
        step = momentum * velocity - learning_rate * g
        halves.update(velocity, step)
        halves.update(p, p + step)
    return halves.all()


@_takes_lr
def nesterov_momentum(
    loss: Any, params: Sequence, learning_rate: Any, momentum: Any = 0.9
) -> Halves:
    """Descent with Nesterov's momentum.

    As :func:`momentum`, with ``p = p + momentum * v - learning_rate * g``.

    Parameters
    ----------
    loss, params, learning_rate, momentum
        As for :func:`momentum`.

    Returns
    -------
    grad_updates, param_updates, grad_shared
        As for :func:`sgd`.
    """
    halves = _Halves(loss, params, "nesterov_momentum")
    for p, g in halves:
        velocity = halves.state(p, "velocity")
        step = momentum * velocity - learning_rate * g
        halves.update(velocity, step)
        halves.update(p, p + momentum * step - learning_rate * g)
    return halves.all()


@_takes_lr
def adagrad(
    loss: Any, params: Sequence, learning_rate: Any = 1.0, epsilon: float = 1e-6
) -> Halves:
    """Adagrad: ``a = a + g**2``, ``p = p - learning_rate * g / sqrt(a + epsilon)``.

    Parameters
    ----------
    loss, params, learning_rate
        As for :func:`sgd`.
    epsilon : float

    Returns
    -------
    grad_updates, param_updates, grad_shared
        As for :func:`sgd`.
    """
    halves = _Halves(loss, params, "adagrad")
    for p, g in halves:
        squares = halves.state(p, "squares")
        new = squares + g**2
        halves.update(squares, new)
        halves.update(p, p - learning_rate * g / pt.sqrt(new + epsilon))
    return halves.all()


@_takes_lr
def rmsprop(
    loss: Any,
    params: Sequence,
    learning_rate: Any = 1.0,
    rho: Any = 0.9,
    epsilon: float = 1e-6,
) -> Halves:
    """RMSProp: as :func:`adagrad`, with ``a = rho * a + (1 - rho) * g**2``.

    Parameters
    ----------
    loss, params, learning_rate
        As for :func:`sgd`.
    rho : float or scalar variable
    epsilon : float

    Returns
    -------
    grad_updates, param_updates, grad_shared
        As for :func:`sgd`.
    """
    halves = _Halves(loss, params, "rmsprop")
    for p, g in halves:
        squares = halves.state(p, "squares")
        new = rho * squares + (1 - rho) * g**2
        halves.update(squares, new)
        halves.update(p, p - learning_rate * g / pt.sqrt(new + epsilon))
    return halves.all()


@_takes_lr
def adadelta(
    loss: Any,
    params: Sequence,
    learning_rate: Any = 1.0,
    rho: Any = 0.95,
    epsilon: float = 1e-6,
) -> Halves:
    """Adadelta: steps in the proportion of past steps to past gradients.

    ``a = rho * a + (1 - rho) * g**2``, ``s = g * sqrt(d + epsilon) / sqrt(a +
    epsilon)``, ``d = rho * d + (1 - rho) * s**2``, ``p = p - learning_rate * s``.

    Parameters
    ----------
    loss, params, learning_rate
        As for :func:`sgd`.
    rho : float or scalar variable
    epsilon : float

    Returns
    -------
    grad_updates, param_updates, grad_shared
        As for :func:`sgd`.
    """
    halves = _Halves(loss, params, "adadelta")
    for p, g in halves:
        squares, steps = halves.state(p, "squares"), halves.state(p, "steps")
        new = rho * squares + (1 - rho) * g**2
        step = g * pt.sqrt(steps + epsilon) / pt.sqrt(new + epsilon)
        halves.update(squares, new)
        halves.update(steps, rho * steps + (1 - rho) * step**2)
        halves.update(p, p - learning_rate * step)
    return halves.all()


@_takes_lr
def adam(
    loss: Any,
    params: Sequence,
    learning_rate: Any = 0.001,
    beta1: Any = 0.9,
    beta2: Any = 0.999,
    epsilon: float = 1e-8,
) -> Halves:
    """Adam (Kingma and Ba, arXiv 1412.6980), the form at the end of section 2.

    Parameters
    ----------
    loss, params, learning_rate
        As for :func:`sgd`.
    beta1, beta2 : float or scalar variable
        How much of the running means, of gradients and of their squares, is kept.
    epsilon : float

    Returns
    -------
    grad_updates, param_updates, grad_shared
        As for :func:`sgd`.
    """
    halves = _Halves(loss, params, "adam")
    t = halves.count()
    rate = learning_rate * pt.sqrt(1 - beta2**t) / (1 - beta1**t)
    for p, g in halves:
        means, squares = halves.state(p, "means"), halves.state(p, "squares")
        new_mean = beta1 * means + (1 - beta1) * g
        new_square = beta2 * squares + (1 - beta2) * g**2
        halves.update(means, new_mean)
        halves.update(squares, new_square)
        halves.update(p, p - rate * new_mean / (pt.sqrt(new_square) + epsilon))
    return halves.all()


@_takes_lr
def adamax(
    loss: Any,
    params: Sequence,
    learning_rate: Any = 0.002,
    beta1: Any = 0.9,
    beta2: Any = 0.999,
    epsilon: float = 1e-8,
) -> Halves:
    """Adamax: as :func:`adam`, with the largest gradient so far, fading.

    Parameters
    ----------
    loss, params, learning_rate
        As for :func:`sgd`.
    beta1, beta2 : float or scalar variable
        How much of the running mean, and of the largest gradient, is kept.
    epsilon : float

    Returns
    -------
    grad_updates, param_updates, grad_shared
        As for :func:`sgd`.
    """
    halves = _Halves(loss, params, "adamax")
    rate = learning_rate / (1 - beta1 ** halves.count())
    for p, g in halves:
        means, largest = halves.state(p, "means"), halves.state(p, "largest")
        new_mean = beta1 * means + (1 - beta1) * g
        size = pt.maximum(beta2 * largest, pt.abs(g))
        halves.update(means, new_mean)
        halves.update(largest, size)
        halves.update(p, p - rate * new_mean / (size + epsilon))
    return halves.all()


class _Halves:
    """Collects the updates of a rule; iterates over parameters and their gradients.

    The gradients are read from the flat shared variable, after the reduction.
    """

    def __init__(self, loss: Any, params: Sequence, rule: str) -> None:
        self._params, self._rule = list(params), rule
        gradients: Any = pytensor.grad(loss, self._params)
        flat = pt.concatenate([pt.flatten(g) for g in gradients])
        self._sizes = [p.get_value(borrow=True).size for p in self._params]
        zeros = np.zeros(sum(self._sizes), flat.dtype)
        self._shared = pytensor.shared(zeros, name="flat_gradient")
        self._of_gradients = [(self._shared, flat)]
        self._of_params: Updates = []

    def __iter__(self) -> Iterator[tuple[SharedVariable, Any]]:
        start = 0
        for p, size in zip(self._params, self._sizes, strict=True):
            part = self._shared[start : start + size]
            yield p, part.reshape(p.shape, ndim=p.type.ndim)
            start += size

    def state(self, p: SharedVariable, name: str) -> Any:
        """Make a shared variable like a parameter, of zeros."""
        zeros = np.zeros_like(p.get_value(borrow=True))
        named = f"{p.name}:{self._rule}_{name}"
        return pytensor.shared(zeros, name=named, shape=p.type.shape)

    def count(self) -> Any:
        """Return the number of the step, which starts at 1."""
        steps = pytensor.shared(np.array(0, pytensor.config.floatX), name="steps")
        self.update(steps, steps + 1)
        return steps + 1

    def update(self, var: SharedVariable, new: Any) -> None:
        """Note a new value, in the dtype of the variable."""
        self._of_params.append((var, pt.cast(new, var.type.dtype)))

    def all(self) -> Halves:
        """Return what a rule returns."""
        return self._of_gradients, self._of_params, self._shared
