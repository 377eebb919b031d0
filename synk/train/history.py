"""`History`: losses and times of training, by epochs and steps, and a plot."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

_SPENT = {
    "compute": "#4c72b0",
    "rows": "#55a868",
    "exchange": "#dd8452",
    "wait": "#999999",
}
"""The colours of an epoch's times in the plot, from the bottom up."""


class History:
    """Losses and times of training, by epochs and steps.

    Attributes
    ----------
    epochs : list of dict
        For each epoch numbers by name: ``"epoch"``, ``"step"`` (the number of steps
        made until then), ``"loss"`` (the mean of the steps' losses, weighed by rows),
        ``"seconds"`` and their uses (see below), ``"reading"`` (seconds of these that
        were spent waiting for rows in files), ``"staleness"``, and the results of
        validation as ``"val_..."``.
    losses : list of float
        For each step, its first output.
    step_rows : list of int
        For each step, its number of rows.
    step_seconds : list of float
        For each step, its seconds on rank 0, including waits for other ranks and, by a
        rule, the exchange after the step.

    Notes
    -----
    The ``"seconds"`` of an epoch are those of its steps, without callbacks and
    validation. Four numbers say how ranks have used them, as means over the ranks,
    without overlap: ``"compute"``; ``"rows"``, to take rows of the data;
    ``"exchange"``, to reduce gradients and other values, and by a rule to exchange
    parameters; and ``"wait"``, for other ranks. An all-reduce of up to 2 kB counts as
    waiting. The rest of the seconds is for compiling the step, with the first step made
    by it, and for starting the ranks.

    ``"staleness"`` is the mean number of other ranks' exchanges between two of one
    rank: how often the centre has moved since a rank saw it; 0 in exact training.
    """

    def __init__(self) -> None:
        self.epochs: list[dict[str, float]] = []
        self.losses: list[float] = []
        self.step_rows: list[int] = []
        self.step_seconds: list[float] = []

    def __getitem__(self, name: str) -> list[float]:
        """Return the number `name` of every epoch."""
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
        """Return a history that `save` has written.

        Parameters
        ----------
        path : str or path-like

        Raises
        ------
        ValueError
            If the file has no history.
        """
        found = json.loads(Path(path).read_text())
        if not isinstance(found, dict) or found.keys() != vars(cls()).keys():
            raise ValueError(f"{os.fspath(path)} is no file of a history")
        made = cls()
        vars(made).update(found)
        return made

    def to_frame(self, of: Literal["epochs", "steps"] = "epochs") -> Any:
        """Return the epochs, or the steps, as a pandas.DataFrame.

        Parameters
        ----------
        of : {"epochs", "steps"}
            The columns for steps are ``"step"`` and ``"epoch"``, from 1 on, ``"loss"``,
            ``"rows"`` and ``"seconds"``.

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
            Where to draw; by default a new figure, unknown to pyplot.

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
        if axes is None:
            try:
                from matplotlib.figure import Figure
            except ImportError as error:
                raise ImportError(
                    "History.plot draws with matplotlib, which is not installed:"
                    " pip install 'synk[plot]', or see to_frame()"
                ) from error
            axes = Figure((12, 3.6), layout="constrained").subplots(1, 3)
        panels = list(axes)
        _draw(self.epochs, self.losses, panels)
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
        """Add an epoch.

        Parameters
        ----------
        losses, rows, seconds : sequence
            Those of the epoch's steps.
        numbers : mapping of str to float
            Further numbers of the epoch.
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


def _draw(
    epochs: Sequence[Mapping[str, float]], losses: Sequence[float], panels: Sequence
) -> None:
    """Draw losses by steps, validation by epochs, and the time of each epoch."""
    of_steps, of_epochs, of_time = panels
    of_steps.plot(range(1, len(losses) + 1), losses, linewidth=0.6, label="of a step")
    ends, means = zip(*[(of["step"], of["loss"]) for of in epochs], strict=True)
    of_steps.plot(ends, means, "k.-", label="mean of the epoch")
    of_steps.set(xlabel="step", ylabel="loss")
    numbers = [of["epoch"] for of in epochs]
    names = dict.fromkeys(n for of in epochs for n in of if n.startswith("val_"))
    for name in names or ["loss"]:
        values = [of.get(name, np.nan) for of in epochs]
        of_epochs.plot(numbers, values, ".-", label=name)
    of_epochs.set(xlabel="epoch")
    _stack(of_time, epochs, numbers)
    for panel in panels:
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.legend(frameon=False, fontsize="small")
        panel.spines[["top", "right"]].set_visible(False)


def _stack(panel: Any, epochs: Sequence[Mapping[str, float]], numbers: list) -> None:
    """Draw a bar for each epoch: its seconds, stacked by use."""
    low = np.zeros(len(epochs))
    for name, colour in _SPENT.items():
        high = np.array([of.get(name, 0.0) for of in epochs])
        panel.bar(numbers, high, 0.8, low, color=colour, label=name)
        low = low + high
    whole = np.array([of["seconds"] for of in epochs])
    rest = (whole - low).clip(0)
    panel.bar(numbers, rest, 0.8, low, color="#e5e5e5", label="compile, start")
    panel.set(xlabel="epoch", ylabel="seconds, mean of the ranks")
    usual = whole[1:].max(initial=0)
    if 0 < 2 * usual < whole[0]:  # or the first bar would dwarf the others
        panel.set_ylim(0, 1.5 * usual)
        title = f"the first, which compiles: {whole[0]:.3g} s"
        panel.set_title(title, fontsize="small")
