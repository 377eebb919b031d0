"""What training has come to, by epochs and steps."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np


class History:
    """What was measured while training.

    Attributes
    ----------
    epochs : list of dict
        For each epoch numbers by name: ``"epoch"``, ``"step"`` (how many were made
        until then), ``"loss"`` (the mean of what the steps return, by rows),
        ``"seconds"`` of its steps, ``"reading"`` (of these, for rows in files), what
        validation has returned as ``"val_..."``, and by a training rule, of the
        slowest rank, ``"exchange"`` (seconds of exchanges) and ``"wait"`` (of these,
        for other ranks), and ``"staleness"`` (the mean number of other ranks' exchanges
        between two of one).
    losses : list of float
        For each step what it has returned first.
    """

    def __init__(self) -> None:
        self.epochs: list[dict[str, float]] = []
        self.losses: list[float] = []

    def __getitem__(self, name: str) -> list[float]:
        """Return a number of every epoch, by its name."""
        return [epoch[name] for epoch in self.epochs]

    def __len__(self) -> int:
        return len(self.epochs)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to a file, as JSON.

        Parameters
        ----------
        path : str or path-like
        """
        text = json.dumps({"epochs": self.epochs, "losses": self.losses}, indent=1)
        Path(path).write_text(text)

    def to_frame(self) -> Any:
        """Return the epochs as a pandas.DataFrame.

        Raises
        ------
        ImportError
            If pandas is not installed.
        """
        import pandas as pd

        return pd.DataFrame(self.epochs)

    def add_epoch(self, losses: np.ndarray, rows: list[int], **numbers: float) -> None:
        """Take note of an epoch.

        Parameters
        ----------
        losses : numpy.ndarray, shape (steps,)
        rows : list of int
            Of each step.
        **numbers
            Of the epoch.
        """
        self.losses += [float(loss) for loss in losses]
        mean = float(np.average(losses, weights=rows)) if len(losses) else np.nan
        self.epochs.append(
            {
                "epoch": len(self.epochs) + 1,
                "step": len(self.losses),
                "loss": mean,
                **numbers,
            }
        )
