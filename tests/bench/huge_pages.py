"""What huge pages save: making shared memory, writing to it first, and reading rows.

    taskset -c 1 python tests/bench/huge_pages.py

Each line is the least of several times, in milliseconds, with and without in turns.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from time import perf_counter
from unittest import mock

import numpy as np

from synk.memory import huge
from synk.memory.segment import Segment

ROWS, COLUMNS, ROUNDS, READS = 1_000_000, 20, 5, 10
SHAPE = (ROWS, COLUMNS)


def seconds(do: Callable[[], object]) -> float:
    start = perf_counter()
    do()
    return perf_counter() - start


def measure(size: int) -> dict[str, float]:
    """Return the times for one segment, with huge pages of so many bytes or none."""
    with mock.patch.object(huge, "SIZE", size):
        start = perf_counter()
        segment = Segment(8 * ROWS * COLUMNS)
        found = {"made": perf_counter() - start}
    x = segment.array(np.dtype(float), SHAPE)
    found["written to first"] = seconds(lambda: x.fill(1.5))
    w, v = np.ones(COLUMNS), np.ones(ROWS)
    reads = {"X.sum()": x.sum, "X @ w": lambda: x @ w, "v @ X": lambda: v @ x}
    for name, read in reads.items():
        found[name] = min(seconds(read) for _ in range(READS))
    return found


def main() -> None:
    print(f"{8 * ROWS * COLUMNS / 1e6:.0f} MB, float64 {SHAPE}; {os.cpu_count()} cores")
    print("huge pages given:", huge.are_given())
    sizes = {"huge pages": huge.SIZE, "small pages": 0}
    rounds = [{name: measure(of) for name, of in sizes.items()} for _ in range(ROUNDS)]
    for what in rounds[0]["small pages"]:
        least = {name: min(each[name][what] for each in rounds) for name in sizes}
        print(f"{what:18}", *(f"{name} {t * 1e3:7.1f}" for name, t in least.items()))


if __name__ == "__main__":
    main()
