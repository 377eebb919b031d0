"""What training has come to, by epochs and steps."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from .drawn import draw, new_panels


class History:
    """What was measured while training.

    Attributes
    ----------
    epochs : list of dict
        For each epoch numbers by name: ``"epoch"``, ``"step"`` (how many were made
        until then), ``"loss"`` (the mean of what the steps return, by rows),
        ``"seconds"`` and what of these the ranks have spent, see below, ``"reading"``
        (of these, waiting for rows in files), ``"staleness"``, and what validation has
        returned as ``"val_..."``.
    losses : list of float
        For each step what it has returned first.
    step_rows : list of int
        For each step how many rows it was of.
    step_seconds : list of float
        For each step how long it took on rank 0, with what it waited for others, and
        by a rule with the exchange that came after it.

    Notes
    -----
    The ``"seconds"`` of an epoch are those of its steps: callbacks and validation are
    not in them. What ranks have spent of them are their means over the ranks:
    ``"compute"``; ``"rows"``, to take rows of the data; ``"exchange"``, to reduce
    gradients and other values, and by a rule to exchange parameters; and ``"wait"``,
    for other ranks, wherever that was. They do not overlap. An all-reduce of up to 2 kB
    counts as waiting. What is left is compiling the step, with the first one made by
    it, and starting the ranks.

    ``"staleness"`` is the mean number of other ranks' exchanges between two of one: how
    often the centre has moved since a rank saw it. Of exact training it is 0.
    """

    def __init__(self) -> None:
        self.epochs: list[dict[str, float]] = []
        self.losses: list[float] = []
        self.step_rows: list[int] = []
        self.step_seconds: list[float] = []

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
        Path(path).write_text(json.dumps(vars(self), indent=1))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return what `save` has written.

        Parameters
        ----------
        path : str or path-like

        Returns
        -------
        History

        Raises
        ------
        ValueError
            If the file is none of a history.
        """
        told = json.loads(Path(path).read_text())
        if not isinstance(told, dict) or told.keys() != vars(cls()).keys():
            raise ValueError(f"{os.fspath(path)} is no file of a history")
        made = cls()
        vars(made).update(told)
        return made

    def to_frame(self, of: Literal["epochs", "steps"] = "epochs") -> Any:
        """Return the epochs, or the steps, as a pandas.DataFrame.

        Parameters
        ----------
        of : {"epochs", "steps"}
            Of a step there are the numbers ``"step"`` and ``"epoch"``, from 1 on,
            ``"loss"``, ``"rows"`` and ``"seconds"``.

        Returns
        -------
        pandas.DataFrame

        Raises
        ------
        ImportError
            If pandas is not installed.
        """
        if of not in ("epochs", "steps"):
            raise ValueError(f"a frame is of 'epochs' or 'steps', got {of!r}")
        try:
            import pandas as pd
        except ImportError:
            raise ImportError("to_frame needs pandas: pip install pandas") from None
        if of == "epochs":
            return pd.DataFrame(self.epochs)
        steps = np.arange(1, len(self.losses) + 1)
        return pd.DataFrame(
            {
                "step": steps,
                "epoch": 1 + np.searchsorted(self["step"], steps),
                "loss": self.losses,
                "rows": self.step_rows,
                "seconds": self.step_seconds,
            }
        )

    def plot(
        self,
        path: str | os.PathLike[str] | None = None,
        axes: Sequence[Any] | None = None,
    ) -> Any:
        """Draw losses by steps, validation by epochs, and where the time went.

        This needs ``pip install 'synk[plot]'``.

        Parameters
        ----------
        path : str or path-like, optional
            The file to save the figure in; the extension says the format.
        axes : sequence of three matplotlib.axes.Axes, optional
            Where to draw. By default in a new figure, which pyplot does not know.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If there is no epoch yet.
        """
        if not self.epochs:
            raise ValueError("there is nothing to draw: no epoch was made yet")
        panels = new_panels() if axes is None else list(axes)
        draw(self.epochs, self.losses, panels)
        figure = panels[0].figure.canvas.figure  # not a SubFigure
        if path is not None:
            figure.savefig(path)
        return figure

    def add_epoch(
        self,
        losses: np.ndarray,
        rows: Sequence[int],
        seconds: Sequence[float],
        numbers: Mapping[str, float],
    ) -> None:
        """Take note of an epoch.

        Parameters
        ----------
        losses : numpy.ndarray, shape (steps,)
        rows : sequence of int
            Of each step.
        seconds : sequence of float
            Of each step.
        numbers : mapping of str to float
            Of the epoch.
        """
        self.losses += [float(loss) for loss in losses]
        self.step_rows += rows
        self.step_seconds += seconds
        mean = float(np.average(losses, weights=rows)) if len(losses) else np.nan
        self.epochs.append(
            {
                "epoch": len(self.epochs) + 1,
                "step": len(self.losses),
                "loss": mean,
                **numbers,
            }
        )
