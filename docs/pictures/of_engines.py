"""synk's engines beside what else computes the same, from ``engines.inc``."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from . import tables
from .style import BLUE, GREY, ORANGE, SKY, WIDTH, ink

DOCS = Path(__file__).parents[1]

READ = "one read of X"
ROW = 0.2
"""Inches."""

CUT = 3.0
"""Times the fastest bar: longer ones are cut there."""


def gather() -> list[tables.Table]:
    """Return the tables of times."""
    found = tables.read(DOCS / "engines.inc")
    if not found:
        raise RuntimeError("docs/engines.inc has no table of times")
    return found


def draw(found: list[tables.Table]) -> Figure:
    """Draw bars side by side for the columns of a table, tables below each other."""
    heights = [ROW * len(_labels(table)) + 0.9 for table in found]
    figure = Figure((WIDTH, sum(heights)), layout="constrained")
    parts = figure.subfigures(len(found), 1, height_ratios=heights, squeeze=False)
    for (part,), table in zip(parts, found, strict=True):
        part.suptitle(table.title, fontsize=10)
        axes = part.subplots(1, len(table.columns), sharey=True, squeeze=False)[0]
        for ax, (heading, times) in zip(axes, table.columns.items(), strict=True):
            _bars(ax, heading, _labels(table), times)
    return figure


def _labels(table: tables.Table) -> list[str]:
    """Return the labels of the bars, in the order of the rows."""
    rows = dict.fromkeys(label for times in table.columns.values() for label in times)
    return [label for label in rows if not label.startswith(READ)]


def _bars(ax: Axes, heading: str, labels: list[str], times: dict) -> None:
    """Draw the times of one column, and what no bar can be shorter than."""
    shown = {label: times[label].seconds for label in labels if label in times}
    limit = CUT * min(shown.values())
    for label, seconds in shown.items():
        at = labels.index(label)
        ax.barh(at, min(seconds, limit), 0.75, color=_colour(label))
        style = {"fontsize": 7, "va": "center", "color": ink()}
        ax.text(min(seconds, limit), at, f" {seconds * 1e3:.3g}", **style)
    for label in times:
        if label.startswith(READ):
            line = times[label].seconds
            ax.axvline(line, color=ORANGE, linewidth=1.2, linestyle="--")
    ax.set_title(heading, fontsize=9)
    ax.set_xlim(0, 1.25 * limit)
    ax.set_xticks([])
    ax.set_yticks(range(len(labels)), labels, fontsize=8)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(labels) - 0.5, -0.5)


def _colour(label: str) -> str:
    if label.startswith("synk"):
        return BLUE if "as it comes" in label else SKY
    return GREY
