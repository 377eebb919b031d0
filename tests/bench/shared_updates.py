"""Updates after an all-reduce: of all parameters on each rank, or of a share of them.

``python tests/bench/shared_updates.py`` times, in JAX on two ranks of a core each, what
follows the gradient in a training step of some million parameters:

* *all*: each rank updates all parameters, as synk has it;
* *share*: each updates half of them, writes these to shared memory, meets the other,
  and copies the other half from there;
* *in place*: the same without that copy, as if the next step could read shared memory.

The last one is a bound that nothing can reach which also keeps the former values.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import statistics
from collections.abc import Callable, Iterator
from time import perf_counter

import numpy as np

PARAMETERS = 1_280_000, 10_000_000
RULES = {"SGD": 0, "Adam": 2}
"""Arrays of state beside the parameters."""

TURNS, WARM = 41, 5

LIMIT = 120
"""Seconds for the turns of one size."""


def main() -> None:
    """Print the medians of interleaved turns."""
    for rule, states in RULES.items():
        for n in PARAMETERS:
            memory = mmap.mmap(-1, 4 * 2 * n + 64)
            ranks = [
                multiprocessing.get_context("fork").Process(
                    target=run, args=(rank, f"{rule}, {n:,} parameters", states, memory)
                )
                for rank in range(2)
            ]
            for rank in ranks:
                rank.start()
            for rank in ranks:
                rank.join(LIMIT)
            if any(rank.exitcode != 0 for rank in ranks):
                for rank in ranks:
                    rank.kill()
                raise SystemExit("a rank has failed, or takes too long")


def run(rank: int, title: str, states: int, memory: mmap.mmap) -> None:
    """Be one of the two ranks; the first one prints the medians."""
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    n = (len(memory) - 64) // 8
    words = np.frombuffer(memory, np.int64, 2, 8 * n)
    gradient = np.frombuffer(memory, np.float32, n)
    shared = np.frombuffer(memory, np.float32, n, 4 * n)
    meet = meetings(words, rank)
    ways = {
        "all": updating(slice(0, n), gradient, states),
        "share": sharing(rank, gradient, shared, states, meet, copies=True),
        "in place": sharing(rank, gradient, shared, states, meet, copies=False),
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(TURNS + WARM):
        for name, way in ways.items():
            gradient[rank::2] = 1.0  # as if it had just been reduced
            next(meet)
            start = perf_counter()
            way()
            next(meet)
            found[name].append(perf_counter() - start)
    if rank == 0:
        medians = (statistics.median(times[WARM:]) for times in found.values())
        told = zip(found, medians, strict=True)
        text = ", ".join(f"{name} {1e3 * median:.2f} ms" for name, median in told)
        print(f"{title}: {text}", flush=True)


def meetings(words: np.ndarray, rank: int) -> Iterator[None]:
    """Go on when both ranks have come, again and again."""
    while True:
        words[rank] += 1
        while words[1 - rank] < words[rank]:
            pass
        yield


def updating(part: slice, gradient: np.ndarray, states: int) -> Callable[[], object]:
    """Return a step for a part of the parameters, which returns their new values."""
    import jax
    import jax.numpy as jnp

    def sgd(w, g):
        return [w - 0.05 * g]

    def adam(w, g, m, v):
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        return [w - 0.001 * m / (jnp.sqrt(v) + 1e-8), m, v]

    rule = jax.jit(adam if states else sgd)
    values = [jnp.zeros(len(gradient[part]), jnp.float32) for _ in range(1 + states)]

    def step() -> object:
        w, *state = values
        values[:] = jax.block_until_ready(rule(w, gradient[part], *state))
        return values[0]

    return step


def sharing(
    rank: int,
    gradient: np.ndarray,
    shared: np.ndarray,
    states: int,
    meet: Iterator[None],
    copies: bool,
) -> Callable[[], object]:
    """Return a step for a rank's half, which fetches the other half."""
    half = len(gradient) // 2
    parts = slice(0, half), slice(half, None)
    update = updating(parts[rank], gradient, states)
    whole = np.zeros_like(shared)

    def step() -> None:
        shared[parts[rank]] = update()
        next(meet)
        if copies:
            whole[:] = shared

    return step


if __name__ == "__main__":
    main()
