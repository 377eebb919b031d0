"""A model of Keras 2, on its Theano backend, as a training step.

The weights of such a model are shared variables, and its optimiser makes updates of
them. The attributes used here are public in Keras 2.3.1 and 2.2.5, the last releases of
2.3 and 2.2: ``inputs``, ``targets``, ``sample_weights``, ``total_loss``,
``trainable_weights``, ``updates`` and ``optimizer.get_updates``.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytensor.tensor as pt

from ..call.function import Function
from ..call.make import function


def is_model(step: Any) -> bool:
    """Return whether `step` is a model of Keras."""
    return any(
        kind.__name__ == "Model" and kind.__module__.partition(".")[0] == "keras"
        for kind in type(step).__mro__
    )


def step_of(model: Any, is_local: bool) -> Function:
    """Return a training step of a compiled model, the same as its ``train_on_batch``.

    The step takes a batch for each input and output of the model, and returns the loss.
    With `is_local` each rank makes it by itself, for a training rule.
    """
    backend = sys.modules["keras"].backend
    if backend.backend() != "theano":
        raise TypeError(
            f"a Keras model of the {backend.backend()} backend is no graph that synk"
            " knows: set KERAS_BACKEND=theano before keras is imported"
        )
    if getattr(model, "optimizer", None) is None:
        raise ValueError(f"compile the Keras model {model.name} before it is trained")
    inputs = [*model.inputs, *(each for each in model.targets if each is not None)]
    givens: dict[Any, Any] = {}
    if not isinstance(phase := backend.learning_phase(), int):
        givens[phase] = pt.constant(np.array(1, phase.type.dtype))
    for weights in model.sample_weights:
        if weights is not None:  # all samples count alike
            ones = pt.ones(inputs[0].shape[:1], dtype=weights.type.dtype)
            givens[weights] = ones if weights.type.ndim == 1 else ones[:, None]
    moved = model.optimizer.get_updates(model.total_loss, model.trainable_weights)
    return function(
        inputs,
        model.total_loss,
        updates=[*model.updates, *moved],
        givens=givens,
        local=is_local,
        name=model.name,
        on_unused_input="ignore",
        allow_input_downcast=True,
    )
