"""An explanation as text, as HTML and as a plot with a bar for each rank.

Notebooks are light or dark, and remove style sheets from HTML that they do not trust.
So text and lines inherit their colour, and each element has its style inline. The HTML
is also well-formed XML.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

from .facts import Facts
from .words import (
    Sentence,
    call_sentences,
    head,
    milliseconds,
    node_name,
    number,
    time_sentences,
)

WIDTH = 100
"""The most columns of the text."""
_INDENT = 14

_LINE = "border-bottom:1px solid currentColor"
_CELL = "padding:0.15em 1em 0.15em 0;vertical-align:top;text-align:"
_LONGEST, _HIGH = 240, 12
"""Pixels: the length of the longest bar, and the height of each bar."""


class Phase(NamedTuple):
    """A part of a bar: its key, label and colour.

    The colours are those of Okabe and Ito, which the colour-blind can distinguish, and
    a grey for waiting; all are visible on white and on black.
    """

    key: str
    label: str
    colour: str


PHASES = (
    Phase("rows", "taking rows", "#56b4e9"),
    Phase("compute", "compute on rows", "#0072b2"),
    Phase("common", "compute on every rank", "#009e73"),
    Phase("wait", "wait", "#999999"),
    Phase("reduce", "reduce", "#e69f00"),
    Phase("nodes", "between nodes", "#d55e00"),
    Phase("serial", "serial run", "#cc79a7"),
)
"""All phases, in the order in which bars stack them."""


@dataclass(frozen=True)
class Bar:
    """The mean time of a call on a rank, or the time of the serial run.

    `parts` has milliseconds by phase; here "compute" does not include "common".
    """

    label: str
    rows: float
    parts: dict[str, float]

    @property
    def total(self) -> float:
        """Milliseconds of all parts."""
        return sum(self.parts.values())


def bars(facts: Facts) -> list[Bar]:
    """Return a bar for each rank whose times are known, and for the serial run."""
    calls, serial = facts.calls, facts.serial
    several = len(facts.nodes) > 1
    keys = [phase.key for phase in PHASES if phase.key != "serial"]
    found = []
    for times in [] if calls is None else calls.ranks:
        parts = {key: getattr(times, key) for key in keys if key != "nodes" or several}
        parts["compute"] -= times.common
        place = f" (node {times.node})" if several else ""
        found.append(Bar(f"rank {times.rank}{place}", times.share, parts))
    if serial is not None:
        found.append(Bar("serial run", serial.rows, {"serial": serial.milliseconds}))
    return found


def _phases(shown: list[Bar]) -> list[Phase]:
    """Return the phases of the bars.

    If no time is common to all ranks, "compute" and "common" are one phase.
    """
    used = [phase for phase in PHASES if any(phase.key in bar.parts for bar in shown)]
    if any(bar.parts.get("common") for bar in shown):
        return used
    return [
        phase._replace(label="compute") if phase.key == "compute" else phase
        for phase in used
        if phase.key != "common"
    ]


# -- text


def as_text(facts: Facts) -> str:
    """Return an explanation as text."""
    lines = [head(facts)]
    for entry in call_sentences(facts):
        lines += _wrapped(entry)
    lines += _table_of_times(facts)
    for entry in time_sentences(facts):
        lines += _wrapped(entry)
    if facts.verdict:
        lines += textwrap.wrap(f"{facts.verdict}.", WIDTH, break_on_hyphens=False)
    return "\n".join(lines)


def _wrapped(entry: Sentence) -> list[str]:
    return textwrap.wrap(
        entry.text,
        WIDTH,
        initial_indent=f"  {entry.label:{_INDENT - 2}}",
        subsequent_indent=" " * _INDENT,
        break_on_hyphens=False,
    )


def _table_of_times(facts: Facts) -> Iterator[str]:
    """Yield the lines of the table of times; with several nodes, ranks by node."""
    nodes = facts.nodes
    if facts.calls is None or not facts.calls.ranks:
        return
    titles = ["rows", "taking rows", "compute", "wait", "reduce"]
    titles += ["nodes"] * bool(nodes)
    yield " " * _INDENT + "".join(f"{title:>13}" for title in titles)
    node = None
    for row in facts.calls.ranks:
        if nodes and row.node != node:
            node = row.node
            yield f"  {node_name(node, nodes[node])}"
        times = [row.rows, row.compute, row.wait, row.reduce]
        times += [row.nodes] * bool(nodes)
        cells = "".join(f"{milliseconds(time):>13}" for time in times)
        label = f"rank {row.rank}"
        yield f"  {label:{_INDENT - 2}}{number(row.share):>13}{cells}"


# -- HTML


def as_html(facts: Facts) -> str:
    """Return a ``div`` with all sentences of the text, and a bar for each rank."""
    shown = bars(facts)
    entries = [
        [
            _row_head(label),
            f'<td style="{_CELL}left;max-width:50em">{escape(text)}</td>',
        ]
        for label, text in (*call_sentences(facts), *time_sentences(facts))
    ]
    parts = [
        '<div class="synk-explanation" style="color:inherit;line-height:1.4">',
        f"<div><b>{escape(head(facts))}</b></div>",
        *_table("What it does", [], entries),
    ]
    if shown:
        parts += _bars_in_html(shown)
    if facts.verdict:
        parts.append(f'<div style="max-width:60em">{escape(facts.verdict)}.</div>')
    return "\n".join([*parts, "</div>"])


def _row_head(label: str) -> str:
    style = f"{_CELL}left;white-space:nowrap"
    return f'<th scope="row" style="{style}">{escape(label)}</th>'


def _table(label: str, titles: list[str], rows: Iterable[list[str]]) -> Iterator[str]:
    yield (
        f'<table aria-label="{escape(label)}" style="border-collapse:collapse;'
        'color:inherit;margin:0.5em 0">'
    )
    if titles:
        cells = "".join(f'<th style="{_CELL}right">{title}</th>' for title in titles)
        yield f'<thead><tr style="{_LINE}">{cells}</tr></thead>'
    yield "<tbody>"
    for row in rows:
        yield f"<tr>{''.join(row)}</tr>"
    yield "</tbody></table>"


def _bars_in_html(shown: list[Bar]) -> Iterator[str]:
    used = _phases(shown)
    longest = max(bar.total for bar in shown)
    columns = [phase for phase in used if phase.key != "serial"]  # it is all one part
    titles = ["", "", "rows", *map(_phase_title, columns), "all"]
    rows = []
    for bar in shown:
        times = [bar.parts.get(phase.key) for phase in columns]
        texts = ["" if t is None else milliseconds(t) for t in (*times, bar.total)]
        cells = [_cell(text, "right") for text in (number(bar.rows), *texts)]
        drawn = _cell(_bar_in_svg(bar, used, longest), "left")
        rows.append([_row_head(bar.label), drawn, *cells])
    return _table("Mean times in a call", titles, rows)


def _phase_title(phase: Phase) -> str:
    square = (
        f'<svg width="10" height="10" aria-hidden="true">'
        f'<rect width="10" height="10" fill="{phase.colour}"/></svg>'
    )
    return f"{square}&#160;{escape(phase.label)}"


def _cell(content: str, align: str) -> str:
    return f'<td style="{_CELL}{align};white-space:nowrap">{content}</td>'


def _bar_in_svg(bar: Bar, used: list[Phase], longest: float) -> str:
    """Return a bar as SVG; a bar of `longest` milliseconds has the full length."""
    rectangles, left = [], 0.0
    for phase in used:
        if phase.key not in bar.parts:
            continue
        time = bar.parts[phase.key]
        width = _LONGEST * time / longest if longest else 0.0
        said = escape(f"{phase.label}: {milliseconds(time)}")
        rectangles.append(
            f'<rect x="{left:.2f}" width="{width:.2f}" height="{_HIGH}"'
            f' fill="{phase.colour}"><title>{said}</title></rect>'
        )
        left += width
    return (
        f'<svg width="{_LONGEST}" height="{_HIGH}" role="img"'
        f' aria-label="{escape(bar.label)}: {milliseconds(bar.total)}">'
        f"{''.join(rectangles)}</svg>"
    )


# -- a picture


def size(facts: Facts) -> tuple[float, float]:
    """Return the size of a figure with room for the bars, in inches.

    Raises ValueError if there is no bar to draw.
    """
    shown = bars(facts)
    if not shown:
        raise ValueError(
            f"there are no times of {facts.name} to draw: call it twice at least, as"
            " the call that compiles does not count, or have explain measure it"
        )
    return 3.5 + 0.7 * len(shown), 3.5


def draw(facts: Facts, ax: Any) -> None:
    """Draw the bars with matplotlib."""
    shown = bars(facts)
    labels = [_label_with_rows(bar, shown) for bar in shown]
    bottom = [0.0] * len(shown)
    for phase in _phases(shown):
        heights = [bar.parts.get(phase.key, 0.0) for bar in shown]
        ax.bar(labels, heights, 0.6, bottom, color=phase.colour, label=phase.label)
        bottom = [low + more for low, more in zip(bottom, heights, strict=True)]
    ax.set_title(head(facts))
    ax.set_ylabel("time of a call in ms")
    ax.spines[["top", "right"]].set_visible(False)
    # Beside the bars, from top to bottom as they are stacked.
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1), reverse=True, frameon=False)


def _label_with_rows(bar: Bar, shown: list[Bar]) -> str:
    """Return a bar's label; for a serial run of other rows than a call, with these."""
    of_ranks = sum(other.rows for other in shown if "serial" not in other.parts)
    if "serial" in bar.parts and of_ranks and abs(bar.rows - of_ranks) >= 0.5:
        return f"{bar.label},\n{number(bar.rows)} rows"
    return bar.label.replace(" (", "\n(")  # the node below the rank: bars are narrow
