"""The way of one call: rows are scattered, gradients reduced, ranks joined."""

from __future__ import annotations

from matplotlib.figure import Figure

from .style import BLUE, GREEN, GREY, ORANGE, SKY, WIDTH, arrow, box, ink

LANES = (2.4, 1.2, 0.0)
"""Where the ranks are, from above."""

HIGH = 0.7


def gather() -> None:
    """Return nothing: this is a drawing."""


def draw(_: None) -> Figure:
    """Draw the ranks from above, and what they do from left to right."""
    figure = Figure((WIDTH, 3.1), layout="constrained")
    ax = figure.subplots()
    ax.set_axis_off()
    ax.set_xlim(-2.1, 9.6)
    ax.set_ylim(-0.45, 3.85)
    box(ax, -2.0, LANES[0], 1.4, HIGH, "check,\ncut rows", GREY)
    for rank, (low, rows) in enumerate(zip(LANES, (3, 3, 2), strict=True)):
        middle = low + HIGH / 2
        title = "rank 0, the script" if rank == 0 else f"rank {rank}"
        ax.text(-2.0, low + HIGH + 0.1, title, color=ink(), fontsize=9, weight="bold")
        arrow(ax, (-0.6, LANES[0] + HIGH / 2), (0.0, middle))
        box(ax, 0.0, low, 1.1, HIGH, f"{rows} rows", SKY)
        arrow(ax, (1.1, middle), (1.5, middle))
        box(ax, 1.5, low, 1.7, HIGH, "loss and\ngradient", BLUE)
        arrow(ax, (3.2, middle), (3.75, middle))
        arrow(ax, (4.65, middle), (5.15, middle))
        box(ax, 5.15, low, 1.4, HIGH, "update", GREEN)
        arrow(ax, (6.55, middle), (8.0, LANES[0] + HIGH / 2))
    box(ax, 3.75, LANES[-1] - 0.1, 0.9, 3.3, "all-\nreduce", ORANGE)
    box(ax, 8.0, LANES[0], 1.5, HIGH, "combine\noutputs", GREY)
    steps = ((-0.35, "scatter"), (2.35, "compute"), (5.85, "compute"), (7.3, "join"))
    for x, text in steps:
        ax.text(x, -0.4, text, ha="center", fontsize=9, style="italic")
    return figure
