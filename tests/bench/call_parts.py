"""Where the time of one call goes in the master: ``python tests/bench/call_parts.py``.

The parts of a call are timed in place, each by a pair of clock readings around it,
while a function of a small matrix is called many times: on the same data again and
again, so that the call is prepared, and on other rows each time. What the readings cost
themselves, some 0.1 us a pair, is in the figures.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import numpy as np
import pytensor
import pytensor.tensor as pt

import synk
from synk.call import again, calling, last_rows
from synk.ranks import session
from synk.ranks.session import SESSION

CALLS = 5_000
ROUNDS = 9


class Parts:
    """Seconds by part, summed over the calls of one round."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.undo = contextlib.ExitStack()

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
        self.undo.callback(setattr, owner, name, function)


def measure(call: Callable[[], object], parts: Parts) -> tuple[float, dict[str, float]]:
    """Return the seconds of a call and of its parts, in the shortest round."""
    rounds: list[tuple[float, dict[str, float]]] = []
    for _ in range(ROUNDS):
        parts.seconds = {}
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        total = (time.perf_counter() - start) / CALLS
        rounds.append((total, {k: v / CALLS for k, v in parts.seconds.items()}))
    return min(rounds, key=lambda timed: timed[0])


IN_ALL = [
    (SESSION, "enter", "look at the session"),
    (SESSION, "_join", "wait for the ranks, read their replies"),
    (session, "_run_here", "the master's own share"),
]
PREPARED = [
    (again.Again, "is_of", "compare the arguments with the last ones"),
    (again, "combine_outputs", "combine the outputs"),
]
OTHERS = [
    (last_rows, "gather_rows", "check the inputs, cut the rows"),
    (last_rows, "stage", "describe the inputs to the ranks"),
    (calling, "combine_outputs", "combine the outputs"),
]


def show(what: str, call: Callable[[], object], places: list) -> None:
    """Print the parts of a call, the largest first."""
    for _ in range(1_000):
        call()
    untimed, _ = measure(call, Parts())
    parts = Parts()
    launch = SESSION._channel, "launch", "tell the ranks"
    with parts.undo:
        for place in [*places, *IN_ALL, launch]:
            parts.time(*place)
        timed, of_parts = measure(call, parts)
    print(f"{what}: {untimed * 1e6:.1f} us")
    rest = timed - sum(of_parts.values())
    for label, seconds in sorted(
        [*of_parts.items(), ("everything else", rest)], key=lambda part: -part[1]
    ):
        print(f"    {label:42}{seconds * 1e6:7.1f} us")


def main() -> None:
    """Time a call that is made again, and one on other rows each time."""
    x = pt.matrix("x", dtype="float32")
    array = np.ones((8, 4), "float32")
    plain, nothing = pytensor.function([x], x.sum()), pytensor.function([], [])
    for _ in range(1_000):
        plain(array)
    alone, _ = measure(lambda: plain(array), Parts())
    none, _ = measure(nothing, Parts())
    print(
        f"plain function: {alone * 1e6:.1f} us, without arguments {none * 1e6:.1f} us"
    )
    with synk.session(2):
        empty = synk.function([], [])
        for _ in range(1_000):
            empty()
        took, _ = measure(empty, Parts())
        print(f"empty call: {took * 1e6:.1f} us")
        total = synk.function([x], (x.sum(), "sum"))
        data, odd = synk.data(array), [False]

        def other() -> None:
            odd[0] = not odd[0]
            total(data, batch=slice(odd[0], 7 + odd[0]))

        show("the same call again", lambda: total(data), PREPARED)
        show("a call on other rows", other, OTHERS)


if __name__ == "__main__":
    main()
