"""The stages of a call drawn with matplotlib."""

from __future__ import annotations

from typing import Any

from .facts import Facts
from .shapes import plane

_LINE, _LANE, _LETTER = 0.2, 0.25, 0.075
"""Inches; see `drawn_html`."""


def size(facts: Facts) -> tuple[float, float]:
    """Return the size of a figure that has room for the drawing, in inches."""
    made = plane(facts)
    wide = _LANE * (made.lanes + 1) + _LETTER * made.letters
    return max(4.0, wide), max(1.5, _LINE * (made.height + 2))


def draw(facts: Facts, ax: Any) -> None:
    """Draw the stages from above to below."""
    from matplotlib.patches import Rectangle

    made = plane(facts)
    ax.set_axis_off()
    ax.set_xlim(0, made.lanes + 1 + made.letters * _LETTER / _LANE)
    ax.set_ylim(made.height, 0)
    for x, y, width, height, colour in made.boxes:
        ax.add_patch(Rectangle((x, y), width, height, color=colour, linewidth=0))
    for x, y, text, is_bold in made.texts:
        weight = "bold" if is_bold else "normal"
        font = {"family": "monospace", "size": 8, "weight": weight}
        ax.text(x, y, text, va="center", parse_math=False, **font)
    ax.set_title(made.title, loc="left", fontsize=9, parse_math=False)
