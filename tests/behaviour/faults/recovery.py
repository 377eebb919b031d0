"""How long a training script takes to come back after a rank was killed.

::

    python tests/behaviour/faults/recovery.py --ranks 2 --rounds 10

It trains a network of the size of MNIST's images (784, 800, 10), as demos/mnist.py
does, and looks at its accuracy with another function. A rank is killed at a random
moment of a step, and the time is printed from the kill to WorkerDied, that of
``synk.recover()``, and that of the first step and the first look afterwards, which get
both functions to the new ranks and load their machine code. Weights and losses are
compared with those of plain PyTensor. All is warm: compiled before, on ranks that were
killed.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import time
from pathlib import Path

sys.path.insert(1, str(Path(__file__).parents[2] / "support"))

import numpy as np
import pytensor
import pytensor.tensor as pt
from masters import in_thread
from processes import rank_pids, since_death, stamp

import synk
from synk import updates

ROWS = 512


def weights() -> list:
    """Return the network's parameters, equal each time."""
    rng = np.random.default_rng(3)
    shapes = (784, 800), (800,), (800, 10), (10,)
    return [
        pytensor.shared((0.05 * rng.normal(size=s)).astype("float32")) for s in shapes
    ]


def functions(make, params: list) -> list:
    """Return a step of training, and the accuracy."""
    x, y = pt.fmatrix("x"), pt.lvector("y")
    w1, b1, w2, b2 = params
    p = pt.special.softmax(pt.tanh(x @ w1 + b1) @ w2 + b2, axis=1)
    loss = -pt.log(p[pt.arange(y.shape[0]), y]).mean()
    grads = pytensor.grad(loss, params)
    moved = updates.nesterov_momentum(grads, params, learning_rate=0.002, momentum=0.9)
    right = pt.eq(p.argmax(axis=1), y).mean()
    return [make([x, y], loss, updates=moved), make([x, y], right)]


def main() -> int:
    """Kill, come back, and print the times."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    rng = np.random.default_rng(4)
    images = rng.random((ROWS, 784), np.float32)
    digits = rng.integers(0, 10, ROWS)
    mine, theirs = weights(), weights()
    step, accuracy = functions(synk.function, mine)
    plain_step, _ = functions(pytensor.function, theirs)
    synk.fork(options.ranks)
    rows, labels = synk.data(images), synk.data(digits)
    plain_step(images, digits)
    times = [come_back(step, accuracy, rows, labels) for _ in range(options.rounds + 1)]
    synk.close()
    for _ in range(sum(steps for steps, _ in times) - 1):
        plain_step(images, digits)
    for var, other in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(var.get_value(), other.get_value(), atol=1e-4)
    report(np.array([seconds for _, seconds in times[1:]]))
    return 0


def come_back(step, accuracy, rows, labels) -> tuple[int, list[float]]:
    """Train until a rank is dead, and then two steps; return the times, in s."""
    step(rows, labels)
    accuracy(rows, labels)
    made = 1

    def strike() -> None:
        time.sleep(random.uniform(0, 0.05))
        stamp()
        os.kill(rank_pids()[1], signal.SIGKILL)

    in_thread(strike)
    try:
        while True:
            step(rows, labels)
            made += 1
    except synk.WorkerDied:
        noticed = since_death()
    start = time.monotonic()
    lost = synk.recover()
    assert lost == []
    recovered = time.monotonic()
    step(rows, labels)
    accuracy(rows, labels)
    return made + 1, [noticed, recovered - start, time.monotonic() - recovered]


def report(seconds: np.ndarray) -> None:
    names = ("WorkerDied", "synk.recover()", "first step and look")
    for name, column in zip(names, seconds.T, strict=True):
        print(f"{name}: median {np.median(column):.3f} s, longest {column.max():.3f} s")
    whole = seconds.sum(axis=1)
    print(f"together: median {np.median(whole):.3f} s, longest {whole.max():.3f} s")


if __name__ == "__main__":
    sys.exit(main())
