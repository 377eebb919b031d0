"""All-reduces of few values: in one meeting of the ranks, and divided between them.

From the top of the repository::

    python tests/bench/small_reductions.py [--ranks N]

For each size the microseconds of one, in a loop on the ranks: the median of fifteen
turns. Each way runs in sessions of its own, in turns.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import synk
from bench.peers import reductions
from synk.comm import flat_layout
from synk.ranks.session import SESSION

NBYTES = [1 << k for k in range(8, 18)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    ranks = parser.parse_args().ranks
    border = flat_layout.small_for(ranks)
    found: dict[bool, list[list[float]]] = {True: [], False: []}
    for is_small in (True, False) * 3:
        flat_layout.small_for = lambda size, limit=is_small << 30: limit
        with synk.session(ranks):
            found[is_small].append([measured(nbytes) for nbytes in NBYTES])
    print(f"{ranks} ranks; one meeting up to {border} bytes")
    print(f"{'bytes':>8} {'one meeting':>12} {'divided':>10}  microseconds")
    for k, nbytes in enumerate(NBYTES):
        one, two = (
            statistics.median(times[k] for times in found[is_small])
            for is_small in (True, False)
        )
        print(f"{nbytes:8d} {one * 1e6:12.1f} {two * 1e6:10.1f}")


def measured(nbytes: int) -> float:
    """Return the seconds of a sum of so many bytes."""
    times = [
        max(SESSION.run(reductions.worker_time, nbytes, 300)) for _ in range(15 + 1)
    ]
    return statistics.median(times[1:])


if __name__ == "__main__":
    main()
