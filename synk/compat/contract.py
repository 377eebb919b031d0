"""The methods and attributes that Theano-MPI's rules need of a model, and checks."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
from pytensor.compile import SharedVariable

FUNCTIONS = (
    "compile_iter_fns",
    "train_iter",
    "val_iter",
    "reset_iter",
    "adjust_hyperp",
    "cleanup",
)
VALUES = (
    "params",
    "data",
    "data.n_batch_train",
    "data.n_batch_val",
    "epoch",
    "n_epochs",
    "n_subb",
    "name",
    "shared_lr",
)

_MISSING = object()

WHOLE_STEP = "avg"
"""The `sync_type` for models: "avg", so that `train_iter` makes whole steps."""


def check_file(modelfile: str) -> None:
    """Raise ModuleNotFoundError if there is no such module; does not import it."""
    if modelfile not in sys.modules and importlib.util.find_spec(modelfile) is None:
        raise ModuleNotFoundError(
            f"there is no module {modelfile!r}: modelfile is a name as in an import,"
            " such as 'models.mlp'"
        )


def find_class(modelfile: str, modelclass: str) -> Callable[[dict], Any]:
    """Import the module of a model class, and return the class."""
    module = importlib.import_module(modelfile)
    try:
        return getattr(module, modelclass)
    except AttributeError:
        raise AttributeError(f"{modelfile} has no class {modelclass!r}") from None


def check(model: Any) -> None:
    """Raise TypeError or ValueError unless a model has all that rules need."""
    missing = [
        *(name for name in VALUES if _get(model, name) is _MISSING),
        *(f"{name}()" for name in FUNCTIONS if not callable(_get(model, name))),
    ]
    if missing:
        raise TypeError(f"{_name(model)} has no {', '.join(missing)}")
    if not model.params or not all(isinstance(v, SharedVariable) for v in model.params):
        raise TypeError(
            f"{_name(model)}.params must be a list of shared variables, got"
            f" {model.params!r}"
        )
    for name, least in (("n_subb", 1), ("n_epochs", 0), ("epoch", 0)):
        number = _get(model, name)
        if not isinstance(number, (int, np.integer)) or number < least:
            raise ValueError(
                f"{_name(model)}.{name} must be an integer from {least} on, got"
                f" {number!r}"
            )


def compile_functions(model: Any) -> None:
    """Call a model's `compile_iter_fns`, with the arguments that it takes.

    It may take none, `sync_type` with or without a default, or one other argument.
    """
    method = model.compile_iter_fns
    for options in ({"sync_type": WHOLE_STEP}, {}):
        with contextlib.suppress(TypeError):
            inspect.signature(method).bind(**options)
            break
    else:
        return method(WHOLE_STEP)
    return method(**options)


@contextlib.contextmanager
def whole_step(model: Any) -> Iterator[None]:
    """Raise TypeError if the step in a ``with`` block is only the half step of "cdd".

    In Theano-MPI's "cdd" a step only computed velocities, `vels`. The exchanger wrote
    their sum to `vels2`, and the next step first moved the parameters by that. synk
    does not write to `vels2`, so such a step would never move the parameters.
    """
    given = getattr(model, "vels", None) or ()
    velocities = [var for var in given if isinstance(var, SharedVariable)]
    before = [[var.get_value() for var in of] for of in (model.params, velocities)]
    yield
    has_moved = _differ(model.params, before[0])
    rate = float(np.asarray(model.shared_lr.get_value()))
    if not has_moved and _differ(velocities, before[1]) and rate:
        raise TypeError(
            f"{_name(model)}.train_iter has changed vels and no parameter: it makes the"
            " half step of 'cdd', which leaves the parameters to the next call. Have it"
            " make a whole one, as for one worker: velocities and parameters"
        )


def _differ(variables: Sequence, before: Sequence) -> bool:
    return any(
        not np.array_equal(var.get_value(), then, equal_nan=True)
        for var, then in zip(variables, before, strict=True)
    )


def _get(model: Any, name: str) -> Any:
    try:
        return attrgetter(name)(model)
    except AttributeError:
        return _MISSING


def _name(model: Any) -> str:
    return f"{type(model).__module__}.{type(model).__qualname__}"
