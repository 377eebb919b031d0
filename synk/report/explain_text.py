"""An explanation as text of at most 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from . import words
from .facts import Facts, RankTimes

WIDTH = 100
_INDENT = 14


def as_text(facts: Facts) -> str:
    """Return the text of an explanation."""
    lines = [words.head(facts)]
    for entry in words.plan(facts):
        lines += _wrapped(entry)
    lines += _wrapped(words.calls_made(facts.calls))
    lines += _times(facts)
    for entry in (
        *words.between_nodes(facts.nodes),
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


def _times(facts: Facts) -> Iterator[str]:
    """Yield the table of times; of several nodes the ranks stand below their node."""
    calls, nodes = facts.calls, facts.nodes
    if calls is None or calls.milliseconds is None:
        return
    titles = ["rows", "taking rows", "compute", "wait", "reduce"]
    titles += ["nodes"] * bool(nodes)
    yield " " * _INDENT + "".join(f"{title:>13}" for title in titles)
    node = None
    for row in calls.ranks:
        if nodes and row.node != node:
            node = row.node
            yield f"  {words.node_name(node, nodes[node])}"
        yield _of_rank(row, bool(nodes))


def _of_rank(row: RankTimes, several_nodes: bool) -> str:
    times = [row.rows, row.compute, row.wait, row.reduce]
    times += [row.nodes] * several_nodes
    cells = "".join(f"{words.milliseconds(time):>13}" for time in times)
    label = f"rank {row.rank}"
    return f"  {label:{_INDENT - 2}}{words.number(row.share):>13}{cells}"
