"""The subcommands of `python -m synk`: each takes `argv`, returns the exit status."""
