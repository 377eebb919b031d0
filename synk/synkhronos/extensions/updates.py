"""`synkhronos.extensions.updates`: rules in two halves, with a reduction between them.

``rule(loss, params, ...)`` returns ``(grad_updates, param_updates, grad_shared)``: a
function with the first updates stores the gradient of a rank's own rows in one flat
shared variable, ``synk.all_reduce(grad_shared)`` averages it over the ranks, and a
function with the second moves the parameters, on all ranks alike. The loss is a mean
over the rows, and scripts name the learning rate `learning_rate` or `lr`.

Formulas and default settings are those of Lasagne's rules, which Synkhronos had taken
over; where they are those of `synk.updates`, which reduces within the graph, its rule
makes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Variable

from synk import updates as whole
from synk.also_named import also_named
from synk.updates import state_like

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

_takes_lr = also_named("lr", "learning_rate")


@_takes_lr
def sgd(loss: Any, params: Sequence, learning_rate: Any) -> Halves:
    """Stochastic gradient descent: ``p = p - learning_rate * g``."""
    return _in_halves(whole.sgd, loss, params, learning_rate)


@_takes_lr
def momentum(
    loss: Any, params: Sequence, learning_rate: Any, momentum: Any = 0.9
) -> Halves:
    """With momentum: ``v = momentum * v - learning_rate * g``, ``p = p + v``."""
    return _in_halves(whole.momentum, loss, params, learning_rate, momentum)


@_takes_lr
def nesterov_momentum(
    loss: Any, params: Sequence, learning_rate: Any, momentum: Any = 0.9
) -> Halves:
    """As :func:`momentum`, with ``p = p + momentum * v - learning_rate * g``."""
    return _in_halves(whole.nesterov_momentum, loss, params, learning_rate, momentum)


@_takes_lr
def adagrad(
    loss: Any, params: Sequence, learning_rate: Any = 1.0, epsilon: float = 1e-6
) -> Halves:
    """Adagrad: ``a = a + g**2``, ``p = p - learning_rate * g / sqrt(a + epsilon)``."""
    options = "adagrad", learning_rate, None, epsilon
    return _in_halves(_by_squares, loss, params, *options)


@_takes_lr
def rmsprop(
    loss: Any,
    params: Sequence,
    learning_rate: Any = 1.0,
    rho: Any = 0.9,
    epsilon: float = 1e-6,
) -> Halves:
    """RMSProp: as :func:`adagrad`, with ``a = rho * a + (1 - rho) * g**2``."""
    options = "rmsprop", learning_rate, rho, epsilon
    return _in_halves(_by_squares, loss, params, *options)


def _by_squares(
    gradients: list, params: list, name: str, rate: Any, rho: Any, epsilon: float
) -> dict:
    updates = {}
    for p, g in zip(params, gradients, strict=True):
        squares: Any = state_like(p, f"{name}_squares")
        new = squares + g**2 if rho is None else rho * squares + (1 - rho) * g**2
        updates[squares] = new
        updates[p] = p - rate * g / pt.sqrt(new + epsilon)
    return updates


@_takes_lr
def adadelta(
    loss: Any,
    params: Sequence,
    learning_rate: Any = 1.0,
    rho: Any = 0.95,
    epsilon: float = 1e-6,
) -> Halves:
    """Adadelta: steps in the proportion of past steps to past gradients."""
    return _in_halves(whole.adadelta, loss, params, learning_rate, rho, epsilon)


@_takes_lr
def adam(
    loss: Any,
    params: Sequence,
    learning_rate: Any = 0.001,
    beta1: Any = 0.9,
    beta2: Any = 0.999,
    epsilon: float = 1e-8,
) -> Halves:
    """Adam (Kingma and Ba, arXiv 1412.6980), the form at the end of section 2."""
    return _in_halves(_adam, loss, params, learning_rate, beta1, beta2, epsilon)


def _adam(
    gradients: list, params: list, rate: Any, beta1: Any, beta2: Any, epsilon: float
) -> dict:
    steps: Any = pytensor.shared(np.array(0, pytensor.config.floatX), name="steps")
    t = steps + 1
    updates = {steps: t}
    rate = rate * pt.sqrt(1 - beta2**t) / (1 - beta1**t)
    for p, g in zip(params, gradients, strict=True):
        means: Any = state_like(p, "adam_means")
        squares: Any = state_like(p, "adam_squares")
        updates[means] = beta1 * means + (1 - beta1) * g
        updates[squares] = beta2 * squares + (1 - beta2) * g**2
        step = rate * updates[means] / (pt.sqrt(updates[squares]) + epsilon)
        updates[p] = p - step
    return updates


@_takes_lr
def adamax(
    loss: Any,
    params: Sequence,
    learning_rate: Any = 0.002,
    beta1: Any = 0.9,
    beta2: Any = 0.999,
    epsilon: float = 1e-8,
) -> Halves:
    """Adamax: as :func:`adam`, with the largest gradient so far, fading."""
    options = learning_rate, beta1, beta2, epsilon
    return _in_halves(whole.adamax, loss, params, *options)


def _in_halves(rule: Callable, loss: Any, params: Sequence, *options: Any) -> Halves:
    """Return the halves of a rule, which gets the gradients after the reduction."""
    params = list(params)
    gradients: Any = pytensor.grad(loss, params)
    flat = pt.concatenate([pt.flatten(g) for g in gradients])
    sizes = [p.get_value(borrow=True).size for p in params]
    shared: Any = pytensor.shared(np.zeros(sum(sizes), flat.dtype), "flat_gradient")
    parts, end = [], 0
    for p, size in zip(params, sizes, strict=True):
        start, end = end, end + size
        parts.append(shared[start:end].reshape(p.shape, ndim=p.type.ndim))
    moves = rule(parts, params, *options).items()
    of_params: Any = [(var, pt.cast(new, var.type.dtype)) for var, new in moves]
    return [(shared, flat)], of_params, shared
