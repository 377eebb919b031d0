"""How a graph is cut at its all-reduces: the normalisation of :doc:`training`."""

from __future__ import annotations

import pytensor.tensor as pt
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import synk

from .style import BLUE, ORANGE, SKY, WIDTH, arrow, box, ink

STAGES = ((0.0, 2.6), (4.0, 2.9), (8.3, 2.6))
"""Where each begins, and how wide it is."""


def gather() -> list[str]:
    """Return what the stages of this graph compute on, so that the drawing is true."""
    x = pt.matrix("x")
    mean = synk.ops.all_reduce(x.mean(axis=0))
    variance = synk.ops.all_reduce(((x - mean) ** 2).mean(axis=0))
    f = synk.function([x], ((x - mean) / pt.sqrt(variance + 1e-5), "gather"))
    stages = f.explain().to_dict()["stages"]
    if [len(stage["reduces"]) for stage in stages] != [1, 1, 0]:
        raise RuntimeError(f"the graph is cut in another way: {stages}")
    return [stage["computes"] for stage in stages]


def draw(computes: list[str]) -> Figure:
    """Draw the stages from left to right, with the all-reduces between them."""
    figure = Figure((WIDTH, 2.6), layout="constrained")
    ax = figure.subplots()
    ax.set_axis_off()
    ax.set_xlim(-1.7, 11.1)
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
    box(ax, 0.25, 0.85, 2.1, 0.8, "x.mean(axis=0)", BLUE)
    arrow(ax, (2.35, 1.25), (2.8, 1.25))
    box(ax, 2.8, 0.1, 1.0, 2.3, "all-\nreduce", ORANGE)
    arrow(ax, (3.8, 1.25), (4.25, 1.25))
    box(ax, 4.25, 0.85, 2.4, 0.8, "((x - mean)**2)\n.mean(axis=0)", BLUE)
    arrow(ax, (6.65, 1.25), (7.1, 1.25))
    box(ax, 7.1, 0.1, 1.0, 2.3, "all-\nreduce", ORANGE)
    arrow(ax, (8.1, 1.25), (8.55, 1.25))
    box(ax, 8.55, 0.85, 2.1, 0.8, "(x - mean)\n/ sqrt(variance)", BLUE)
    # The rows are read by all stages.
    low, ends = -0.25, (5.45, 9.6)
    ax.plot([-1.1, -1.1, ends[-1]], [0.85, low, low], color=ink(), linewidth=1.1)
    for x in ends:
        arrow(ax, (x, low), (x, 0.85))
    ax.text(2.3, low - 0.08, "each rank's own rows", ha="center", va="top", fontsize=9)
    return figure
