"""`synkhronos.extensions.train`: a training step of two functions and a reduction.

With :func:`synk.train_function` it is one function, which reduces within its graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytensor

import synk

__all__ = ["make_train_function", "make_train_function_theano"]


def make_train_function(
    loss: Any,
    params: Sequence,
    x: Any,
    y: Any,
    update_rule: Callable,
    *args: Any,
    **kwargs: Any,
) -> Callable:
    """Make a function of ``(x, y, batch=None)`` that trains on one batch.

    It returns the loss before the step. `loss` is a mean over the rows of `x` and `y`,
    `update_rule` one of `synkhronos.extensions.updates`, or another that returns what
    they do, with further arguments; `batch` is that of :meth:`synk.Function.__call__`.
    """
    of_gradients, of_params, gradients = update_rule(loss, params, *args, **kwargs)
    f_gradients = synk.function([x, y], (loss, "avg"), updates=of_gradients)
    f_params = synk.function([], updates=of_params)

    def train(x_data: Any, y_data: Any, batch: Any = None) -> Any:
        loss_value = f_gradients(x_data, y_data, batch=batch)
        synk.all_reduce(gradients, "avg")
        f_params()
        return loss_value

    return train


def make_train_function_theano(
    loss: Any,
    params: Sequence,
    x: Any,
    y: Any,
    update_rule: Callable,
    *args: Any,
    **kwargs: Any,
) -> Callable:
    """Make the function of `make_train_function` for the master alone."""
    of_gradients, of_params, _ = update_rule(loss, params, *args, **kwargs)
    f_gradients = pytensor.function([x, y], loss, updates=of_gradients)
    f_params = pytensor.function([], updates=of_params)

    def train(x_data: Any, y_data: Any) -> Any:
        loss_value = f_gradients(x_data, y_data)
        f_params()
        return loss_value

    return train
