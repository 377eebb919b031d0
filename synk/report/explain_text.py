"""An explanation as text of at most 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from . import words
from .facts import Calls, Facts

WIDTH = 100
_INDENT = 14


def as_text(facts: Facts) -> str:
    """Return the text of an explanation."""
    lines = [words.head(facts)]
    for entry in words.plan(facts):
        lines += _wrapped(entry)
    lines += _wrapped(words.calls_made(facts.calls))
    lines += _times(facts.calls)
    for entry in (
        *words.missing_ranks(facts.calls),
        *words.exchanges(facts.exchanges),
        *words.speed(facts),
    ):
        lines += _wrapped(entry)
    if verdict := words.verdict(facts):
        lines += textwrap.wrap(verdict, WIDTH, break_on_hyphens=False)
    return "\n".join(lines)


def _wrapped(entry: words.Entry) -> list[str]:
    return textwrap.wrap(
        entry.text,
        WIDTH,
        initial_indent=f"  {entry.label:{_INDENT - 2}}",
        subsequent_indent=" " * _INDENT,
        break_on_hyphens=False,
    ) or [f"  {entry.label}"]


def _times(calls: Calls | None) -> Iterator[str]:
    if calls is None or calls.milliseconds is None:
        return
    titles = ("rows", "taking rows", "compute", "wait", "reduce")
    yield " " * _INDENT + "".join(f"{title:>13}" for title in titles)
    for row in calls.ranks:
        times = (row.rows, row.compute, row.wait, row.reduce)
        cells = "".join(f"{words.milliseconds(time):>13}" for time in times)
        label = f"rank {row.rank}"
        yield f"  {label:{_INDENT - 2}}{words.number(row.share):>13}{cells}"
