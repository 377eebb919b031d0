"""What synk gains, in three figures: for the first screen of the README.

``python -m pictures.of_front``, in ``docs``, writes ``front.svg`` from the figures of
:doc:`performance`; they were measured in one go on one machine.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import matplotlib
from matplotlib.figure import Figure

from . import style, tables
from .style import BLUE, GREY, WIDTH

DOCS = Path(__file__).parents[1]


class Gain(NamedTuple):
    """What something takes by synk and by what one would use instead, in seconds."""

    what: str
    synk: float
    instead: str
    other: float


def gather() -> list[Gain]:
    """Return the three gains."""
    page = (DOCS / "performance.rst").read_text()
    ((other, synk),) = re.findall(
        r"([\d.]+) s by\s+PyMC alone, and ([\d.]+) s by", page
    )
    return [
        Gain("a chain of PyMC", float(synk), "PyMC alone", float(other)),
        _of("logistic", "a log-likelihood", "plain PyTensor, C"),
        _of("64 rows", "a training step", "plain PyTensor, C"),
    ]


def _of(column: str, what: str, instead: str) -> Gain:
    for table in tables.read(DOCS / "engines.inc"):
        times = table.columns.get(column, {})
        if instead in times:
            synk = times["synk, as it comes, 2 ranks"].seconds
            return Gain(what, synk, instead, times[instead].seconds)
    raise RuntimeError(f"engines.inc has no time of {instead!r} for {column!r}")


def shown(seconds: float) -> str:
    """Return a time as the picture has it."""
    return f"{seconds:.1f} s" if seconds > 1 else f"{seconds * 1e3:#.3g} ms"


def draw(found: list[Gain]) -> Figure:
    """Draw two bars for each: what synk takes, and the other, as parts of the other."""
    figure = Figure((WIDTH, 2.6), layout="constrained")
    ax = figure.subplots()
    ticks = []
    for i, gain in enumerate(found):
        top = -1.25 * i
        part = gain.synk / gain.other
        for at, width, colour, name, took in (
            (top, part, BLUE, "synk", gain.synk),
            (top - 0.45, 1.0, GREY, gain.instead, gain.other),
        ):
            ax.barh(at, width, 0.4, color=colour)
            ax.text(
                width + 0.015, at, f"{shown(took)}  {name}", va="center", fontsize=9
            )
        ticks.append((top - 0.22, f"{gain.what}\n{1 / part:.1f} times as fast"))
    ax.set_yticks(*zip(*ticks, strict=True))
    ax.set_xlim(0, 1.45)
    ax.tick_params(axis="y", length=0)
    ax.xaxis.set_visible(False)
    ax.spines["bottom"].set_visible(False)
    return figure


if __name__ == "__main__":
    matplotlib.use("svg")
    with style.of("light"):
        figure = draw(gather())
        figure.set_facecolor("white")  # READMEs are read on black, too
        options = {"metadata": {"Date": None}, "transparent": False}
        figure.savefig(DOCS / "front.svg", **options)
