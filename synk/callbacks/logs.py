"""Callbacks that write the numbers of epochs to files."""

from __future__ import annotations

import csv
import functools
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from .base import Callback


class _Log(Callback):
    """A file of the numbers of each epoch, from the first epoch with this callback on.

    After `Trainer.load` the file is written anew from the history, so it has each epoch
    once, even if the former run had gone on after the save, or the log was removed.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._first: int | None = None
        self._is_open = False

    def after_epoch(self, trainer: Any, numbers: Mapping[str, float]) -> None:
        epochs = [numbers]
        if self._first is None:
            self._first = int(numbers.get("epoch", 1))
        elif not self._is_open:
            epochs = trainer.history.epochs[self._first - 1 :]
        with self._path.open("a" if self._is_open else "w", newline="") as file:
            self._write(file, epochs, not self._is_open)
        self._is_open = True

    def _write(
        self, file: TextIO, epochs: Sequence[Mapping[str, float]], is_new: bool
    ) -> None:
        """Write epochs' numbers to the file, which is empty if `is_new`."""
        raise NotImplementedError

    def state_dict(self) -> dict[str, Any]:
        return {"first": self._first}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._first, self._is_open = state["first"], False


class CSVLog(_Log):
    """Writes the numbers of each epoch to a file, as lines of comma-separated values.

    Parameters
    ----------
    path : str or path-like
        The first epoch replaces an old file. After `Trainer.load` the file has the
        earlier epochs, too.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._names: list[str] = []

    def _write(
        self, file: TextIO, epochs: Sequence[Mapping[str, float]], is_new: bool
    ) -> None:
        if is_new:
            self._names = list(epochs[0])
        writer = csv.DictWriter(file, self._names, extrasaction="ignore")
        if is_new:
            writer.writeheader()
        writer.writerows(dict(numbers) for numbers in epochs)


class JSONLog(_Log):
    """Writes the numbers of each epoch to a file, each as a line of JSON.

    Parameters
    ----------
    path : str or path-like
        The first epoch replaces an old file. After `Trainer.load` the file has the
        earlier epochs, too. Numbers that JSON does not have, as NaN, are null.
    """

    def _write(
        self, file: TextIO, epochs: Sequence[Mapping[str, float]], is_new: bool
    ) -> None:
        for numbers in epochs:
            line = {k: v if math.isfinite(v) else None for k, v in numbers.items()}
            file.write(json.dumps(line) + "\n")


class TensorBoard(Callback):
    """Writes the numbers of each epoch for TensorBoard.

    Parameters
    ----------
    folder : str or path-like
        The folder of the logs. After `Trainer.load`, TensorBoard does not show later
        steps that the former run has written.

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
        self._open = functools.partial(SummaryWriter, os.fspath(folder))
        self._writer: Any = None
        self._step: int | None = None

    def after_epoch(self, trainer: Any, numbers: Mapping[str, float]) -> None:
        if self._writer is None:
            later = {} if self._step is None else {"purge_step": self._step + 1}
            self._writer = self._open(**later)
        self._step = int(numbers["step"])
        for name, value in numbers.items():
            if name not in ("epoch", "step"):
                self._writer.add_scalar(name, value, self._step)
        self._writer.flush()

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer, self._step = None, state["step"]
