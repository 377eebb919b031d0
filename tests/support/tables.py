"""Tables of pandas, which is imported when a test first uses one.

Each worker of the tests imports every file of tests, and forks all its sessions with
what that has brought into memory.
"""

from __future__ import annotations


def frame(values=None, **columns):
    """Return a table of values, or of named columns."""
    import pandas

    return pandas.DataFrame(columns if values is None else values)


def series(values, **options):
    """Return a column."""
    import pandas

    return pandas.Series(values, **options)


def nullable(*values, dtype="Int64"):
    """Return an array of a dtype of pandas', in which some (None) may be missing."""
    import pandas

    return pandas.array(list(values), dtype=dtype)
