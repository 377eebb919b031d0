"""Tables of what comes before the steady state, and of memory; as rows of cells."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from . import firsts
from .rounds import Table
from .units import of_bytes, seconds, three

Grid = list[list[str]]
"""Headings, and rows with their label first."""


def grids(table: Table) -> Iterator[tuple[str, Grid]]:
    """Yield title and cells of each table there is something to say in."""
    named = {
        "first call, building included: with nothing compiled on disk / again": _first,
        f"synk as it comes: time until a call takes {firsts.FAST:g} times the median,"
        " and how many calls it has made by the end, as a multiple of those of whatever"
        " else makes most in that time from the first call on": _choosing,
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
    rows = [["..", "until it is fast", "calls"]]
    for entry in table.family.entries:
        if entry.tune:
            for column in table.cold.get(entry.label, {}):
                until = _both(table, entry.label, column, _until)
                calls = (
                    _calls(table, times, entry.label, column)
                    for times in (table.cold, table.warm)
                )
                rows.append([table.family.columns[column], until, " / ".join(calls)])
    return rows


def _calls(table: Table, of_all: dict, label: str, column: str) -> str:
    """Compare the calls of one that chooses with those of all that do not."""
    times = of_all[label][column]
    limit = sum(times)
    most = max(
        (
            firsts.calls_in(limit, of_all[other][column][0], steady)
            for other in of_all
            if other != label
            and column in of_all[other]
            and (steady := table.median(other, column)) is not None
        ),
        default=None,
    )
    if most is None:
        return "-"
    return f"{three(len(times) / most)} in {limit:.0f} s"


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


def _memory(table: Table) -> Grid:
    if not table.family.first:
        return []
    return [["..", "memory"]] + [
        [entry.label, " / ".join(of_bytes(round(part, -6)) for part in used)]
        for entry in table.family.entries
        if entry.run and (used := table.memory.get(entry.label))
    ]
