"""Tables for the terminal, and for docs/performance.rst."""

import contextlib
import os
import platform
import textwrap
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from .rounds import Table
from .work import Options

WIDTH = 96

PACKAGES = (
    *("synk", "PyTensor", "NumPy", "numba", "JAX", "torch", "PyMC", "mpi4py"),
    *("joblib", "Ray"),
)

Grid = list[list[str]]
"""Headings, and rows with their label first."""


def versions(tables: Iterable[Table]) -> dict[str, str]:
    """Return the versions of what is installed, and what peers said of themselves."""
    found = {"Python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
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


# -- the tables


def text(table: Table) -> str:
    """Return what is said of a table in the terminal."""
    lines = []
    for title, rows in grids(table):
        lines += [*textwrap.wrap(title, WIDTH), "", *aligned(rows), ""]
    lines += [f"skipped: {label}: {why}" for label, why in table.skipped.items()]
    lines += textwrap.wrap(" ".join(choices(table)), WIDTH)
    for label, why in table.failed.items():
        lines.append(f"FAILED: {label}: {why.splitlines()[0]}"[:WIDTH])
    lines.append(f"processors while nobody was asked: {table.busy:.0f} % taken")
    return "\n".join(lines)


def rst(tables: list[Table], options: Options) -> str:
    """Return the tables as reStructuredText, with versions and machine."""
    said = ", ".join(f"{name} {version}" for name, version in versions(tables).items())
    said = f"{machine(options.cores)}; {said}. Medians of {options.repeats} interleaved"
    said += " rounds, and in brackets the multiple of the first row's."
    lines = _wrapped(said)
    for table in tables:
        for title, rows in grids(table):
            head, *body = aligned(rows)
            rule = "  ".join("=" * width for width in _widths(rows))
            lines += ["", *_wrapped(title), "", rule, head, rule, *body, rule]
        for sentence in choices(table):
            lines += ["", *_wrapped(sentence)]
        for label, why in table.skipped.items():
            lines += ["", f"Not measured: {label} ({why})."]
    return "\n".join(lines) + "\n"


def _wrapped(sentence: str) -> list[str]:
    return textwrap.wrap(sentence, WIDTH, break_on_hyphens=False)


def choices(table: Table) -> list[str]:
    """Return a sentence for each row that chooses by itself how to compute."""
    return [
        f"{label[0].upper()}{label[1:]}, chose "
        + ", ".join(f"{name} ({table.family.columns[c]})" for c, name in of_row.items())
        + "."
        for label, of_row in table.chosen.items()
        if all(of_row.values()) and label in table.rounds
    ]


def grids(table: Table) -> Iterator[tuple[str, Grid]]:
    """Yield title and cells of each table there is something to say in."""
    family = table.family
    first = {column: family.columns[column] for column in family.first}
    times = [
        [label, *(_time(table, label, column) for column in family.columns)]
        for label in table.rounds
    ]
    firsts = [
        [label, *(_first(of_row.get(column)) for column in first)]
        for label, of_row in table.firsts.items()
    ]
    memory = [
        [label, of_bytes(round(used, -6))]
        for label, used in table.memory.items()
        if label in table.firsts
    ]
    title = f"{family.title[0].upper()}{family.title[1:]}:"
    of_firsts = "First call, building included: with nothing compiled on disk / again:"
    of_memory = "Memory: of all processes together, shared pages once:"
    for what, headings, rows in (
        (title, family.columns.values(), times),
        (of_firsts, first.values(), firsts),
        (of_memory, ["memory"], memory),
    ):
        if rows:
            yield what, [["..", *headings], *rows]


def _time(table: Table, label: str, column: str) -> str:
    median, ratio = table.median(label, column), table.ratio(label, column)
    if median is None:
        return "\\-"
    return seconds(median) + ("" if ratio is None else f" ({three(ratio)})")


def _first(found: list[float] | None) -> str:
    return " / ".join(map(seconds, found)) if found else "\\-"


def aligned(rows: Grid) -> list[str]:
    """Return a line for each row, cells below each other."""
    widths = _widths(rows)
    return [
        "  ".join(
            f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def _widths(rows: Grid) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


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
