"""The stages of a call as a drawing, from top to bottom: text, SVG and matplotlib.

A block of the drawing is a computation on all ranks, or a meeting of the ranks. In text
a block consists of signs, in pictures of boxes, with a lane for each rank and texts
beside the lanes.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from html import escape
from typing import Any, Literal, NamedTuple

from . import words
from .facts import Facts, StageFacts
from .shown import WIDTH
from .stages import in_all
from .words import count, first, short, some

_MOST = 4
"""The most lines of a stage that are shown."""

_COLOURS = {
    "rows": "#0072b2",
    "common": "#009e73",
    "meeting": "#e69f00",
    "end": "#999999",
}
"""Colours by `DrawnStep.kind`, those of the phases of a call; see `shown`."""

_LETTERS = 84
"""The most letters of a line of text beside boxes."""


class DrawnStep(NamedTuple):
    """A block of the drawing: its kind, a title, and texts below.

    ``rows``: each rank computes on its own rows. ``common``: every rank computes the
    same. ``meeting``: all ranks combine values. ``end``: rank 0 combines the results.
    """

    kind: Literal["rows", "common", "meeting", "end"]
    title: str
    texts: list[str]


def _title(facts: Facts) -> str:
    """Return a title: how often ranks meet in a call, and over how many bytes."""
    meetings = [stage for stage in facts.stages if stage.bytes]
    sizes = [size for stage in meetings for size in stage.bytes.values()]
    values = sum(value.op != "read" for stage in meetings for value in stage.reduces)
    several = "ranks meet"
    if facts.ranks == 1:
        several = "it runs the graph in one piece, and several would meet"
    if not meetings:
        return f"{words.head(facts)}; {several} at the end of a call alone"
    return (
        f"{words.head(facts)}; {several} {count(len(meetings), 'time')} in a call,"
        f" over {count(values, 'value')} of {words.nbytes(in_all(sizes))}"
    )


def _lanes(facts: Facts) -> int:
    """Return the number of lanes: the ranks, but 2 at least and 8 at most."""
    return min(8, max(2, facts.ranks or 2))


def _blocks(facts: Facts) -> Iterator[DrawnStep]:
    """Yield the blocks of a call, in order."""
    for level, stage in words.levels(facts.stages):
        if stage is None:
            yield DrawnStep("rows", f"and {level} more stages with their meetings", [])
        else:
            yield from _of_stage(level, stage)
    after = [
        f"{short(output.name)}: {output.op or 'of rank 0'}"
        for output in facts.outputs
        if output.combined == "combined after the call"
    ]
    if after:
        yield DrawnStep("end", "after the call", after)


def _of_stage(level: int, stage: StageFacts) -> Iterator[DrawnStep]:
    is_own = stage.computes == "on rows"
    on = "each rank on its own rows" if is_own else "every rank the same"
    texts = list(first(stage.lines, _MOST, " lines"))
    if stage.repeats:
        texts.append(f"of all rows, on every rank: {some(stage.repeats)}")
    texts += [f"gives {short(name)}" for name in stage.outputs]
    if stage.updates:
        new = "new values" if len(stage.updates) > 1 else "new value"
        texts.append(f"gives the {new} of {some(stage.updates)}")
    if stage.computes != "nothing" or texts:
        kind: Any = "rows" if is_own else "common"
        yield DrawnStep(kind, f"stage {level}, {on}", texts)
    values = words.reductions(stage)
    if stage.bytes:
        is_gather = all(value.op in ("gather", "read") for value in stage.reduces)
        what = "gather" if is_gather else "all-reduce"
        yield DrawnStep("meeting", f"{what} {words.sizes(stage)}", values)
    elif stage.reduces:
        yield DrawnStep("common", "no meeting: inputs are read", values)


# -- with signs


def as_text(facts: Facts) -> str:
    """Return the drawing as text; see :meth:`synk.Function.explain`."""
    lanes = _lanes(facts)
    numbers = " ".join(map(str, range(lanes)))
    lines = textwrap.wrap(_title(facts), WIDTH, break_on_hyphens=False)
    lines.append(f"  {numbers}")
    for block in _blocks(facts):
        lines += _in_signs(block, lanes)
    return "\n".join(lines)


def _in_signs(block: DrawnStep, lanes: int) -> Iterator[str]:
    sign, rest = "o" if block.kind == "rows" else "*", " ".join("|" * lanes)
    left = " ".join(sign * lanes)
    if block.kind == "meeting":
        left = "=" * (2 * lanes - 1)
    elif block.kind == "end":
        left, rest = "+" + "-+" * (lanes - 1), "|" + " " * (2 * lanes - 2)
    for i, text in enumerate([block.title, *block.texts]):
        indent = "   " if i == 0 else "     "
        wrapped = textwrap.wrap(
            text,
            WIDTH - 2 - len(rest) - len(indent),
            subsequent_indent="  ",
            break_on_hyphens=False,
        )
        for line in wrapped:
            yield f"  {left}{indent}{line}"
            left = rest


# -- with boxes


class Box(NamedTuple):
    """A filled rectangle, from its left upper corner."""

    x: float
    y: float
    width: float
    height: float
    colour: str


class Line(NamedTuple):
    """A line of text, from where it begins on its middle line."""

    x: float
    y: float
    text: str
    is_bold: bool = False


class Plane:
    """Boxes and lines of text: one is 1 high, a rank's lane 1 wide, y goes down.

    `letters` is the length of the longest text.
    """

    def __init__(self, facts: Facts) -> None:
        self.lanes = lanes = _lanes(facts)
        self.height, self.boxes = 1.0, list[Box]()
        self.texts = [Line(i + 0.35, 0.5, str(i), True) for i in range(lanes)]
        for block in _blocks(facts):
            lines = [
                line
                for text in block.texts
                for line in textwrap.wrap(text, _LETTERS, subsequent_indent="  ")
            ]
            top, high = self.height, 1.0 + len(lines)
            boxes = [(rank + 0.2, 0.6) for rank in range(lanes)]
            if block.kind == "meeting":
                boxes = [(0.1, lanes - 0.2)]
            elif block.kind == "end":
                del boxes[1:]
            colour = _COLOURS[block.kind]
            self.boxes += [Box(x, top + 0.1, w, high - 0.2, colour) for x, w in boxes]
            self.texts.append(Line(lanes + 0.4, top + 0.5, block.title, True))
            for i, line in enumerate(lines):
                self.texts.append(Line(lanes + 0.8, top + 1.5 + i, line))
            self.height += high + 0.2
        self.letters = max(len(line.text) for line in self.texts)


def as_html(facts: Facts) -> str:
    """Return a ``div`` with the drawing as SVG. It is well-formed XML."""
    high, wide, letter = 18, 22, 7.4  # pixels of a line, a lane, a letter
    made = Plane(facts)
    width = wide * (made.lanes + 1) + letter * made.letters
    said = "; ".join(line.text for line in made.texts[made.lanes :])
    parts = [
        '<div class="synk-explanation" style="color:inherit;overflow-x:auto">',
        f"<div><b>{escape(_title(facts))}</b></div>",
        f'<svg width="{width:.0f}" height="{high * made.height:.0f}" role="img"'
        f' aria-label="{escape(said)}" font-family="monospace"'
        ' font-size="12" fill="currentColor">',
    ]
    for box in made.boxes:
        parts.append(
            f'<rect x="{wide * box.x:.1f}" y="{high * box.y:.1f}"'
            f' width="{wide * box.width:.1f}" height="{high * box.height:.1f}"'
            f' rx="3" fill="{box.colour}"/>'
        )
    for line in made.texts:
        bold = ' font-weight="bold"' if line.is_bold else ""
        parts.append(
            f'<text x="{wide * line.x:.1f}" y="{high * line.y + 4:.1f}"{bold}'
            f' xml:space="preserve">{escape(line.text)}</text>'
        )
    return "\n".join([*parts, "</svg></div>"])


_HIGH, _WIDE, _LETTER = 0.2, 0.25, 0.075
"""Inches of a line, a lane and a letter, as matplotlib draws them."""


def size(facts: Facts) -> tuple[float, float]:
    """Return the size of a figure with room for the drawing, in inches."""
    made = Plane(facts)
    width = _WIDE * (made.lanes + 1) + _LETTER * made.letters
    return max(4.0, width), max(1.5, _HIGH * (made.height + 2))


def draw(facts: Facts, ax: Any) -> None:
    """Draw the stages with matplotlib."""
    from matplotlib.patches import Rectangle

    made = Plane(facts)
    ax.set_axis_off()
    ax.set_xlim(0, made.lanes + 1 + made.letters * _LETTER / _WIDE)
    ax.set_ylim(made.height, 0)
    for x, y, width, height, colour in made.boxes:
        ax.add_patch(Rectangle((x, y), width, height, color=colour, linewidth=0))
    for x, y, text, is_bold in made.texts:
        weight = "bold" if is_bold else "normal"
        font = {"family": "monospace", "size": 8, "weight": weight}
        ax.text(x, y, text, va="center", parse_math=False, **font)
    ax.set_title(_title(facts), loc="left", fontsize=9, parse_math=False)
