"""Callbacks that save the trainer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from .base import Best, Better, Callback


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
