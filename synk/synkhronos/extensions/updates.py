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

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Variable

from synk import updates as whole
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
    """RMSProp: as :func:`adagrad`, with ``a = rho * a + (1 - rho) * g**2``."""
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
    """Adamax: as :func:`adam`, with the largest gradient so far, fading."""
    options = learning_rate, beta1, beta2, epsilon
    return _in_halves(whole.adamax, loss, params, *options)


def _in_halves(rule: Callable, loss: Any, params: Sequence, *options: Any) -> Halves:
    """Return the halves of a rule of `synk.updates`."""
    halves = _Halves(loss, params, rule.__name__)
    gradients = [g for _, g in halves]
    for var, new in rule(gradients, params, *options).items():
        halves.update(var, new)
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
