"""``python -m synk tune``: list the records of `synk.tune`, or clear them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ..choice import records
from ..choice.records import Record
from ..report.words import count


def tune(argv: Sequence[str]) -> int:
    """List the records, or delete them."""
    parser = argparse.ArgumentParser(prog="python -m synk tune", description=__doc__)
    parser.add_argument("--clear", action="store_true", help="delete all records")
    if parser.parse_args(argv).clear:
        many = records.clear()
        print(f"{count(many, 'record')} deleted")
        return 0
    found = records.listed()
    for record in found:
        print(_line(record))
    if not found:
        print("there are no records of synk.tune")
    return 0


def _line(record: Record) -> str:
    """Return a record as text: the function, the fastest plan, and all times."""
    machine = f"{record.ranks} ranks with {record.cores} cores each"
    head = f"{record.function}, about {record.rows:,} rows, {machine}"
    ways = sorted(record.measured.items(), key=lambda way: way[1])
    times = ", ".join(f"{name} {seconds * 1e3:.3g} ms" for name, seconds in ways)
    other = "" if record.here else " (for other versions or another processor)"
    return f"{head}{other}:\n  {record.plan.name}; {times}"
