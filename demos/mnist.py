"""Train a network on images of digits, data-parallel, with Lasagne.

Run it with ``python demos/mnist.py``, or with ``--model cnn`` for a network like LeNet.
Where the images lie:

* In shared memory, unless you say otherwise. A step is ``step(X, Y, batch=rows)``: each
  rank takes its part of the rows and computes their gradients, these are
  averaged over all rows, and each rank makes the same update of its parameters.
* With ``--resident`` on the ranks, from the beginning: each keeps a part of them, and
  shuffles it by itself. A step is ``step(batch_s=rows_of_each_rank)``.
* With ``--serial`` in this process, where `theano.function` compiles the same graphs.
  Without dropout the run in shared memory ends at the same loss.

Numbers have ``floatX``, float64 unless you say otherwise. Faster is
``PYTENSOR_FLAGS=floatX=float32 python demos/mnist.py``; but training lets the rounding
errors of float32 grow, until runs that add in another order differ visibly.

The more work in a step, the more ranks gain. On MNIST try larger layers and batches:
``--hidden 800 800 --batch-size 512``.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections import defaultdict
from typing import Any, NamedTuple

import synk  # first: with it come Theano's names, which Lasagne imports

# isort: split
import curves
import digits
import lasagne
import numpy as np
import theano
import theano.tensor as T
from lasagne import layers as L
from tqdm import tqdm

PARTS = ("train", "validation")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--model", choices=["mlp", "cnn"], default="mlp")
    add("--hidden", type=positive, nargs="+", default=[800], help="units of each layer")
    add("--dropout", type=float, default=0.2, help="part of the hidden units to drop")
    add("--epochs", type=positive, default=20)
    add("--batch-size", type=positive, default=64, help="rows on all ranks together")
    add("--rate", type=float, default=0.05, help="learning rate at first; it falls")
    add("--momentum", type=float, default=0.9, help="Nesterov's")
    add("--seed", type=int, default=0, help="of initial values, shuffles and dropout")
    add("--ranks", type=positive, help="default: all usable cores")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--resident", action="store_true", help="each rank keeps a part")
    where.add_argument("--serial", action="store_true", help="for comparison")
    jax = "JAX" if importlib.util.find_spec("jax") else None  # compiles far sooner
    add("--mode", default=jax, help="of PyTensor; default: JAX where it is installed")
    add("--digits", action="store_true", help="the bundled 8x8 digits, never MNIST")
    add("--plot", default="mnist.png", metavar="FILE", help="default: mnist.png")
    args = parser.parse_args()
    if not 0 <= args.dropout < 1:
        parser.error(f"--dropout must be at least 0 and below 1, got {args.dropout}")
    return args


def positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


# -- the network: nothing here knows of ranks ----------------------------------------


class Graphs(NamedTuple):
    """What is computed of images `x` and labels `y`."""

    x: Any
    y: Any
    rate: Any
    updates: dict
    scores: list  # loss and accuracy, without dropout


def build(args: argparse.Namespace, data: digits.Digits) -> Graphs:
    x, y, rate = T.tensor4("x", dtype="uint8"), T.ivector("y"), T.scalar("rate")
    network = build_network(args, x / lasagne.utils.floatX(data.white), data.images)
    params = L.get_all_params(network, trainable=True)

    loss = cross_entropy(L.get_output(network), y)
    updates = lasagne.updates.nesterov_momentum(loss, params, rate, args.momentum)

    p = L.get_output(network, deterministic=True)
    accuracy = T.eq(T.argmax(p, axis=1), y).mean()
    return Graphs(x, y, rate, updates, [cross_entropy(p, y), accuracy])


def build_network(args: argparse.Namespace, pixels, images: np.ndarray) -> L.Layer:
    lasagne.random.set_rng(np.random.RandomState(args.seed))
    layer = L.InputLayer((None, *images.shape[1:]), pixels)
    if args.model == "cnn":
        for filters in 32, 64:
            layer = L.Conv2DLayer(layer, filters, filter_size=3, pad="same")
            layer = L.MaxPool2DLayer(layer, pool_size=2)
    for units in args.hidden:
        layer = L.dropout(L.DenseLayer(layer, units), args.dropout)
    return L.DenseLayer(layer, 10, nonlinearity=lasagne.nonlinearities.softmax)


def cross_entropy(p, y):
    return lasagne.objectives.categorical_crossentropy(p, y).mean()


# -- three ways to run it: batches of an epoch, a step for each, and the scores -------


class InSharedMemory:
    """Each rank takes its part of a batch's rows from memory that all share."""

    def __init__(self, args, graphs: Graphs, data: digits.Digits) -> None:
        self.batch_size, self.rows = args.batch_size, data.rows
        inputs, rate = [graphs.x, graphs.y], [graphs.rate]
        self.step = synk.function(
            inputs, bcast_inputs=rate, updates=graphs.updates, mode=args.mode
        )
        self.scores = synk.function(inputs, graphs.scores, mode=args.mode)
        self.X, self.Y = self.scores.build_inputs(data.images, data.labels)

    def batches(self, rng: np.random.Generator) -> list:
        rows, size = rng.permutation(self.rows["train"].stop), self.batch_size
        return [rows[low : low + size] for low in range(0, len(rows), size)]

    def train(self, batches: list, rate: float, progress=False) -> None:
        # step(X, Y, rate, batch=rows) for each batch of rows, in one launch
        self.step.run(batches, self.X, self.Y, rate, progress=progress)

    def measure(self, part: str) -> list:
        return self.scores(self.X, self.Y, batch=self.rows[part])


class Resident:
    """Each rank keeps a part of the rows, and gives some of these to each batch."""

    def __init__(self, args, graphs: Graphs, data: digits.Digits) -> None:
        self.batch_size, self.scores = args.batch_size, {}
        # One variable, so that there is one choice of rows: the last column has labels.
        table = np.column_stack(
            [data.images.reshape(len(data.images), -1), data.labels]
        )
        for part, rows in data.rows.items():
            own = theano.shared(table[:0].astype("uint8"))
            synk.scatter(own, table[rows].astype("uint8"))
            images = own[:, :-1].reshape((own.shape[0], *data.images.shape[1:]))
            options = {
                "givens": {graphs.x: images, graphs.y: T.cast(own[:, -1], "int32")},
                "sliceable_shareds": [own],
                "mode": args.mode,
            }
            self.scores[part] = synk.function([], graphs.scores, **options)
            if part == "train":
                self.lengths = synk.get_lengths(own)  # the rows of each rank
                self.step = synk.function(
                    [], bcast_inputs=[graphs.rate], updates=graphs.updates, **options
                )

    def batches(self, rng: np.random.Generator) -> list:
        steps = -(-sum(self.lengths) // self.batch_size)
        shuffled = [np.array_split(rng.permutation(n), steps) for n in self.lengths]
        return [list(of_ranks) for of_ranks in zip(*shuffled, strict=True)]

    def train(self, batches: list, rate: float, progress=False) -> None:
        # step(rate, batch_s=rows_of_each_rank) for each batch
        self.step.run(batches, rate, progress=progress)

    def measure(self, part: str) -> list:
        return self.scores[part]()


class Serial:
    """Plain functions, in this process alone."""

    batches = InSharedMemory.batches

    def __init__(self, args, graphs: Graphs, data: digits.Digits) -> None:
        self.batch_size, self.rows = args.batch_size, data.rows
        self.X, self.Y = data.images, data.labels
        inputs = [graphs.x, graphs.y]
        self.step = theano.function(
            [*inputs, graphs.rate], updates=graphs.updates, mode=args.mode
        )
        self.scores = theano.function(inputs, graphs.scores, mode=args.mode)
        self.last = list(graphs.updates)[-1]

    def train(self, batches: list, rate: float, progress=lambda k: None) -> None:
        for k, rows in enumerate(batches, 1):
            self.step(self.X[rows], self.Y[rows], rate)
            progress(k)
        self.last.get_value()  # in JAX mode, wait for what is still computed

    def measure(self, part: str) -> list:
        rows = self.rows[part]
        return self.scores(self.X[rows], self.Y[rows])


# -- training ------------------------------------------------------------------------


def compile_all(trainer, rng: np.random.Generator) -> None:
    """Make the first calls: they compile. At a rate of 0 they change nothing."""
    batches = trainer.batches(rng)
    trainer.train([batches[0], batches[-1]], rate=0)
    for part in PARTS:
        trainer.measure(part)


def fit(args: argparse.Namespace, data: digits.Digits, trainer) -> dict:
    """Train for some epochs, and return the history of loss and accuracy."""
    rng = np.random.default_rng(args.seed)
    history = defaultdict(list)
    steps = args.epochs * -(-data.n_train // args.batch_size)
    with tqdm(total=steps, unit=" steps", disable=None) as bar:
        for number in range(1, args.epochs + 1):
            batches = trainer.batches(rng)
            start = time.perf_counter()
            rate = args.rate * (1 - (number - 1) / args.epochs)
            trainer.train(batches, rate, progress=lambda k: bar.update())
            seconds = time.perf_counter() - start
            history["rows per second"].append(data.n_train / seconds)
            for part in PARTS:
                loss, accuracy = trainer.measure(part)
                history[f"{part} loss"].append(float(loss))
                history[f"{part} accuracy"].append(float(accuracy))
            bar.write(f"epoch {number:3}: {report(history)}")
    return history


def report(history: dict) -> str:
    """Describe the last epoch in one line."""
    now = {name: values[-1] for name, values in history.items()}
    parts = [
        f"{part} loss {now[f'{part} loss']:.4f} accuracy {now[f'{part} accuracy']:.4f}"
        for part in PARTS
    ]
    return ", ".join([*parts, f"{now['rows per second']:,.0f} rows/s"])


def main() -> None:
    args = parse_arguments()
    # Forked first: loading data starts threads, which a fork doesn't copy.
    n = 1 if args.serial else synk.fork(args.ranks)
    how = "serial, plain PyTensor" if args.serial else f"{n} rank{'s' * (n > 1)}"
    if args.resident:
        how += ", resident data"
    data = digits.load(bundled=args.digits)
    n_validation = len(data.images) - data.n_train
    print(f"data: {data.name}, {data.n_train} rows and {n_validation} to validate")
    start = time.perf_counter()
    kind = Serial if args.serial else Resident if args.resident else InSharedMemory
    trainer = kind(args, build(args, data), data)
    compile_all(trainer, np.random.default_rng(args.seed))
    print(f"{how}; compiled in {time.perf_counter() - start:.1f} s")
    history = fit(args, data, trainer)
    synk.close()
    speed = np.median(history["rows per second"])
    print(f"speed: {speed:,.0f} rows/s ({how}, median of epochs)")
    curves.plot(history, f"{data.name}: {how}, {speed:,.0f} rows/s", args.plot)
    print(f"plot: {args.plot}")
    print(
        f"final: train loss {history['train loss'][-1]:.6f}"
        f" validation accuracy {history['validation accuracy'][-1]:.4f}"
    )


if __name__ == "__main__":
    main()
