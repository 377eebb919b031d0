"""What `Trainer.fit` costs beside a loop of `run`: ``python tests/bench/fit.py``.

Epochs of 100 steps, of about 1 ms each, are made by `fit`, in turns with the same steps
without it: for exact training by the loop that one would write by hand, and by a rule
in one epoch.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import pytensor
import pytensor.tensor as pt

import synk

ROWS, BATCH, EPOCHS, ROUNDS = 12_800, 128, 5, 15


def step_of(units: int, is_local: bool) -> tuple[synk.Function, list]:
    """Return a training step of a network of two layers, and its parameters."""
    random = np.random.default_rng(0)
    x, y = pt.matrix("x"), pt.matrix("y")
    shapes = (64, units), (units, 10)
    params = [
        pytensor.shared(random.normal(size=shape) / np.sqrt(shape[0]), f"w{i}")
        for i, shape in enumerate(shapes)
    ]
    loss = ((pt.tanh(x @ params[0]) @ params[1] - y) ** 2).mean()
    grads = (pytensor.grad if is_local else synk.grad)(loss, params)
    updates = synk.updates.sgd(grads, params, 0.01)
    return synk.function([x, y], loss, updates=updates, local=is_local), params


def by_hand(step: synk.Function, data: tuple, seed: int) -> None:
    """Train as one would without a trainer."""
    random = np.random.default_rng(seed)
    for _ in range(EPOCHS):
        order = random.permutation(ROWS)
        batches = [order[i : i + BATCH] for i in range(0, ROWS, BATCH)]
        losses = step.run(batches, *data)
        losses.mean()


def seconds(work: Callable[[], object]) -> float:
    """Return how long something takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    """Print what both take, for exact training and by a rule."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int)
    parser.add_argument("--units", type=int, default=400, help="of the hidden layer")
    options = parser.parse_args()
    random = np.random.default_rng(1)
    with synk.session(options.ranks):
        arrays = random.normal(size=(ROWS, 64)), random.normal(size=(ROWS, 10))
        data = tuple(map(synk.data, arrays))
        for rule in (None, synk.rules.EASGD(10), synk.rules.LocalSGD(10)):
            step, params = step_of(options.units, is_local=rule is not None)
            synk.tune(step, *data, batch=BATCH)
            trainer = synk.Trainer(step, params, rule)
            compare(rule, *of_both(trainer, data))


def of_both(
    trainer: synk.Trainer, data: tuple
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return what makes epochs by `fit`, and what makes as many steps otherwise."""
    how = {"batch_size": BATCH, "progress": False}
    is_exact = not trainer.step.is_local
    at_once = {"rows": np.tile(np.arange(ROWS), EPOCHS), **how}
    return (
        lambda: trainer.fit(*data, epochs=EPOCHS, **how),
        (lambda: by_hand(trainer.step, data, 0))
        if is_exact
        else (lambda: trainer.fit(*data, **at_once)),
    )


def compare(
    rule: object, fit: Callable[[], object], other: Callable[[], object]
) -> None:
    """Make both in turns, and print what they take."""
    fit(), other()
    times = [(seconds(fit), seconds(other)) for _ in range(ROUNDS)]
    ours, theirs = (1e6 * statistics.median(some) for some in zip(*times, strict=True))
    ratios = [a / b for a, b in times]
    steps = EPOCHS * ROWS // BATCH
    print(
        f"{rule or 'exact'}: {ours / steps:.0f} us a step by fit,"
        f" {theirs / steps:.0f} without; ratio of {ROUNDS} rounds: median"
        f" {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}"
    )


if __name__ == "__main__":
    main()
