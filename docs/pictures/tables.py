"""The tables that ``python -m tests.bench`` writes for these pages, read again."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

RULE = re.compile("=+(  =+)+$")
CELL = re.compile(r"([\d.]+) (us|ms|s) \(([\d.]+)\)$")
UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


class Time(NamedTuple):
    """A cell: seconds, and the multiple of the first row's."""

    seconds: float
    ratio: float


class Table(NamedTuple):
    """A table of times, by column and row; cells without any are left out."""

    title: str
    columns: dict[str, dict[str, Time]]


def read(path: Path) -> list[Table]:
    """Return the tables of times of a file."""
    lines = path.read_text().splitlines()
    rules = [i for i, line in enumerate(lines) if RULE.match(line)]
    found = []
    for top, middle, bottom in zip(rules[::3], rules[1::3], rules[2::3], strict=True):
        ends = [match.span() for match in re.finditer("=+", lines[top])]
        cells = [
            [line[start:end].strip() for start, end in ends]
            for line in (lines[top + 1], *lines[middle + 1 : bottom])
        ]
        if columns := _columns(cells):
            found.append(Table(_title(lines[:top]), columns))
    return found


def _columns(cells: list[list[str]]) -> dict[str, dict[str, Time]]:
    columns: dict[str, dict[str, Time]] = {}
    (_, *headings), *rows = cells
    for label, *of_row in rows:
        for heading, cell in zip(headings, of_row, strict=True):
            if match := CELL.match(cell):
                value, unit, ratio = match.groups()
                time = Time(float(value) * UNITS[unit], float(ratio))
                columns.setdefault(heading, {})[label] = time
    return columns


def _title(lines: list[str]) -> str:
    """Return the paragraph that these lines end with."""
    text = "\n".join(lines).rstrip()
    return " ".join(text.rpartition("\n\n")[2].split()).rstrip(":")
