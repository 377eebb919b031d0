"""`python -m synk`: run an old script, or look at what synk finds on this machine."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module

COMMANDS = {
    "info": "print versions, cores, memory and what synk.fork() would do",
    "bench": "measure calls, reductions and speed-ups on this machine",
    "tune": "list the records that synk.tune has written, or clear them",
    "ps": "list the running sessions of this user, and what their ranks do",
    "clean": "end what sessions have left whose master is gone",
}


def main(argv: list[str] | None = None) -> int:
    """Run a subcommand, or a script, and return its exit status.

    Parameters
    ----------
    argv : list of str, optional
        The arguments after the program's name, by default those of this process.
    """
    argv = sys.argv[1:] if argv is None else argv
    first = argv[0] if argv else ""
    if first not in COMMANDS and (first.endswith(".py") or os.path.isfile(first)):
        return import_module("synk.commands.script").main(argv)
    parser = argparse.ArgumentParser(
        prog="python -m synk",
        description=__doc__,
        epilog="python -m synk SCRIPT.py [ARGUMENTS] runs a script in which `theano`"
        " and `synkhronos` can be imported from its first line on.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, text in COMMANDS.items():
        # Without help of its own: `--help` is left to the command, like all the rest.
        commands.add_parser(name, help=text, add_help=False)
    chosen, rest = parser.parse_known_args(argv)
    return import_module(f"synk.commands.{chosen.command}").main(rest)


if __name__ == "__main__":
    sys.exit(main())
