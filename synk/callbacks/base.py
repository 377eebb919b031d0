"""`Callback`, the base class; callbacks that end training or save it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

Better: TypeAlias = Literal["less", "more"]


class Callback:
    """The base class of callbacks, which are called between epochs; does nothing."""

    def before_epoch(self, trainer: Any, epoch: int) -> None:
        """Do something before an epoch's first step.

        Parameters
        ----------
        trainer : Trainer
        epoch : int
            The number of epochs made before.
        """

    def after_epoch(self, trainer: Any, numbers: Mapping[str, float]) -> bool | None:
        """Do something after an epoch, and return whether to end training.

        Parameters
        ----------
        trainer : Trainer
        numbers : mapping of str to float
            The epoch's numbers, see `History.epochs`.

        Returns
        -------
        bool or None
            True to end training.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the callback's state, for `Trainer.save` to write.

        Returns
        -------
        dict
            Values are numbers, strings, arrays, random generators, and lists, tuples,
            sets and dicts of these. Empty by default.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that `state_dict` has returned.

        Called by the first `Trainer.fit` after `Trainer.load`.

        Parameters
        ----------
        state : mapping
        """

    @property
    def state_key(self) -> str:
        """The key of this callback's state in a file: its class, by default.

        Subclasses add their settings. Callbacks of one key are told apart by order.
        """
        return type(self).__qualname__


class Best:
    """The best value so far of the number `name` of an epoch."""

    def __init__(self, name: str, better: Better) -> None:
        if better not in ("less", "more"):
            raise ValueError(f"better must be 'less' or 'more', got {better!r}")
        self.name, self._sign = name, 1 if better == "less" else -1
        self.value: float | None = None

    def of(self, numbers: Mapping[str, float]) -> float:
        """Return the number's value in an epoch's `numbers`."""
        if self.name not in numbers:
            known = ", ".join(sorted(numbers))
            raise KeyError(f"no number of an epoch is called {self.name!r}: {known}")
        return numbers[self.name]

    def is_better(self, value: float, than: float | None) -> bool:
        """Return whether `value` is better; any is better than None or NaN."""
        return than is None or self._sign * value < self._sign * than or than != than

    def improves(self, value: float) -> bool:
        """Return whether a value is the best so far; if it is, keep it."""
        if value == value and self.is_better(value, self.value):
            self.value = value
            return True
        return False

    def key(self, of: Callback, *others: str) -> str:
        """Return the `state_key` of a callback `of` this number, with `others`."""
        better = "less" if self._sign == 1 else "more"
        return f"{type(of).__qualname__}({', '.join([self.name, better, *others])})"


class Patience(Callback):
    """Ends training when a number has not become better for some epochs.

    Parameters
    ----------
    name : str
        The name of the number, such as ``"val_loss"``.
    better : {"less", "more"}
    epochs : int
        Training ends after `epochs` epochs in a row without a better value.
    smooth : bool
        Whether to compare the mean of the last `epochs` with that of the `epochs`
        before them, in place of single values with the best one.
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
    """Ends training when a number has reached a value.

    Parameters
    ----------
    name : str
        The name of the number.
    value : float
    better : {"less", "more"}
        Whether the number must be at most `value`, or at least.
    """

    def __init__(self, name: str, value: float, better: Better = "less") -> None:
        self._best, self._value = Best(name, better), value

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
        The file, see `Trainer.save`; it is replaced each time.
    best : str, optional
        The name of the number that must be the best so far. By default every epoch is
        saved.
    better : {"less", "more"}
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        best: str | None = None,
        better: Better = "less",
    ) -> None:
        self._path = path
        self._best = None if best is None else Best(best, better)

    def after_epoch(self, trainer: Any, numbers: Mapping[str, float]) -> None:
        if self._best is None or self._best.improves(self._best.of(numbers)):
            trainer.save(self._path)

    def state_dict(self) -> dict[str, Any]:
        return {} if self._best is None else {"best": self._best.value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._best is not None:
            self._best.value = state["best"]

    @property
    def state_key(self) -> str:
        return super().state_key if self._best is None else self._best.key(self)
