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

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Variable

from synk import updates as whole
from synk.also_named import also_named
from synk.updates import by_squares, state_like

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


def _in_halves(rule: Callable) -> Callable[..., Halves]:
    """Return the halves of a rule, which gets the gradients after the reduction."""

    @also_named("lr", "learning_rate")
    @functools.wraps(rule)
    def halves(loss: Any, params: Sequence, *args: Any, **options: Any) -> Halves:
        params = list(params)
        gradients: Any = pytensor.grad(loss, params)
        flat = pt.concatenate([pt.flatten(g) for g in gradients])
        sizes = [p.get_value(borrow=True).size for p in params]
        shared: Any = pytensor.shared(np.zeros(sum(sizes), flat.dtype), "flat_gradient")
        parts, end = [], 0
        for p, size in zip(params, sizes, strict=True):
            start, end = end, end + size
            parts.append(shared[start:end].reshape(p.shape, ndim=p.type.ndim))
        moves = rule(parts, params, *args, **options).items()
        of_params: Any = [(var, pt.cast(new, var.type.dtype)) for var, new in moves]
        return [(shared, flat)], of_params, shared

    halves.__module__ = __name__  # for pickling
    return halves


sgd = _in_halves(whole.sgd)
momentum = _in_halves(whole.momentum)
nesterov_momentum = _in_halves(whole.nesterov_momentum)
adamax = _in_halves(whole.adamax)


@_in_halves
def adagrad(
    gradients: list, params: list, learning_rate: Any = 1.0, epsilon: float = 1e-6
) -> dict:
    """Adagrad: ``a = a + g**2``, ``p = p - learning_rate * g / sqrt(a + epsilon)``."""
    pairs = zip(params, gradients, strict=True)
    return by_squares("adagrad", pairs, learning_rate, None, epsilon, is_within=True)


@_in_halves
def rmsprop(
    gradients: list,
    params: list,
    learning_rate: Any = 1.0,
    rho: Any = 0.9,
    epsilon: float = 1e-6,
) -> dict:
    """RMSProp: as :func:`adagrad`, with ``a = rho * a + (1 - rho) * g**2``."""
    pairs = zip(params, gradients, strict=True)
    return by_squares("rmsprop", pairs, learning_rate, rho, epsilon, is_within=True)


@_in_halves
def adadelta(
    gradients: list,
    params: list,
    learning_rate: Any = 1.0,
    rho: Any = 0.95,
    epsilon: float = 1e-6,
) -> dict:
    """Adadelta: steps in the proportion of past steps to past gradients."""
    return whole.adadelta(gradients, params, learning_rate, rho, epsilon)


@_in_halves
def adam(
    gradients: list,
    params: list,
    learning_rate: Any = 0.001,
    beta1: Any = 0.9,
    beta2: Any = 0.999,
    epsilon: float = 1e-8,
) -> dict:
    """Adam (Kingma and Ba, arXiv 1412.6980), the form at the end of section 2."""
    steps: Any = pytensor.shared(np.array(0, pytensor.config.floatX), name="steps")
    t = steps + 1
    updates = {steps: t}
    rate = learning_rate * pt.sqrt(1 - beta2**t) / (1 - beta1**t)
    for p, g in zip(params, gradients, strict=True):
        means: Any = state_like(p, "adam_means")
        squares: Any = state_like(p, "adam_squares")
        updates[means] = beta1 * means + (1 - beta1) * g
        updates[squares] = beta2 * squares + (1 - beta2) * g**2
        step = rate * updates[means] / (pt.sqrt(updates[squares]) + epsilon)
        updates[p] = p - step
    return updates
