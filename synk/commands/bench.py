"""``python -m synk bench``: what synk costs and gains, beside the plain function."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from ..workers.affinity import usable_cores
from .bench_cases import CASES
from .bench_rows import Row


def main(argv: Sequence[str] | None = None) -> int:
    """Run the measurements and print a table.

    Parameters
    ----------
    argv : sequence of str, optional
        Command-line arguments, without the program's name.

    Returns
    -------
    int
        0, also when a target is missed: timings are no test.
    """
    parser = argparse.ArgumentParser(prog="synk bench", description=__doc__)
    cores = len(usable_cores())
    parser.add_argument("--ranks", type=int, default=cores, help="default: %(default)s")
    parser.add_argument("--quick", action="store_true", help="small sizes, few repeats")
    parser.add_argument("--only", metavar="TEXT", help="cases whose name contains this")
    parser.add_argument("--json", metavar="FILE", help="write the figures there, too")
    args = parser.parse_args(argv)
    rows: list[Row] = []
    print(f"{args.ranks} ranks on {cores} cores; medians of interleaved runs\n")
    print(f"{'':42}{'synk':>10}{'beside':>10}{'ratio':>9}  target")
    for name, case in CASES.items():
        if args.only and args.only not in name:
            continue
        for row in case(args.ranks, args.quick):
            print(_format(row), flush=True)
            rows.append(row)
    if args.json:
        with open(args.json, "w") as file:
            json.dump(
                [{**row._asdict(), "ratio": row.ratio} for row in rows], file, indent=1
            )
    return 0


def _format(row: Row) -> str:
    target = ""
    if row.target is not None:
        sign = "<=" if row.better == "<" else ">="
        target = f"{sign} {row.target:g} {'yes' if row.reached else 'NO'}"
    line = (
        f"{row.what:42}{_seconds(row.synk):>10}{_seconds(row.other):>10}"
        f"{row.ratio:>8.2f}x  {target:12}{row.beside}"
    )
    return f"{line}{'; ' + row.rate if row.rate else ''}"


def _seconds(value: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e6:.3g} us"
