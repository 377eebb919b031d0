"""Train a network with batch normalisation over the rows of all ranks.

Batch normalisation subtracts the mean of the batch and divides by its standard
deviation. Cut between ranks, a batch has a mean on each of them, and a network trained
with these is another network. `synk.ops.all_reduce` makes one mean of them, in the
graph::

    mean = synk.ops.all_reduce(h.mean(axis=0))

and has a gradient. So the parallel run has the numbers of the serial one, which plain
PyTensor computes here from the same graph: to it `all_reduce` is the identity. Run it
with ``python demos/sync_batch_norm.py --ranks 3``.
"""

from __future__ import annotations

import argparse

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
    args = parser.parse_args()
    if args.epochs < 1 or args.batch_size < 1:
        parser.error("--epochs and --batch-size must be at least 1")
    return args


def normalise(h, scale, shift, average):
    """Return `h` with mean and standard deviation of its columns as they are learnt."""
    mean = average(h.mean(axis=0))
    variance = average(((h - mean) ** 2).mean(axis=0))
    return (h - mean) / pt.sqrt(variance + 1e-5) * scale + shift


class Network:
    """A network, always with the same initial values, and its training step.

    Parameters
    ----------
    function : callable
        `pytensor.function` or `synk.function`.
    average : callable
        What makes statistics of all rows out of those of a rank's rows.
    """

    def __init__(self, function, average) -> None:
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
        h = pt.tanh(normalise(x @ weights0, scale, shift, average))
        log_p = pt.special.log_softmax(h @ weights1 + bias, axis=1)
        loss = -log_p[pt.arange(y.shape[0]), y].mean()
        updates = synk.updates.momentum(
            synk.grad(loss, self.params), self.params, learning_rate=RATE
        )
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
    images = data.images[: data.n_train] / data.white
    labels = data.labels[: data.n_train]
    shuffle = np.random.default_rng(1)
    batches = []
    for _ in range(args.epochs):
        order = shuffle.permutation(data.n_train)
        for low in range(0, data.n_train, args.batch_size):
            rows = order[low : low + args.batch_size]
            batches.append((images[rows], labels[rows]))
    return batches


def main() -> None:
    args = parse_arguments()
    with synk.session(args.ranks) as n:
        batches = cut_into_batches(args)
        first, last = len(batches[0][0]), len(batches[-1][0])
        print(
            f"{n} rank{'s' * (n > 1)}, {len(batches)} steps of {first} rows,"
            f" the last of an epoch of {last}"
        )
        ways = {
            "all rows": synk.ops.all_reduce,
            "each rank's own rows": lambda statistics: statistics,
        }
        losses, values = {}, {}
        for name, average in ways.items():
            network = Network(synk.function, average)
            losses[name] = network.train(batches)
            values[name] = network.values()
    serial = Network(pytensor.function, synk.ops.all_reduce)
    expected = serial.train(batches)
    print(f"serial: loss {expected[0]:.4f} at first, {expected[-1]:.4f} at last")
    off = {}
    for name in ways:
        off[name] = np.abs(losses[name] - expected).max()
        off_values = np.abs(values[name] - serial.values()).max()
        print(f"statistics of {name}: loss {losses[name][-1]:.4f} at last")
        print(
            "   off by, at the most:"
            f" losses {off[name]:.1e}, parameters at last {off_values:.1e}"
        )
    np.testing.assert_allclose(losses["all rows"], expected, rtol=1e-8)
    np.testing.assert_allclose(values["all rows"], serial.values(), atol=1e-7)
    if n > 1:
        assert off["each rank's own rows"] > 1000 * off["all rows"]
    print("sync_batch_norm: with statistics of all rows it is the serial run")


if __name__ == "__main__":
    main()
