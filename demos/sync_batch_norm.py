"""Train a network with batch normalisation over the rows of all ranks.

Batch normalisation subtracts the mean of the batch and divides by its standard
deviation. Cut between ranks, a batch has a mean on each of them, and a network trained
with these is another network. `synk.function` makes one mean of them, forward and
backward: so the same script, with `pytensor.grad` and no word about ranks, has the
numbers of the serial run, which `pytensor.function` computes here.

With ``statistics="local"`` each rank computes with those of its own rows, as other
libraries do, and the ranks meet once in a step; that is not the serial run. Run it with
``python demos/sync_batch_norm.py --ranks 3``.
"""

from __future__ import annotations

import argparse
import importlib.util
from functools import partial
from typing import NamedTuple

import digits
import numpy as np
import pytensor
import pytensor.tensor as pt

import synk

RATE, HIDDEN = 0.05, 16


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--ranks", type=int, help="default: all usable cores")
    add("--epochs", type=int, default=3)
    add("--batch-size", type=int, default=50, help="rows on all ranks together")
    jax = "JAX" if importlib.util.find_spec("jax") else None  # compiles far sooner
    add("--mode", default=jax, help="of the ranks; default: JAX where it is installed")
    args = parser.parse_args()
    if args.epochs < 1 or args.batch_size < 1:
        parser.error("--epochs and --batch-size must be at least 1")
    return args


def normalise(h, scale, shift):
    """Return `h` with mean and standard deviation of its columns as they are learnt."""
    mean, variance = h.mean(axis=0), h.var(axis=0)
    return (h - mean) / pt.sqrt(variance + 1e-5) * scale + shift


class Network:
    """A network, always with the same initial values, and its training step.

    Parameters
    ----------
    function : callable
        `pytensor.function` or `synk.function`.
    """

    def __init__(self, function) -> None:
        rng = np.random.default_rng(0)
        self.params = [
            pytensor.shared(value, name=name)
            for name, value in {
                "weights0": rng.normal(0, 1 / 8, (64, HIDDEN)),
                "scale": np.ones(HIDDEN),
                "shift": np.zeros(HIDDEN),
                "weights1": rng.normal(0, 1 / 4, (HIDDEN, 10)),
                "bias": np.zeros(10),
            }.items()
        ]
        weights0, scale, shift, weights1, bias = self.params
        x, y = pt.dmatrix("x"), pt.vector("y", dtype="int32")
        h = pt.tanh(normalise(x @ weights0, scale, shift))
        log_p = pt.special.log_softmax(h @ weights1 + bias, axis=1)
        loss = -log_p[pt.arange(y.shape[0]), y].mean()
        gradients = pytensor.grad(loss, self.params)
        updates = synk.updates.momentum(gradients, self.params, learning_rate=RATE)
        self.step = function([x, y], loss, updates=updates)

    def train(self, batches) -> np.ndarray:
        """Return the losses of all steps."""
        return np.array([self.step(*batch) for batch in batches])

    def values(self) -> np.ndarray:
        """Return all parameters as one vector."""
        return np.concatenate([param.get_value().ravel() for param in self.params])


def cut_into_batches(args: argparse.Namespace) -> list[tuple]:
    """Return the batches of all epochs, shuffled; the last of each has fewer rows."""
    data = digits.load_bundled()
    images = data.images[: data.n_train].reshape(data.n_train, -1) / data.white
    labels = data.labels[: data.n_train]
    shuffle = np.random.default_rng(1)
    batches = []
    for _ in range(args.epochs):
        order = shuffle.permutation(data.n_train)
        for low in range(0, data.n_train, args.batch_size):
            rows = order[low : low + args.batch_size]
            batches.append((images[rows], labels[rows]))
    return batches


class Run(NamedTuple):
    """What training came to."""

    losses: np.ndarray
    values: np.ndarray


def train(function, batches) -> Run:
    """Build a network, and train it."""
    network = Network(function)
    return Run(network.train(batches), network.values())


def compare(name: str, run: Run, serial: Run) -> float:
    """Print how far a run is off, and return that of the losses."""
    off = np.abs(run.losses - serial.losses).max()
    off_values = np.abs(run.values - serial.values).max()
    print(f"statistics of {name}: loss {run.losses[-1]:.4f} at last")
    print(
        f"   off by, at the most: losses {off:.1e}, parameters at last {off_values:.1e}"
    )
    return off


def main() -> None:
    args = parse_arguments()
    with synk.session(args.ranks) as n:
        batches = cut_into_batches(args)
        first, last = len(batches[0][0]), len(batches[-1][0])
        print(
            f"{n} rank{'s' * (n > 1)}, {len(batches)} steps of {first} rows,"
            f" the last of an epoch of {last}"
        )
        function = partial(synk.function, mode=args.mode)
        of_all = train(function, batches)
        of_own = train(partial(function, statistics="local"), batches)
    serial = train(pytensor.function, batches)
    losses = serial.losses
    print(f"serial: loss {losses[0]:.4f} at first, {losses[-1]:.4f} at last")
    off_all = compare("all rows", of_all, serial)
    off_own = compare("each rank's own rows", of_own, serial)
    np.testing.assert_allclose(of_all.losses, losses, rtol=1e-8)
    np.testing.assert_allclose(of_all.values, serial.values, atol=1e-7)
    assert n == 1 or off_own > 1000 * off_all
    print("sync_batch_norm: with statistics of all rows it is the serial run")


if __name__ == "__main__":
    main()
