"""``python -m synk --parallel script.py``: run a script's functions on ranks.

`commands.script` runs the unchanged script, and `parallel_functions` its functions. At
the end, one line on stderr says how many functions ran on ranks.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from ..parallel.script import parallel_functions
from . import script


def main(argv: Sequence[str]) -> int:
    """Run a script; `argv` is ``--parallel [options] script [arguments]``."""
    parser = argparse.ArgumentParser(
        prog="python -m synk --parallel",
        description="Run the functions of a script on ranks, where these are faster.",
    )
    parser.add_argument("--parallel", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--ranks", type=int, help="by default one for each core or GPU")
    parser.add_argument(
        "--every",
        action="store_true",
        help="run all functions that have rows on ranks, whatever is predicted",
    )
    parser.add_argument(
        "--explain",
        action="store_true",
        help="list at the end how each function was run, and why so",
    )
    parser.add_argument("script", help="the script")
    parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="arguments of the script"
    )
    given = parser.parse_args(argv)
    within = partial(_parallel, given.ranks, given.every, given.explain)
    return script.main([given.script, *given.arguments], within)


@contextmanager
def _parallel(n: int | None, every: bool, explains: bool) -> Iterator[None]:
    """Run functions made in a ``with`` block on ranks; print a report at its end."""
    functions = parallel_functions(n, every=every)
    try:
        with functions:
            yield
    finally:
        text = f"[synk] {functions}"
        if explains:
            text += f"\n{functions.explain()}"
        print(text, file=sys.stderr)
