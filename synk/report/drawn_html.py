"""The stages of a call drawn as SVG in HTML, for notebooks; see `explain_html`."""

from __future__ import annotations

from html import escape

from .facts import Facts
from .shapes import Plane, Text, plane

_LINE, _LANE, _LETTER = 18, 22, 7.4
"""Pixels: of a line's height, a lane's width, and a letter's."""


def as_svg(facts: Facts) -> str:
    """Return a ``div`` with the drawing. It is well-formed XML."""
    made = plane(facts)
    width = _LANE * (made.lanes + 1) + _LETTER * made.letters
    rectangles = [
        f'<rect x="{_LANE * box.x:.1f}" y="{_LINE * box.y:.1f}"'
        f' width="{_LANE * box.width:.1f}" height="{_LINE * box.height:.1f}"'
        f' rx="3" fill="{box.colour}"/>'
        for box in made.boxes
    ]
    texts = [_text(text) for text in made.texts]
    return "\n".join(
        [
            '<div class="synk-explanation" style="color:inherit;overflow-x:auto">',
            f"<div><b>{escape(made.title)}</b></div>",
            f'<svg width="{width:.0f}" height="{_LINE * made.height:.0f}" role="img"'
            f' aria-label="{escape(_said(made))}" font-family="monospace"'
            ' font-size="12" fill="currentColor">',
            *rectangles,
            *texts,
            "</svg></div>",
        ]
    )


def _said(made: Plane) -> str:
    """Return the drawing for those who do not see it."""
    return "; ".join(text.text for text in made.texts[made.lanes :])


def _text(text: Text) -> str:
    bold = ' font-weight="bold"' if text.is_bold else ""
    return (
        f'<text x="{_LANE * text.x:.1f}" y="{_LINE * text.y + 4:.1f}"{bold}'
        f' xml:space="preserve">{escape(text.text)}</text>'
    )
