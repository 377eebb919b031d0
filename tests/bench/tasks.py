"""What the ranks are called for: nothing, and the sum of some rows.

In a module of its own, so that it travels to other processes by its name.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from .options import Options
from .timing import Question, timed


def nothing(_: object = None) -> None:
    """Do nothing."""


def total(rows: np.ndarray) -> float:
    """Return the sum of all values."""
    return float(rows.sum())


def total_of_part(rows: np.ndarray, start: int, stop: int) -> float:
    """Return the sum of some rows."""
    return float(rows[start:stop].sum())


def array(options: Options) -> np.ndarray:
    """Return small whole numbers, whose sum float32 has exactly."""
    size = options.shape[0] * options.shape[1]
    return (np.arange(size) % 5).astype("float32").reshape(options.shape)


def bounds(options: Options) -> list[tuple[int, int]]:
    """Return first and last row of each rank's part."""
    ends = [options.shape[0] * i // options.ranks for i in range(options.ranks + 1)]
    return list(itertools.pairwise(ends))


def questions(
    empty: Callable[[], object], add_up: Callable[[], float], name: str = "call"
) -> dict[str, Question]:
    """Return what every implementation of calls is asked."""
    return {
        f"check {name}": lambda _: [float(add_up())],
        f"{name} empty": timed(empty),
        f"{name} rows": timed(add_up),
    }
