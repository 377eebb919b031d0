"""The matrix products of the training step alone: ``python tests/bench/products.py``.

No split of the step can take less time than these do on one core for a rank's rows, and
plain PyTensor no less than they do on all cores for the whole batch.
"""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
from threadpoolctl import ThreadpoolController

from synk.commands.bench_cases import PAUSE
from synk.commands.bench_rows import interleave

UNITS = (784, 800, 800, 10)
TURNS = 21
BLAS = ThreadpoolController()  # made once: to look for the libraries takes 0.4 ms


def products(rows: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the factors of all products, forwards and backwards."""
    random = np.random.default_rng(0)

    def matrix(*shape: int) -> np.ndarray:
        return random.normal(size=shape).astype("float32")

    found = []
    for i, (inputs, units) in enumerate(itertools.pairwise(UNITS)):
        x, weights, delta = (
            matrix(rows, inputs),
            matrix(inputs, units),
            matrix(rows, units),
        )
        found += [(x, weights), (x.T, delta)]
        if i:
            found.append((delta, weights.T))
    return found


def multiply(factors: list[tuple[np.ndarray, np.ndarray]], threads: int | None) -> None:
    """Compute all products."""
    with BLAS.limit(limits=threads):
        for a, b in factors:
            a @ b


def main() -> None:
    """Print the times for both batches."""
    for batch in (512, 4096):
        cases = (
            partial(multiply, products(batch // 2), 1),
            partial(multiply, products(batch), None),
        )
        half, whole = interleave(cases, TURNS, pause=PAUSE)
        print(
            f"batch {batch}: half of it on one core {half * 1e3:.1f} ms,"
            f" all of it on all cores {whole * 1e3:.1f} ms"
        )


if __name__ == "__main__":
    main()
