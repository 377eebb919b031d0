"""`python -m synk`: run an old script, or look at what synk finds on this machine."""

from __future__ import annotations

import argparse
import os
import sys
from importlib import import_module

COMMANDS = {
    "info": ("info", "print versions, cores, memory and what synk.fork() would do"),
    "tune": ("tune", "list the records that synk.tune has written, or clear them"),
    "ps": ("sessions", "list the running sessions of this user, and what ranks do"),
    "clean": ("sessions", "end what sessions have left whose master is gone"),
}
"""The file of each in `commands`, where a function has its name, and what it does."""


def main(argv: list[str] | None = None) -> int:
    """Run a subcommand, or a script, and return its exit status.

    Parameters
    ----------
    argv : list of str, optional
        The arguments after the program's name, by default those of this process.
    """
    argv = sys.argv[1:] if argv is None else argv
    first = argv[0] if argv else ""
    if first == "--parallel":
        return import_module("synk.commands.parallel").main(argv)
    if first not in COMMANDS and (first.endswith(".py") or os.path.isfile(first)):
        return import_module("synk.commands.script").main(argv)
    parser = argparse.ArgumentParser(
        prog="python -m synk",
        description=__doc__,
        epilog="python -m synk SCRIPT.py [ARGUMENTS] runs a script in which `theano`"
        " and `synkhronos` can be imported from its first line on; python -m synk"
        " --parallel SCRIPT.py [ARGUMENTS] runs its functions on ranks as well, where"
        " these are faster.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (_, text) in COMMANDS.items():
        # Without help of its own: `--help` is left to the command, like all the rest.
        commands.add_parser(name, help=text, add_help=False)
    chosen, rest = parser.parse_known_args(argv)
    module, _ = COMMANDS[chosen.command]
    return getattr(import_module(f"synk.commands.{module}"), chosen.command)(rest)


if __name__ == "__main__":
    sys.exit(main())
