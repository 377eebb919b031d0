"""What a callback is, and the best of the numbers that one looks at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

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

    def state_dict(self) -> dict[str, Any]:
        """Return what is kept from epoch to epoch, for `Trainer.save` to write.

        Returns
        -------
        dict
            Of numbers, strings, arrays, random generators, and lists, tuples, sets and
            dicts of these. Empty by default.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with what `state_dict` has returned.

        It is called by the first `Trainer.fit` after `Trainer.load`.

        Parameters
        ----------
        state : mapping
        """

    @property
    def state_key(self) -> str:
        """By what a file knows this callback again: its class, and what it is about.

        Several of one key are told apart by their order.
        """
        return type(self).__qualname__


class Best:
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

    def key(self, of: Callback, *others: str) -> str:
        """Return by what a file knows a callback that looks at this number."""
        better = "less" if self._sign == 1 else "more"
        return f"{type(of).__qualname__}({', '.join([self.name, better, *others])})"
