"""How a graph is cut at its all-reduces: the normalisation of :doc:`training`."""

from __future__ import annotations

import pytensor.tensor as pt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import synk

from .style import BLUE, ORANGE, SKY, WIDTH, arrow, box, ink

STAGES = ((0.0, 3.6), (5.4, 3.2))
"""Where each begins, and how wide it is."""


def gather() -> list[str]:
    """Return what the stages of this graph compute on, so that the drawing is true."""
    x = pt.matrix("x")
    mean, variance = x.mean(axis=0), x.var(axis=0)
    f = synk.function([x], (x - mean) / pt.sqrt(variance + 1e-5))
    stages = f.explain().to_dict()["stages"]
    if [bool(stage["reduces"]) for stage in stages] != [True, False]:
        raise RuntimeError(f"the graph is cut in another way: {stages}")
    return [stage["computes"] for stage in stages]


def draw(computes: list[str]) -> Figure:
    """Draw the stages from left to right, with the all-reduces between them."""
    figure = Figure((WIDTH, 2.6), layout="constrained")
    ax = figure.subplots()
    ax.set_axis_off()
    ax.set_xlim(-1.7, 8.8)
    ax.set_ylim(-0.7, 3.2)
    for level, ((left, width), on) in enumerate(zip(STAGES, computes, strict=True)):
        outline = Rectangle(
            (left, 0.0), width, 2.5, fill=False, edgecolor=ink(), linestyle=":"
        )
        ax.add_patch(outline)
        ax.text(left, 2.95, f"stage {level}", fontsize=9, weight="bold")
        ax.text(left, 2.62, f"computes {on}", fontsize=9, style="italic")
    box(ax, -1.6, 0.85, 1.0, 0.8, "x", SKY)
    arrow(ax, (-0.6, 1.25), (0.25, 1.25))
    text = "x.mean(axis=0)\nand squares about it"
    box(ax, 0.25, 0.85, 3.1, 0.8, text, BLUE)
    arrow(ax, (3.35, 1.25), (4.0, 1.25))
    box(ax, 4.0, 0.1, 1.0, 2.3, "all-\nreduce", ORANGE)
    arrow(ax, (5.0, 1.25), (5.7, 1.25))
    box(ax, 5.7, 0.85, 2.6, 0.8, "(x - mean)\n/ sqrt(variance)", BLUE)
    # The rows are read by both stages.
    low, end = -0.25, 7.0
    ax.plot([-1.1, -1.1, end], [0.85, low, low], color=ink(), linewidth=1.1)
    arrow(ax, (end, low), (end, 0.85))
    ax.text(2.3, low - 0.08, "each rank's own rows", ha="center", va="top", fontsize=9)
    return figure
