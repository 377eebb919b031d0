"""The subcommands of `python -m synk`; each module has a ``main(argv) -> int``."""
