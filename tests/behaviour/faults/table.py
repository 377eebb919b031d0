"""The fault table: moments and faults, and what is to come of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rows_of_deaths import (
    AT_LINES,
    AT_RANDOM,
    CLOSING,
    DEATHS_AT_MOMENTS,
    DEATHS_IN_AN_OP,
    DEATHS_OF_OTHERS,
    ENDS,
)
from rows_of_failures import ERRORS, HANGS, RESULTS
from rows_of_scripts import HOSTS, INTERRUPTS, SCRIPTS
from trial import Row


def times(repeats: int, rows: Sequence[Row]) -> list[Row]:
    """Return rows that the tests play so many times."""
    return [replace(row, repeats=repeats) for row in rows]


TABLE = [
    *times(
        3,
        [
            *CLOSING,
            *AT_RANDOM,
            *AT_LINES,
            *INTERRUPTS,
            *ENDS,
        ],
    ),
    # The moment is the same each time, or it takes long.
    *times(1, [*DEATHS_AT_MOMENTS, *DEATHS_IN_AN_OP, *DEATHS_OF_OTHERS]),
    *times(1, [*ERRORS, *RESULTS, *HANGS, *SCRIPTS, *HOSTS]),
]
