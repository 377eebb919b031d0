"""Callbacks that end training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from .base import Best, Better, Callback


class Patience(Callback):
    """Ends training when a number has not become better for some epochs.

    Parameters
    ----------
    name : str
        Which number of an epoch, such as ``"val_loss"``.
    better : {"less", "more"}
    epochs : int
        How many in a row may bring nothing better.
    smooth : bool
        Whether to compare the mean of the last `epochs` with that of those before, in
        place of single values with the best one.
    """

    def __init__(
        self, name: str, better: Better = "less", epochs: int = 4, smooth: bool = False
    ) -> None:
        self._best, self._epochs, self._smooth = Best(name, better), epochs, smooth
        self._values: list[float] = []
        self._waited = 0

    def after_epoch(self, trainer: Any, numbers: Mapping[str, float]) -> bool:
        value, n = self._best.of(numbers), self._epochs
        if not self._smooth:
            self._waited = 0 if self._best.improves(value) else self._waited + 1
            return self._waited >= n
        self._values.append(value)
        if len(self._values) < 2 * n:
            return False
        before, last = self._values[-2 * n : -n], self._values[-n:]
        return not self._best.is_better(math.fsum(last), math.fsum(before))

    def state_dict(self) -> dict[str, Any]:
        best = self._best.value
        return {"best": best, "waited": self._waited, "values": list(self._values)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._best.value, self._waited = state["best"], state["waited"]
        self._values = list(state["values"])

    @property
    def state_key(self) -> str:
        return self._best.key(self, *["smooth"] * self._smooth)


class Target(Callback):
    """Ends training when a number has come to a value.

    Parameters
    ----------
    name : str
        Which number of an epoch.
    value : float
    better : {"less", "more"}
        Whether it is to be at most that, or at least.
    """

    def __init__(self, name: str, value: float, better: Better = "less") -> None:
        self._best, self._value = Best(name, better), value

    def after_epoch(self, trainer: Any, numbers: Mapping[str, float]) -> bool:
        found = self._best.of(numbers)
        return found == self._value or (
            found == found and self._best.is_better(found, self._value)
        )
