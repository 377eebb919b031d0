"""How all pictures look: their colours, sizes and lines."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import matplotlib
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

BLUE, ORANGE, GREEN, PINK = "#0072b2", "#e69f00", "#009e73", "#cc79a7"
SKY, GREY = "#56b4e9", "#999999"
"""Those of Okabe and Ito, told apart by the colour-blind, on white and on black."""

INKS = {"light": "#222222", "dark": "#dddddd"}
WIDTH = 7.2
"""Inches; a page has some 46 em."""


@contextlib.contextmanager
def of(theme: str) -> Iterator[None]:
    """Draw for a theme: dark on nothing, or light on nothing."""
    ink = INKS[theme]
    coloured = ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor")
    ticks = ("xtick.color", "ytick.color")
    settings = {
        **dict.fromkeys((*coloured, *ticks), ink),
        "font.size": 10,
        "axes.titlesize": 10,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "savefig.transparent": True,
        "savefig.bbox": "tight",
        "svg.hashsalt": "synk",  # names in the file are the same in every build
        "svg.fonttype": "path",
    }
    with matplotlib.rc_context(settings):
        yield


def ink() -> str:
    """Return the colour of text, in the theme that is drawn for."""
    return matplotlib.rcParams["text.color"]


def box(
    ax: Axes, x: float, y: float, width: float, height: float, text: str, colour: str
) -> None:
    """Draw a box of a colour, with a text in the middle."""
    ax.add_patch(
        FancyBboxPatch(
            (x, y),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.06",
            facecolor=colour + "38",  # pale, on white and on black
            edgecolor=colour,
            linewidth=1.4,
        )
    )
    ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=9)


def arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Draw an arrow."""
    ax.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=10,
            shrinkA=1,
            shrinkB=1,
            linewidth=1.1,
            color=ink(),
        )
    )
