"""Tables of what comes before the steady state, and of memory; as rows of cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from . import firsts
from .rounds import Table
from .units import of_bytes, seconds

Grid = list[list[str]]
"""Headings, and rows with their label first."""


def grids(table: Table) -> Iterator[tuple[str, Grid]]:
    """Yield title and cells of each table there is something to say in."""
    named = {
        "first call, building included: with nothing compiled on disk / again": _first,
        f"synk as it comes: time until a call takes {firsts.FAST:g} times the median,"
        " and share of the time that is lost to it, from the first call on": _choosing,
        "memory: the most that the largest process had in a call, shared pages included"
        " / of all processes together": _memory,
    }
    for title, make in named.items():
        if len(cells := make(table)) > 1:
            yield title, cells


def _first(table: Table) -> Grid:
    columns = table.family.first
    headings = [table.family.columns[column] for column in columns]
    return [["..", *headings]] + [
        [label, *(_both(table, label, column, _seconds_of_first) for column in columns)]
        for label in table.cold
    ]


def _choosing(table: Table) -> Grid:
    rows = [["..", "until it is fast", "lost"]]
    for entry in table.family.entries:
        if entry.tune:
            for column in table.cold.get(entry.label, {}):
                cells = (
                    _both(table, entry.label, column, told) for told in (_until, _lost)
                )
                rows.append([table.family.columns[column], *cells])
    return rows


def _both(
    table: Table, label: str, column: str, tell: Callable[[list[float], float], str]
) -> str:
    steady = table.median(label, column)
    if steady is None or column not in table.cold[label]:
        return "-"
    return " / ".join(
        tell(times[label][column], steady) for times in (table.cold, table.warm)
    )


def _seconds_of_first(times: list[float], steady: float) -> str:
    return seconds(times[0])


def _until(times: list[float], steady: float) -> str:
    found = firsts.until_fast(times, steady)
    return f"not in {sum(times):.0f} s" if found is None else seconds(found)


def _lost(times: list[float], steady: float) -> str:
    return f"{firsts.lost(times, steady):.1%} of {sum(times):.0f} s"


def _memory(table: Table) -> Grid:
    if not table.family.first:
        return []
    return [["..", "memory"]] + [
        [entry.label, " / ".join(of_bytes(round(part, -6)) for part in used)]
        for entry in table.family.entries
        if entry.run and (used := table.memory.get(entry.label))
    ]
