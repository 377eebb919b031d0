"""The command line: what is measured, and where the figures go.

``python -m tests.bench``; see the docstring of the package.
"""

import argparse
import dataclasses
import itertools
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import __doc__ as description
from bench import report, rounds
from bench.families import GROUPS
from bench.rounds import Table
from bench.work import Options
from synk.workers.affinity import usable_cores

DOCS = Path(__file__).parents[2] / "docs"

QUICK = {
    "repeats": 3,
    "pause": 0.05,
    "look": 0.1,
    "turn": 0.02,
    "points": 100_000,
    "observed": 5_000,
    "chains": (1_000, 3_000),
    "layers": (784, 100, 10),
    "rows": 1024,
    "steps": ("relu 64", "tanh 64"),
    "filters": (8, 16),
    "units": (100, 10),
    "images": ("cnn 64",),
    "nbytes": (4, 65_536, 5_000_000),
}
"""Sizes that show that everything works, and no more."""


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, Options]:
    """Return the arguments, and the options that they make."""
    cores = len(usable_cores())
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    families = list(itertools.chain.from_iterable(GROUPS.values()))
    add("group", nargs="?", choices=GROUPS, help="default: all")
    add("--only", action="append", choices=families, help="can be given several times")
    add("--ranks", type=int, default=cores, help="processes; default: %(default)s")
    add("--repeats", type=int, help=f"rounds; default: {Options.repeats}")
    add("--quick", action="store_true", help="small, few rounds, no first calls")
    add("--write", action="store_true", help="write the tables into the documentation")
    args = parser.parse_args(argv)
    if args.ranks < 1 or (args.repeats is not None and args.repeats < 1):
        parser.error("--ranks and --repeats must be at least 1")
    if args.write and (args.quick or args.only):
        parser.error("--write is for all of a group in full, not for --quick or --only")
    sizes = QUICK if args.quick else {}
    options = Options(ranks=args.ranks, cores=cores, **sizes)
    if args.repeats is not None:
        options = dataclasses.replace(options, repeats=args.repeats)
    return args, options


def main(argv: Sequence[str]) -> int:
    """Run what is asked for; the exit status is 1 if any peer failed."""
    args, options = parse(argv)
    print(report.machine(options.cores))
    said = "in brackets: multiples of the first row's time"
    print(f"medians of {options.repeats} rounds; {said}\n")
    tables: dict[str, Table] = {}
    for group, families in GROUPS.items():
        if args.group not in (None, group):
            continue
        names = [name for name in families if not args.only or name in args.only]
        found = {name: measure(group, name, args.quick, options) for name in names}
        tables |= found
        if args.write:
            text = report.rst(list(found.values()), options)
            Path(DOCS, f"{group}.inc").write_text(text)
    of_what = report.versions(tables.values())
    print(", ".join(f"{name} {version}" for name, version in of_what.items()))
    return 1 if any(table.failed for table in tables.values()) else 0


def measure(group: str, name: str, quick: bool, options: Options) -> Table:
    """Run a family, and print its table."""
    table = rounds.run(GROUPS[group][name](options), options, say)
    if not quick:
        rounds.measure_firsts(table, options, say)
    print(f"{report.text(table)}\n", flush=True)
    return table


def say(what: str) -> None:
    """Tell how far the run is."""
    print(what, file=sys.stderr, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the peers end, too
    sys.exit(main(sys.argv[1:]))
