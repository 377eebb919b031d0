"""An explanation as a picture, drawn with matplotlib."""

from __future__ import annotations

import os
from typing import Any

from . import drawn_plot
from .bars import bars, label_with_rows, phases
from .facts import Facts
from .words import head


def plot_stages(facts: Facts, path: str | os.PathLike | None, ax: Any) -> Any:
    """Draw the stages of a call; see :meth:`synk.Explanation.plot`."""
    if ax is None:
        ax = _new_axes(path is not None, drawn_plot.size(facts))
    drawn_plot.draw(facts, ax)
    return _saved(ax, path)


def plot(facts: Facts, path: str | os.PathLike | None, ax: Any) -> Any:
    """Draw the bars of an explanation; see :meth:`synk.Explanation.plot`."""
    shown = bars(facts)
    if not shown:
        raise ValueError(
            f"there are no times of {facts.name} to draw: call it twice at least, as"
            " the call that compiles does not count, or have explain measure it"
        )
    if ax is None:
        ax = _new_axes(path is not None, (3.5 + 0.7 * len(shown), 3.5))
    labels = [label_with_rows(bar, shown) for bar in shown]
    bottom = [0.0] * len(shown)
    for phase in phases(shown):
        heights = [bar.parts.get(phase.key, 0.0) for bar in shown]
        ax.bar(labels, heights, 0.6, bottom, color=phase.colour, label=phase.label)
        bottom = [low + more for low, more in zip(bottom, heights, strict=True)]
    ax.set_title(head(facts))
    ax.set_ylabel("time of a call in ms")
    ax.spines[["top", "right"]].set_visible(False)
    # Beside the bars, from top to bottom as they are stacked.
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1), reverse=True, frameon=False)
    return _saved(ax, path)


def _saved(ax: Any, path: str | os.PathLike | None) -> Any:
    if path is not None:
        ax.figure.canvas.figure.savefig(path, bbox_inches="tight")  # not of a SubFigure
    return ax


def _new_axes(is_saved: bool, size: tuple[float, float]) -> Any:
    """Return axes of pyplot's, which it will show, or of a figure of their own."""
    try:
        from matplotlib import pyplot
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "Explanation.plot draws with matplotlib, which is not installed:"
            " pip install 'synk[plot]', or print the explanation"
        ) from error
    figure = Figure(size) if is_saved else pyplot.figure(figsize=size)
    return figure.subplots()
