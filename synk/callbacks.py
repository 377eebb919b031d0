"""What a `Trainer` does between epochs: stop early, save, change rates, write logs.

A callback is called in the script's process, with all ranks between two epochs, so what
it decides holds for all of them at the same step. Any function ``f(trainer, numbers)``
will do; what it returns says whether to stop.
"""

from __future__ import annotations

import csv
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from pytensor.compile import SharedVariable

__all__ = [
    "CSVLog",
    "Callback",
    "Checkpoint",
    "JSONLog",
    "LearningRate",
    "Patience",
    "Plateau",
    "Target",
    "TensorBoard",
    "cosine",
    "step_decay",
    "warm_up",
]

Better: TypeAlias = Literal["less", "more"]


class Callback:
    """What is done between epochs; subclasses do something."""

    def before_epoch(self, trainer: Any, epoch: int) -> None:
        """Do something before an epoch's first step.

        Parameters
        ----------
        trainer : Trainer
        epoch : int
            How many were made before.
        """

    def after_epoch(self, trainer: Any, numbers: Mapping[str, float]) -> bool | None:
        """Do something after an epoch, and say whether training is to end.

        Parameters
        ----------
        trainer : Trainer
        numbers : mapping of str to float
            The epoch's, see `History.epochs`.

        Returns
        -------
        bool or None
            True ends it.
        """


class _Best:
    """The best of the values that came so far."""

    def __init__(self, name: str, better: Better) -> None:
        if better not in ("less", "more"):
            raise ValueError(f"better must be 'less' or 'more', got {better!r}")
        self.name, self._sign = name, 1 if better == "less" else -1
        self.value: float | None = None

    def of(self, numbers: Mapping[str, float]) -> float:
        """Return the value that is looked at."""
        if self.name not in numbers:
            known = ", ".join(sorted(numbers))
            raise KeyError(f"no number of an epoch is called {self.name!r}: {known}")
        return numbers[self.name]

    def is_better(self, value: float, than: float | None) -> bool:
        """Tell whether a value is better than another one; NaN is not."""
        return than is None or self._sign * value < self._sign * than or than != than

    def improves(self, value: float) -> bool:
        """Tell whether a value is the best so far, and keep it then."""
        if value == value and self.is_better(value, self.value):
            self.value = value
            return True
        return False


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
        self._best, self._epochs, self._smooth = _Best(name, better), epochs, smooth
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
        self._best, self._value = _Best(name, better), value

    def after_epoch(self, trainer: Any, numbers: Mapping[str, float]) -> bool:
        found = self._best.of(numbers)
        return found == self._value or (
            found == found and self._best.is_better(found, self._value)
        )


class Checkpoint(Callback):
    """Saves the trainer after each epoch, or after those that are the best so far.

    Parameters
    ----------
    path : str or path-like
        Of a file, see `Trainer.save`; it is replaced each time.
    best : str, optional
        Which number of an epoch must be better than in all before.
    better : {"less", "more"}
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        best: str | None = None,
        better: Better = "less",
    ) -> None:
        self._path = path
        self._best = None if best is None else _Best(best, better)

    def after_epoch(self, trainer: Any, numbers: Mapping[str, float]) -> None:
        if self._best is None or self._best.improves(self._best.of(numbers)):
            trainer.save(self._path)


class LearningRate(Callback):
    """Sets a variable, such as a learning rate, before each epoch.

    Parameters
    ----------
    variable : shared variable
        A scalar that the step uses.
    schedule : callable
        Returns the value for an epoch, by its number from 0 on.
    """

    def __init__(
        self, variable: SharedVariable, schedule: Callable[[int], float]
    ) -> None:
        self._variable, self._schedule = variable, schedule

    def before_epoch(self, trainer: Any, epoch: int) -> None:
        assign(self._variable, self._schedule(epoch))


class Plateau(Callback):
    """Makes a variable smaller when a number has not become better for some epochs.

    Parameters
    ----------
    variable : shared variable
        A scalar that the step uses.
    name : str
        Which number of an epoch.
    factor : float
        By what it is multiplied.
    epochs : int
        After how many that bring nothing better.
    better : {"less", "more"}
    least : float
        It does not become smaller than this.
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
        self._best, self._epochs, self._waited = _Best(name, better), epochs, 0

    def after_epoch(self, trainer: Any, numbers: Mapping[str, float]) -> None:
        better = self._best.improves(self._best.of(numbers))
        self._waited = 0 if better else self._waited + 1
        if self._waited >= self._epochs:
            self._waited = 0
            present = float(self._variable.get_value())
            assign(self._variable, max(self._least, present * self._factor))


class CSVLog(Callback):
    """Writes the numbers of each epoch to a file, as lines of comma-separated values.

    Parameters
    ----------
    path : str or path-like
        Is begun anew by the first epoch.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path, self._names = Path(path), []  # type: ignore[var-annotated]

    def after_epoch(self, trainer: Any, numbers: Mapping[str, float]) -> None:
        is_new = not self._names
        self._names = self._names or list(numbers)
        with self._path.open("w" if is_new else "a", newline="") as file:
            writer = csv.DictWriter(file, self._names, extrasaction="ignore")
            if is_new:
                writer.writeheader()
            writer.writerow(dict(numbers))


class JSONLog(Callback):
    """Writes the numbers of each epoch to a file, each as a line of JSON.

    Parameters
    ----------
    path : str or path-like
        Is begun anew by the first epoch. What JSON has no number for, as NaN, is null.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path, self._is_new = Path(path), True

    def after_epoch(self, trainer: Any, numbers: Mapping[str, float]) -> None:
        told = {k: v if math.isfinite(v) else None for k, v in numbers.items()}
        with self._path.open("w" if self._is_new else "a") as file:
            file.write(json.dumps(told) + "\n")
        self._is_new = False


class TensorBoard(Callback):
    """Writes the numbers of each epoch for TensorBoard.

    Parameters
    ----------
    folder : str or path-like

    Raises
    ------
    ImportError
        If tensorboardX is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            raise ImportError(
                "TensorBoard needs tensorboardX: pip install tensorboardX"
            ) from None
        self._writer = SummaryWriter(os.fspath(folder))

    def after_epoch(self, trainer: Any, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            if name not in ("epoch", "step"):
                self._writer.add_scalar(name, value, int(numbers["step"]))
        self._writer.flush()


def step_decay(
    rate: float, epochs: Sequence[int], factor: float = 0.1
) -> Callable[[int], float]:
    """Return a schedule that multiplies a rate by a factor at some epochs.

    Parameters
    ----------
    rate : float
        To begin with.
    epochs : sequence of int
        From which on the rate is another one.
    factor : float

    Returns
    -------
    callable
    """
    return lambda epoch: rate * factor ** sum(epoch >= each for each in epochs)


def cosine(rate: float, epochs: int, last: float = 0.0) -> Callable[[int], float]:
    """Return a schedule that falls along half a cosine, and stays there.

    Parameters
    ----------
    rate, last : float
        In the first epoch, and after so many `epochs`.
    epochs : int

    Returns
    -------
    callable
    """

    def at(epoch: int) -> float:
        way = min(epoch / epochs, 1)
        return last + (rate - last) * (1 + math.cos(math.pi * way)) / 2

    return at


def warm_up(schedule: Callable[[int], float], epochs: int) -> Callable[[int], float]:
    """Return a schedule that grows to another one in equal steps, from 0.

    Parameters
    ----------
    schedule : callable
    epochs : int
        In the first of which the rate is 1 / (epochs + 1) of what it would be.

    Returns
    -------
    callable
    """
    return lambda epoch: schedule(epoch) * min((epoch + 1) / (epochs + 1), 1)


def assign(variable: SharedVariable, value: Any) -> None:
    """Set a variable to a number, or to an array, which is cast to its dtype."""
    dtype = variable.type.dtype  # type: ignore[attr-defined]
    variable.set_value(variable.type.filter(value, allow_downcast=True).astype(dtype))
