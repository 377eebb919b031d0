"""The command line: what is measured, and where the figures go."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from synk.workers.affinity import usable_cores

from . import __doc__ as description
from . import report, rounds
from .families import FAMILIES
from .options import Options

QUICK = {
    "repeats": 3,
    "pause": 0.05,
    "look": 0.1,
    "turn": 0.02,
    "layers": (784, 100, 10),
    "rows": 1024,
    "batches": (64, 512),
    "alone": 64,
    "nbytes": (4, 65_536, 5_000_000),
}
"""Sizes that show that everything works, and no more."""


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, Options]:
    """Return the arguments, and the options that they make."""
    cores = len(usable_cores())
    parser = argparse.ArgumentParser(
        prog="python tests/bench",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--only", action="append", choices=FAMILIES, help="can be given several times")
    add("--ranks", type=int, default=cores, help="processes; default: %(default)s")
    add("--repeats", type=int, help=f"rounds; default: {Options.repeats}")
    add("--activation", choices=["relu", "tanh"], default=Options.activation)
    add("--quick", action="store_true", help="small sizes, few rounds, no aims")
    add("--oversubscribe", action="store_true", help="passed on to mpirun")
    add("--json", metavar="FILE", help="write everything there, by rounds")
    add("--rst", metavar="FILE", help="write the tables there, for the documentation")
    args = parser.parse_args(argv)
    if args.ranks < 1 or (args.repeats is not None and args.repeats < 1):
        parser.error("--ranks and --repeats must be at least 1")
    options = Options(
        ranks=args.ranks,
        cores=cores,
        activation=args.activation,
        oversubscribe=args.oversubscribe,
        **(QUICK if args.quick else {}),
    )
    if args.repeats is not None:
        options = dataclasses.replace(options, repeats=args.repeats)
    return args, options


def main(argv: Sequence[str]) -> int:
    """Run what is asked for; the exit status is 1 if any peer failed."""
    args, options = parse(argv)
    print(report.machine(options.cores))
    print(
        f"medians of {options.repeats} rounds; x: multiples of the first row's time\n"
    )
    tables = {}
    for name, make in FAMILIES.items():
        if args.only and name not in args.only:
            continue
        family = make(options)
        if args.quick or options.ranks != 2:
            family.aims.clear()  # they are meant for the full sizes, on two cores
        tables[name] = rounds.run(family, options, say)
        print(f"{report.text(tables[name])}\n", flush=True)
    said = ", ".join(f"{k} {v}" for k, v in report.versions(tables.values()).items())
    print(said)
    if args.json:
        Path(args.json).write_text(
            json.dumps(report.as_json(tables, options), indent=1) + "\n"
        )
    if args.rst:
        Path(args.rst).write_text(report.rst(list(tables.values()), options))
    return 1 if any(table.failed for table in tables.values()) else 0


def say(what: str) -> None:
    """Tell how far the run is."""
    print(what, file=sys.stderr, flush=True)
