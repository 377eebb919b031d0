"""The stages of a call as boxes and texts in a plane, for the drawings of pixels.

A line of text is 1 high; y goes down. A rank's lane is 1 wide, and the texts begin to
the right of all lanes.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import NamedTuple

from .blocks import Block, blocks, lanes, title
from .facts import Facts

COLOURS = {
    "rows": "#0072b2",
    "common": "#009e73",
    "meeting": "#e69f00",
    "end": "#999999",
}
"""As the phases of a call have them: on rows, on every rank, reducing; see `bars`."""

_LETTERS = 84
"""Of a line of text, at the most."""


class Box(NamedTuple):
    """A filled rectangle, from its left upper corner."""

    x: float
    y: float
    width: float
    height: float
    colour: str


class Text(NamedTuple):
    """A line of text, from where it begins on its middle line."""

    x: float
    y: float
    text: str
    is_bold: bool = False


@dataclass
class Plane:
    """What is drawn: boxes, lines of text, and how large it all is."""

    boxes: list[Box]
    texts: list[Text]
    title: str
    lanes: int
    height: float

    @property
    def letters(self) -> int:
        """The length of the longest text."""
        return max((len(text.text) for text in self.texts), default=0)


def plane(facts: Facts) -> Plane:
    """Return the drawing of a function's stages."""
    count = lanes(facts)
    made = Plane([], [], title(facts), count, 1.0)
    for rank in range(count):
        made.texts.append(Text(rank + 0.35, 0.5, str(rank), True))
    for block in blocks(facts):
        _add(made, block)
    return made


def _add(made: Plane, block: Block) -> None:
    lines = [
        line
        for text in block.texts
        for line in textwrap.wrap(text, _LETTERS, subsequent_indent="  ")
    ]
    top, high, count = made.height, 1.0 + len(lines), made.lanes
    colour = COLOURS[block.kind]
    if block.kind == "meeting":
        made.boxes.append(Box(0.1, top + 0.1, count - 0.2, high - 0.2, colour))
    else:
        ranks = 1 if block.kind == "end" else count
        made.boxes += [
            Box(rank + 0.2, top + 0.1, 0.6, high - 0.2, colour) for rank in range(ranks)
        ]
    made.texts.append(Text(count + 0.4, top + 0.5, block.title, True))
    made.texts += [
        Text(count + 0.8, top + 1.5 + i, line) for i, line in enumerate(lines)
    ]
    made.height += high + 0.2
