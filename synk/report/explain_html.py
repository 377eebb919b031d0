"""An explanation as HTML, for notebooks: tables, and a bar for each rank.

Notebooks are light or dark, and strip style sheets from what they do not trust. So text
and lines have the colour of what is around them, and styles stand at their elements.
The result is well-formed XML, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from . import words
from .bars import Bar, Phase, bars, phases
from .facts import Facts

_LINE = "border-bottom:1px solid currentColor"
_CELL = "padding:0.15em 1em 0.15em 0;vertical-align:top;text-align:"
_WIDTH, _HEIGHT = 240, 12
"""Of the longest bar, in pixels."""


def as_html(facts: Facts) -> str:
    """Return a ``div`` with everything that the text says."""
    entries = [*words.plan(facts), words.calls_made(facts.calls)]
    entries += [*words.between_nodes(facts.nodes)]
    entries += [*words.missing_ranks(facts.calls), *words.exchanges(facts.exchanges)]
    entries += words.speed(facts)
    shown = bars(facts)
    parts = [
        '<div class="synk-explanation" style="color:inherit;line-height:1.4">',
        f"<div><b>{escape(words.head(facts))}</b></div>",
        *_table("What it does", ["", ""], [_texts(*entry) for entry in entries]),
    ]
    if shown:
        parts += _times(shown)
    if verdict := words.verdict(facts):
        parts.append(f'<div style="max-width:60em">{escape(verdict)}</div>')
    return "\n".join([*parts, "</div>"])


def _texts(label: str, text: str) -> list[str]:
    return [
        f'<th scope="row" style="{_CELL}left;white-space:nowrap">{escape(label)}</th>',
        f'<td style="{_CELL}left;max-width:50em">{escape(text)}</td>',
    ]


def _table(label: str, titles: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield (
        f'<table aria-label="{escape(label)}" style="border-collapse:collapse;'
        'color:inherit;margin:0.5em 0">'
    )
    if any(titles):
        cells = "".join(titles)
        yield f'<thead><tr style="{_LINE}">{cells}</tr></thead>'
    yield "<tbody>"
    for row in rows:
        yield f"<tr>{''.join(row)}</tr>"
    yield "</tbody></table>"


# -- times


def _times(shown: list[Bar]) -> Iterator[str]:
    used = phases(shown)
    longest = max(bar.total for bar in shown)
    columns = [phase for phase in used if phase.key != "serial"]  # it is all one part
    titles = [*map(_title, ("", "", "rows")), *map(_phase_title, columns)]
    rows = [
        [_label(bar), _cell(_picture(bar, used, longest), "left")]
        + _numbers(bar, columns)
        for bar in shown
    ]
    return _table("Mean times in a call", [*titles, _title("all")], rows)


def _title(text: str) -> str:
    return f'<th style="{_CELL}right">{text}</th>'


def _phase_title(phase: Phase) -> str:
    square = (
        f'<svg width="10" height="10" aria-hidden="true">'
        f'<rect width="10" height="10" fill="{phase.colour}"/></svg>'
    )
    return _title(f"{square}&#160;{escape(phase.label)}")


def _label(bar: Bar) -> str:
    style = f"{_CELL}left;white-space:nowrap"
    return f'<th scope="row" style="{style}">{escape(bar.label)}</th>'


def _numbers(bar: Bar, columns: list[Phase]) -> list[str]:
    times = [
        words.milliseconds(bar.parts[phase.key]) if phase.key in bar.parts else ""
        for phase in columns
    ]
    texts = [words.number(bar.rows), *times, words.milliseconds(bar.total)]
    return [_cell(text, "right") for text in texts]


def _cell(content: str, align: str) -> str:
    return f'<td style="{_CELL}{align};white-space:nowrap">{content}</td>'


def _picture(bar: Bar, used: list[Phase], longest: float) -> str:
    """Return a bar whose length is its part of the longest one."""
    rectangles, left = [], 0.0
    for phase in used:
        if phase.key not in bar.parts:
            continue
        time = bar.parts[phase.key]
        width = _WIDTH * time / longest if longest else 0.0
        said = escape(f"{phase.label}: {words.milliseconds(time)}")
        rectangles.append(
            f'<rect x="{left:.2f}" width="{width:.2f}" height="{_HEIGHT}"'
            f' fill="{phase.colour}"><title>{said}</title></rect>'
        )
        left += width
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" role="img"'
        f' aria-label="{escape(bar.label)}: {words.milliseconds(bar.total)}">'
        f"{''.join(rectangles)}</svg>"
    )
