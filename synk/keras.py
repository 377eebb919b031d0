"""Models of Keras 3, with its torch and its JAX backend, as training steps.

A `KerasModel` is a `synk.train.Model`. It uses Keras's interface to all of its
backends: a `keras.StatelessScope`, in which variables have given values, and
``stateless_apply`` of an optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import keras
import numpy as np

from .callbacks import Callback
from .train.models import Model, Step
from .train.models import step as step_of
from .user_frames import entry

Arrays = Sequence[np.ndarray]

RATE = "learning_rate"
"""The name of the optimizer's variable for its learning rate."""


@entry
def step(model: Any, inputs: Sequence, *, targets: int = 1, **options: Any) -> Step:
    """Make a training step of a compiled model of Keras 3.

    The loss and the optimizer are those that the model was compiled with. A call
    returns the loss before the step, with the penalties of layers. ``step.pull()``
    copies the trained weights and the optimizer's variables to the script's model.

    Parameters
    ----------
    model : keras.Model, str or Path
        The model, or a file that ``model.save`` has written.
    inputs : sequence of array_like or TensorVariable
        Examples of the step's inputs, for their dtypes and numbers of axes: first the
        model's inputs, then its targets. All have rows.
    targets : int
        The number of targets, the last inputs.
    **options
        Arguments of :func:`synk.train.step`.

    Returns
    -------
    synk.train.Step
        A :class:`synk.Function`.

    Raises
    ------
    TypeError, ValueError
        If the backend is neither torch nor JAX; if the model is not compiled, or has
        not been built.

    Notes
    -----
    Batch normalisation normalises by a rank's own rows, and moving averages become the
    mean of the ranks'. Dropout draws other numbers on each rank, the same in each run
    on the same number of ranks; on torch, a dropout layer without a seed draws the same
    for a row on any number of ranks. Metrics are not computed: see ``model.evaluate``.
    """
    if isinstance(model, (str, Path)):
        model = keras.saving.load_model(model)
    return step_of(KerasModel(model, targets), inputs, **options)


def _attribute(name: str, doc: str) -> Any:
    """Return a property of a `KerasModel` for the arrays of attribute `name`."""
    return property(
        lambda model: model._values(name),
        lambda model, arrays: model._show(name, arrays),
        doc=doc,
    )


class KerasModel(Model):
    """A compiled model of Keras 3.

    The script's model has its values in Keras's variables. A rank's model, which was
    pickled, uses the arrays that its attributes are set to, and not its variables.
    """

    parameters = _attribute("parameters", "The trainable weights.")
    buffers = _attribute("buffers", "Other weights: moving averages, and seeds.")
    kept = _attribute("kept", "The optimizer's variables.")

    def __init__(self, model: Any, targets: int = 1) -> None:
        if keras.backend.backend() not in _BACKENDS:
            raise TypeError(
                "ranks train models of Keras on torch or JAX, and the backend is"
                f" {keras.backend.backend()}: set KERAS_BACKEND before the import"
            )
        if not getattr(model, "compiled", False):
            raise ValueError(f"compile the Keras model {model.name!r} first")
        if not model.built:
            raise ValueError(f"build the Keras model {model.name!r} first, or call it")
        model.optimizer.build(model.trainable_variables)
        self.model, self._targets = model, targets
        self._ranks: dict[str, Arrays] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"model": self.model, "_targets": self._targets, "_ranks": {}}

    # -- values

    def _variables(self, name: str) -> list[Any]:
        return {
            "parameters": self.model.trainable_variables,
            "buffers": self.model.non_trainable_variables,
            "kept": self.model.optimizer.variables,
        }[name]

    def _values(self, name: str) -> Arrays:
        if self._ranks is not None:
            return self._ranks[name]
        return list(map(_as_numpy, self._variables(name)))

    def _show(self, name: str, arrays: Arrays) -> None:
        if self._ranks is not None:
            self._ranks[name] = arrays
            return
        for variable, array in zip(self._variables(name), arrays, strict=True):
            if variable.name != RATE:  # the script sets the rate
                variable.assign(array)

    @property
    def settings(self) -> list[float]:  # type: ignore[override]
        """The optimizer's learning rate; [] if it follows a schedule of Keras."""
        kept = self.model.optimizer.variables
        return [float(_as_numpy(kept[i])) for i in _places(RATE, kept)]

    @settings.setter
    def settings(self, values: Sequence[float]) -> None:
        self._rates = values

    # -- computing

    @cached_property
    def _backend(self) -> Any:
        return _BACKENDS[keras.backend.backend()](self)

    def gradient(self, *rows: np.ndarray) -> tuple[float, Arrays, float]:
        """Return the rows' loss (a sum), its gradient, and the number of rows."""
        n, given = len(rows[0]), [each.copy() for each in self.buffers]
        seeds = _places("seed_generator_state", self.model.non_trainable_variables)
        for i in seeds:  # a seed and a count: each rank's rows get another seed
            given[i][0] += self.draw.place
        loss, slopes, new = self._backend.gradient(self.parameters, given, rows)
        for i, value in enumerate(map(_as_numpy, new)):
            seed = self.buffers[i].flat[0]
            self.buffers[i][...] = value
            if i in seeds:
                self.buffers[i][0] = seed
        return float(loss) * n, [_as_numpy(slope) * n for slope in slopes], n

    def update(self, gradient: Arrays) -> None:
        """Make a step of the optimizer."""
        places = _places(RATE, self.model.optimizer.variables)
        for i, rate in zip(places, self._rates if places else (), strict=True):
            self.kept[i][...] = rate
        moved, kept = self._backend.update(self.kept, gradient, self.parameters)
        for old, new in zip(
            (*self.parameters, *self.kept), (*moved, *kept), strict=True
        ):
            old[...] = _as_numpy(new)

    def loss(self, *rows: np.ndarray) -> tuple[float, float]:
        """Return the rows' loss (a sum) and number, as in evaluation."""
        n = len(rows[0])
        return float(self._backend.loss(self.parameters, self.buffers, rows)) * n, n

    def loss_of(self, trained: Any, others: Any, rows: Any, training: bool) -> tuple:
        """Return the loss of rows, and the new values of variables not trained."""
        at = len(rows) - self._targets
        x, y = (each[0] if len(each) == 1 else each for each in (rows[:at], rows[at:]))
        not_trained = self.model.non_trainable_variables
        mapping = [
            *zip(self.model.trainable_variables, trained, strict=True),
            *zip(not_trained, others, strict=True),
        ]
        with keras.StatelessScope(mapping, collect_losses=True) as scope:
            found = self.model(x, training=training)
            loss = self.model.compute_loss(x=x, y=y, y_pred=found, training=training)
        return loss, [scope.get_current_value(each) for each in not_trained]


def _places(name: str, variables: Sequence[Any]) -> list[int]:
    return [i for i, variable in enumerate(variables) if variable.name == name]


def _as_numpy(value: Any) -> np.ndarray:
    return np.array(keras.ops.convert_to_numpy(value))


class _OnTorch:
    """Computes by torch, on arrays; each rank with its own threads."""

    def __init__(self, model: KerasModel) -> None:
        from . import torch as ours

        self._model, self._ours, run = model, ours, ours.Threads().run
        self.gradient = partial(run, self._gradient)
        self.update = partial(run, self._update)
        self.loss = partial(run, self._loss)

    def _tensors(self, arrays: Arrays) -> list[Any]:
        return list(map(self._ours.as_tensor, arrays))

    def _gradient(self, *arrays: Arrays) -> tuple:
        trained, others, rows = map(self._tensors, arrays)
        for tensor in trained:
            tensor.requires_grad_()
        with self._ours.drawing(self._model.draw):
            loss, new = self._model.loss_of(trained, others, rows, training=True)
            slopes = self._ours.gradients(loss, trained)
        return loss.item(), slopes, new

    def _update(self, *arrays: Arrays) -> tuple:
        with self._ours.torch.no_grad():
            apply = self._model.model.optimizer.stateless_apply
            return apply(*map(self._tensors, arrays))

    def _loss(self, *arrays: Arrays) -> float:
        with self._ours.torch.no_grad():
            trained, others, rows = map(self._tensors, arrays)
            return self._model.loss_of(trained, others, rows, False)[0].item()


class _OnJax:
    """Computes by JAX, on arrays."""

    def __init__(self, model: KerasModel) -> None:
        import jax

        trained = partial(model.loss_of, training=True)
        self._gradient = jax.jit(jax.value_and_grad(trained, has_aux=True))
        self._update = jax.jit(model.model.optimizer.stateless_apply)
        self._loss = jax.jit(partial(model.loss_of, training=False))

    def gradient(self, *arrays: Arrays) -> tuple:
        (loss, new), slopes = self._gradient(*map(list, arrays))
        return loss, slopes, new

    def update(self, *arrays: Arrays) -> tuple:
        return self._update(*map(list, arrays))

    def loss(self, *arrays: Arrays) -> float:
        return self._loss(*map(list, arrays))[0]


_BACKENDS: dict[str, Callable[[KerasModel], Any]] = {"torch": _OnTorch, "jax": _OnJax}


class Callbacks(Callback):
    """Runs Keras's callbacks between the epochs of a `synk.Trainer`.

    Parameters
    ----------
    step : synk.train.Step
        The step of a Keras model, which the callbacks see with its present weights.
    callbacks : sequence of keras.callbacks.Callback
        Their ``on_epoch_begin`` and ``on_epoch_end`` are called, with the numbers of an
        epoch as `logs`, such as "loss" and "val_loss". Ranks go on with the weights or
        learning rate that they set, and ``model.stop_training`` ends the training.
    """

    def __init__(self, step: Step, callbacks: Sequence[Any]) -> None:
        self._step, self._callbacks = step, list(callbacks)
        self._model: Any = step.model
        self._has_begun = False

    def before_epoch(self, trainer: Any, epoch: int) -> None:
        """Call ``on_epoch_begin``, and ``on_train_begin`` before the first epoch."""
        if not self._has_begun:
            self._has_begun = True
            for each in self._callbacks:
                each.set_model(self._model.model)
            self._call("on_train_begin")
        self._call("on_epoch_begin", epoch)

    def after_epoch(self, trainer: Any, numbers: Mapping[str, float]) -> bool:
        """Call ``on_epoch_end``; return ``model.stop_training``."""
        model = self._model.model
        model.stop_training = False
        self._call("on_epoch_end", int(numbers["epoch"]) - 1, dict(numbers))
        if model.stop_training:
            self._call("on_train_end")
        return bool(model.stop_training)

    def _call(self, name: str, *args: Any) -> None:
        self._step.pull()
        before = [array.copy() for array in self._model.parameters]
        for each in self._callbacks:
            getattr(each, name)(*args)
        after = self._model.parameters
        if any(map(np.any, map(np.not_equal, before, after))):
            self._step.push()
