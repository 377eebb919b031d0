"""Where the time of one call goes in the master: ``python tests/bench/call_parts.py``.

The parts of `Function.__call__` are timed in place, each by a pair of clock readings
around it, while a function of a small matrix is called many times. What the readings
cost themselves, some 0.1 us a pair, is in the figures.
"""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable

import numpy as np
import pytensor
import pytensor.tensor as pt

import synk
from synk.ranks.session import SESSION

function_module = importlib.import_module("synk.call.function")

CALLS = 5_000
ROUNDS = 9


class Parts:
    """Seconds by part, summed over the calls of one round."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def time(self, owner: object, name: str, label: str) -> None:
        """Put clock readings around a function."""
        function: Callable = getattr(owner, name)

        def timed(*args, **kwargs):
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                took = time.perf_counter() - start
                self.seconds[label] = self.seconds.get(label, 0) + took

        setattr(owner, name, timed)


def measure(call: Callable[[], object], parts: Parts) -> tuple[float, dict[str, float]]:
    """Return the median seconds of a call and of each of its parts."""
    totals: list[float] = []
    rounds: list[dict[str, float]] = []
    for _ in range(ROUNDS):
        parts.seconds = {}
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        totals.append((time.perf_counter() - start) / CALLS)
        rounds.append({k: v / CALLS for k, v in parts.seconds.items()})
    medians = {k: statistics.median(r[k] for r in rounds) for k in rounds[0]}
    return statistics.median(totals), medians


def main() -> None:
    """Print the parts of a call, the largest first."""
    x = pt.matrix("x", dtype="float32")
    array = np.ones((8, 4), "float32")
    plain = pytensor.function([x], x.sum())
    with synk.session(2):
        total = synk.function([x], (x.sum(), "sum"))
        data = synk.data(array)
        for _ in range(1_000):
            total(data)
        untimed, _ = measure(lambda: total(data), Parts())
        alone, _ = measure(lambda: plain(array), Parts())
        parts = Parts()
        parts.time(function_module, "gather_rows", "check the inputs, cut the rows")
        parts.time(function_module, "stage", "describe the inputs to the ranks")
        parts.time(SESSION._channel, "launch", "pickle and send the message")
        parts.time(SESSION, "_run_here", "the master's own share")
        parts.time(SESSION, "_join", "wait for the ranks, read their replies")
        parts.time(function_module, "combine_outputs", "combine the outputs")
        timed, medians = measure(lambda: total(data), parts)
    print(f"plain function {alone * 1e6:.1f} us, call {untimed * 1e6:.1f} us")
    rest = timed - sum(medians.values())
    for label, seconds in sorted(
        [*medians.items(), ("everything else", rest)], key=lambda part: -part[1]
    ):
        print(f"{label:42}{seconds * 1e6:7.1f} us")


if __name__ == "__main__":
    main()
