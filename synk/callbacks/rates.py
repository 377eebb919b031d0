"""Callbacks that set a variable, such as a learning rate, and schedules for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from pytensor.compile import SharedVariable

from .base import Best, Better, Callback


class LearningRate(Callback):
    """Sets a variable, such as a learning rate, before each epoch.

    Parameters
    ----------
    variable : shared variable
        A scalar that the step uses.
    schedule : callable
        Returns the value for an epoch, given its number from 0 on. If it has a state,
        it may have the methods `state_dict` and `load_state_dict`.
    """

    def __init__(
        self, variable: SharedVariable, schedule: Callable[[int], float]
    ) -> None:
        self._variable, self._schedule = variable, schedule

    def before_epoch(self, trainer: Any, epoch: int) -> None:
        assign(self._variable, self._schedule(epoch))

    def state_dict(self) -> dict[str, Any]:
        tell = getattr(self._schedule, "state_dict", None)
        return {} if tell is None else {"schedule": tell()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        take = getattr(self._schedule, "load_state_dict", None)
        if take is not None and "schedule" in state:
            take(state["schedule"])

    @property
    def state_key(self) -> str:
        return f"{super().state_key}({self._variable.name})"


class Plateau(Callback):
    """Makes a variable smaller when a number has not become better for some epochs.

    Parameters
    ----------
    variable : shared variable
        A scalar that the step uses.
    name : str
        The name of the epoch's number.
    factor : float
        Multiplies the variable.
    epochs : int
        The number of epochs in a row without a better value.
    better : {"less", "more"}
    least : float
        The smallest value to set.
    """

    def __init__(
        self,
        variable: SharedVariable,
        name: str = "val_loss",
        factor: float = 0.1,
        epochs: int = 4,
        better: Better = "less",
        least: float = 0.0,
    ) -> None:
        self._variable, self._factor, self._least = variable, factor, least
        self._best, self._epochs, self._waited = Best(name, better), epochs, 0

    def after_epoch(self, trainer: Any, numbers: Mapping[str, float]) -> None:
        better = self._best.improves(self._best.of(numbers))
        self._waited = 0 if better else self._waited + 1
        if self._waited >= self._epochs:
            self._waited = 0
            present = float(self._variable.get_value())
            assign(self._variable, max(self._least, present * self._factor))

    def state_dict(self) -> dict[str, Any]:
        present = np.array(self._variable.get_value())
        return {"best": self._best.value, "waited": self._waited, "variable": present}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._best.value, self._waited = state["best"], state["waited"]
        assign(self._variable, state["variable"])

    @property
    def state_key(self) -> str:
        return self._best.key(self, str(self._variable.name))


def step_decay(
    rate: float, epochs: Sequence[int], factor: float = 0.1
) -> Callable[[int], float]:
    """Return a schedule that multiplies a rate by a factor at some epochs.

    Parameters
    ----------
    rate : float
        The first rate.
    epochs : sequence of int
        The epochs, from 0 on, at whose beginning the rate is multiplied.
    factor : float
    """
    return lambda epoch: rate * factor ** sum(epoch >= each for each in epochs)


def cosine(rate: float, epochs: int, last: float = 0.0) -> Callable[[int], float]:
    """Return a schedule that falls along half a cosine, and stays there.

    Parameters
    ----------
    rate, last : float
        The rate in the first epoch, and after `epochs` epochs.
    epochs : int
    """

    def at(epoch: int) -> float:
        way = min(epoch / epochs, 1)
        return last + (rate - last) * (1 + math.cos(math.pi * way)) / 2

    return at


def warm_up(schedule: Callable[[int], float], epochs: int) -> Callable[[int], float]:
    """Return a schedule that multiplies another one by factors that grow to 1.

    Parameters
    ----------
    schedule : callable
    epochs : int
        The number of epochs with a factor below 1: 1 / (epochs + 1), 2 / (epochs + 1),
        and so on.
    """
    return lambda epoch: schedule(epoch) * min((epoch + 1) / (epochs + 1), 1)


def assign(variable: SharedVariable, value: Any) -> None:
    """Set a variable to a number or an array, cast to the variable's dtype."""
    dtype = variable.type.dtype  # type: ignore[attr-defined]
    variable.set_value(variable.type.filter(value, allow_downcast=True).astype(dtype))
