"""Tables for the terminal and for docs/performance.rst, and everything as JSON."""

from __future__ import annotations

import os
import platform
import textwrap
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from . import rounds
from .rounds import Aim, Table
from .work import Options

LABEL = 36
CELL = 16
WIDTH = 96

PACKAGES = {
    "synk": "synk",
    "PyTensor": "pytensor",
    "NumPy": "numpy",
    "numba": "numba",
    "JAX": "jax",
    "torch": "torch",
    "mpi4py": "mpi4py",
    "joblib": "joblib",
    "Ray": "ray",
}


def versions(tables: Iterable[Table]) -> dict[str, str]:
    """Return the versions of what is installed, and what peers said of themselves."""
    found = {"Python": platform.python_version()}
    for name, package in PACKAGES.items():
        try:
            found[name] = metadata.version(package)
        except metadata.PackageNotFoundError:
            pass
    for table in tables:
        found |= table.versions
    return found


def machine(cores: int) -> str:
    """Describe the machine in a line."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    system = f"{platform.system()} {platform.release().split('-')[0]}"
    return f"{model}, {cores} cores usable, {memory:.0f} GiB, {system}"


# -- for the terminal


def text(table: Table) -> str:
    """Return a table of at most 100 columns."""
    family = table.family
    headings = "".join(f"{heading:>{CELL}}" for heading in family.columns.values())
    lines = textwrap.wrap(family.title, WIDTH) + [f"{'':{LABEL}}{headings}"]
    for label in table.rounds:
        cells = [_cell(table, label, column) for column in family.columns]
        lines.append(f"{label:{LABEL}}{''.join(cells)}")
    for title, rows in grids_of_firsts(table):
        lines += ["", *textwrap.wrap(title, WIDTH), *aligned(rows)]
    return "\n".join([*lines, *notes(table)])


def _cell(table: Table, label: str, column: str) -> str:
    median, ratio = table.median(label, column), table.ratio(label, column)
    if median is None:
        return f"{'-':>{CELL}}"
    times = "" if ratio is None else f"{three(ratio)}x"
    return f"{seconds(median):>{CELL - 7}}{times:>7}"


def notes(table: Table) -> list[str]:
    """Return what is to be known of a table, by lines."""
    lines = [f"skipped: {label}: {why}" for label, why in table.skipped.items()]
    lines += textwrap.wrap(" ".join(choices(table)), WIDTH)
    for label, why in table.failed.items():
        lines.append(f"FAILED: {label}: {why.splitlines()[0]}"[:WIDTH])
    lines += [line for aim in table.family.aims for line in _aim(table, aim)]
    if table.idle:
        idle = {k: v for k, v in table.idle.items() if v >= 0.01}
        shares = ", ".join(f"{name} {share:.0%}" for name, share in idle.items())
        lines += textwrap.wrap(
            f"share of a core taken while nobody is asked: {shares or 'none'}", WIDTH
        )
    return lines


def choices(table: Table) -> list[str]:
    """Return a sentence for each row that chooses by itself how to compute."""
    return [
        f"{label}, chose "
        + ", ".join(f"{name} ({table.family.columns[c]})" for c, name in of_row.items())
        + "."
        for label, of_row in table.chosen.items()
        if all(of_row.values()) and label in table.rounds
    ]


def aims(table: Table, aim: Aim) -> dict[str, tuple[float, float]]:
    """Return by column the ratio that an aim is about, and what it is to be.

    Empty, where rows or times are missing.
    """
    found = {}
    ours = aim.ours or (table.family.entries[0].label,)
    others = [label for label in table.rounds if label.startswith(aim.label)]
    for column, bound in aim.at_least.items():
        mine, theirs = (
            [t for label in labels if (t := table.median(label, column)) is not None]
            for labels in (ours, others)
        )
        if mine and theirs:
            found[column] = min(theirs) / min(mine), bound
    return found


def _aim(table: Table, aim: Aim) -> list[str]:
    parts = [
        f"{table.family.columns[column]} {three(ratio)}x (>= {bound:.3g} "
        f"{'yes' if ratio >= bound else 'NO'})"
        for column, (ratio, bound) in aims(table, aim).items()
    ]
    ours = "synk, the fastest of each" if aim.ours else "synk"
    line = f"aim, {aim.label} / {ours}: {', '.join(parts)}"
    return textwrap.wrap(line, WIDTH, subsequent_indent="    ") if parts else []


# -- for the documentation


def rst(tables: list[Table], options: Options) -> str:
    """Return the tables as reStructuredText, with versions and machine."""
    said = ", ".join(f"{name} {version}" for name, version in versions(tables).items())
    lines = textwrap.wrap(
        f"{machine(options.cores)}; {said}. Medians of {options.repeats} interleaved"
        " rounds, and in brackets the multiple of the first row's.",
        WIDTH,
        break_on_hyphens=False,
    )
    for table in tables:
        if table.rounds:
            lines += ["", *_rst_table(table)]
        for sentence in choices(table):
            said = sentence[0].upper() + sentence[1:]
            lines += ["", *textwrap.wrap(said, WIDTH, break_on_hyphens=False)]
        for title, rows in grids_of_firsts(table):
            lines += ["", *rst_grid(title, rows)]
        for label, why in table.skipped.items():
            lines += ["", f"Not measured: {label} ({why})."]
    return "\n".join(lines) + "\n"


def _rst_table(table: Table) -> list[str]:
    family = table.family
    rows = [["..", *family.columns.values()]]
    for label in table.rounds:
        cells = [_rst_cell(table, label, column) for column in family.columns]
        rows.append([label, *cells])
    return rst_grid(family.title, rows)


def rst_grid(title: str, rows: list[list[str]]) -> list[str]:
    """Return rows of cells as a table, the first row its headings."""
    rule = "  ".join("=" * width for width in _widths(rows))
    head, *body = aligned(rows)
    lines = textwrap.wrap(f"{title[0].upper()}{title[1:]}:", WIDTH)
    return [*lines, "", rule, head, rule, *body, rule]


def aligned(rows: list[list[str]]) -> list[str]:
    """Return a line for each row, cells below each other."""
    widths = _widths(rows)
    return [
        "  ".join(
            f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def _widths(rows: list[list[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _rst_cell(table: Table, label: str, column: str) -> str:
    median, ratio = table.median(label, column), table.ratio(label, column)
    if median is None:
        return "\\-"
    return seconds(median) + ("" if ratio is None else f" ({three(ratio)})")


# -- for programs


def as_json(tables: dict[str, Table], options: Options) -> dict[str, Any]:
    """Return everything, each round included; times are in seconds."""
    return {
        "machine": machine(options.cores),
        "versions": versions(tables.values()),
        "options": vars(options),
        "tables": {name: _table_as_json(table) for name, table in tables.items()},
    }


def _table_as_json(table: Table) -> dict[str, Any]:
    columns = table.family.columns
    return {
        "title": table.family.title,
        "columns": columns,
        "medians": {
            label: {column: table.median(label, column) for column in columns}
            for label in table.rounds
        },
        "ratios": {
            label: {column: table.ratio(label, column) for column in columns}
            for label in table.rounds
        },
        "rounds": table.rounds,
        "cold": table.cold,
        "warm": table.warm,
        "chosen": table.chosen,
        "memory": {label: used._asdict() for label, used in table.memory.items()},
        "aims": {aim.label: aims(table, aim) for aim in table.family.aims},
        "skipped": table.skipped,
        "failed": table.failed,
        "idle": table.idle,
    }


# -- what comes before the steady state, and memory; as rows of cells

Grid = list[list[str]]
"""Headings, and rows with their label first."""


def grids_of_firsts(table: Table) -> Iterator[tuple[str, Grid]]:
    """Yield title and cells of each table there is something to say in."""
    named = {
        "first call, building included: with nothing compiled on disk / again": _first,
        f"synk as it comes: time until a call takes {rounds.FAST:g} times the median,"
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
            rounds.calls_in(limit, of_all[other][column][0], steady)
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
    found = rounds.until_fast(times, steady)
    return f"not in {sum(times):.0f} s" if found is None else seconds(found)


def _memory(table: Table) -> Grid:
    if not table.family.first:
        return []
    return [["..", "memory"]] + [
        [entry.label, " / ".join(of_bytes(round(part, -6)) for part in used)]
        for entry in table.family.entries
        if entry.run and (used := table.memory.get(entry.label))
    ]


# -- how numbers are written


def seconds(value: float) -> str:
    """Write a time.

    >>> seconds(1.234), seconds(0.0567), seconds(2.5e-6), seconds(0.9999)
    ('1.23 s', '56.7 ms', '2.50 us', '1.00 s')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= 0.9995 * size:
            return f"{three(value / size)} {unit}"
    return f"{three(value * 1e6)} us"


def three(value: float) -> str:
    """Write a number with three digits, but no more than two behind the point.

    >>> three(0.0123), three(1), three(12.34), three(999.6)
    ('0.01', '1.00', '12.3', '1000')
    """
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"


def of_bytes(nbytes: int) -> str:
    """Write a number of bytes.

    >>> of_bytes(4), of_bytes(65_536), of_bytes(5_000_000)
    ('4 B', '64 KiB', '5 MB')
    """
    if nbytes < 1024:
        return f"{nbytes} B"
    if nbytes % 1024 == 0 and nbytes < 1 << 20:
        return f"{nbytes // 1024} KiB"
    return f"{nbytes / 1e6:g} MB"
