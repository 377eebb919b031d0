"""Train a network on images of digits, data-parallel.

Run it with ``python demos/mnist.py``. A step of training is one call::

    step(X, Y, batch=rows)

in which each rank computes the gradients of its part of the rows, `synk.grad` averages
them over all rows, and each rank makes the same update of its parameters.

With ``--serial`` the same graphs are compiled by `pytensor.function` and run in this
process alone. Without dropout both end at the same loss.

Numbers have PyTensor's ``floatX``, float64 unless you say otherwise. Faster is
``PYTENSOR_FLAGS=floatX=float32 python demos/mnist.py``; but training lets the rounding
errors of float32 grow, until runs that add in another order differ visibly.

The more work in a step, the more ranks gain. On MNIST try larger layers and batches:
``--hidden 800 800 --batch-size 512``.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections import defaultdict

import digits
import numpy as np
import pytensor
import pytensor.tensor as pt
from tqdm import tqdm

import synk

floatX = np.dtype(pytensor.config.floatX).type


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--ranks", type=positive, help="default: all usable cores")
    add("--epochs", type=positive, default=20)
    add("--batch-size", type=positive, default=128, help="rows on all ranks together")
    add("--rate", type=float, default=0.1, help="learning rate")
    add("--momentum", type=float, default=0.9)
    add("--hidden", type=positive, nargs="+", default=[256], help="units of each layer")
    add("--dropout", type=float, default=0.0, help="part of the hidden units to drop")
    add("--seed", type=int, default=0, help="of initial values, shuffles and dropout")
    add("--serial", action="store_true", help="plain PyTensor, for comparison")
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


# -- the network: nothing here knows of synk -----------------------------------------


def make_layers(widths: list[int], seed: int) -> list[tuple]:
    """Return weights and biases for layers between these numbers of units."""
    rng = np.random.default_rng(seed)
    layers = []
    for i, (fan_in, fan_out) in enumerate(itertools.pairwise(widths)):
        weights = rng.normal(0, np.sqrt(2 / fan_in), (fan_in, fan_out))
        layers.append(
            (
                pytensor.shared(weights.astype(floatX), name=f"weights{i}"),
                pytensor.shared(np.zeros(fan_out, floatX), name=f"bias{i}"),
            )
        )
    return layers


class Dropout:
    """Sets a part of the units to zero; a mask for each layer and call.

    `updates` move the random stream on. Each rank draws from one of its own.
    """

    def __init__(self, part: float, seed: int) -> None:
        self.keep = 1 - part
        self.updates: dict = {}
        if part and hasattr(pt.random, "shared_rng"):
            self._start = self._rng = pt.random.shared_rng(seed=seed)
        elif part:  # PyTensor 2: streams that bring their updates along
            self._rng = pt.random.RandomStream(seed)

    def __call__(self, x):
        """Return `x` with a part of it zero, and the rest scaled to make up for it."""
        if self.keep == 1:
            return x
        mask = self._rng.bernoulli(self.keep, size=x.shape)
        if isinstance(mask, (tuple, list)):
            self._rng, mask = mask
            self.updates = {self._start: self._rng}
        return x * mask.astype(floatX) / floatX(self.keep)


def predict(x, layers: list[tuple], dropout=lambda hidden: hidden):
    """Return the logarithms of the probabilities of the ten digits."""
    for weights, bias in layers[:-1]:
        x = dropout(pt.maximum(x @ weights + bias, 0))
    weights, bias = layers[-1]
    return pt.special.log_softmax(x @ weights + bias, axis=1)


def cross_entropy(log_p, y):
    return -log_p[pt.arange(y.shape[0]), y].mean()


# -- the functions: here serial and parallel differ ----------------------------------


def build(args: argparse.Namespace, data: digits.Digits):
    """Return functions that train and that measure loss and accuracy.

    ``epoch(batches, progress)`` makes a step for each batch of rows, and calls
    ``progress(k)`` after the k-th, from 1; ``measure(rows)`` returns both scores.
    """
    x, y = pt.matrix("x", dtype="uint8"), pt.vector("y", dtype="int32")
    pixels = x.astype(floatX) / floatX(data.white)
    layers = make_layers([data.images.shape[1], *args.hidden, 10], args.seed)
    params = [param for layer in layers for param in layer]

    dropout = Dropout(args.dropout, args.seed)
    loss = cross_entropy(predict(pixels, layers, dropout), y)
    grads = synk.grad(loss, params)  # over all ranks' rows; serially, the plain ones
    rate = pytensor.shared(floatX(0), name="rate")
    updates = synk.updates.momentum(grads, params, rate, args.momentum)
    updates.update(dropout.updates)
    log_p = predict(pixels, layers)
    scores = [cross_entropy(log_p, y), pt.eq(pt.argmax(log_p, axis=1), y).mean()]

    function = pytensor.function if args.serial else synk.function
    step = function([x, y], updates=updates, name="step")
    scores = function([x, y], scores, name="scores")

    if args.serial:
        X, Y = data.images, data.labels

        def call(function, rows):
            return function(X[rows], Y[rows])

        def epoch(batches, progress):
            for k, rows in enumerate(batches, 1):
                step(X[rows], Y[rows])
                progress(k)

    else:
        X, Y = synk.data(data.images, var=x), synk.data(data.labels, var=y)

        def call(function, rows):
            return function(X, Y, batch=rows)

        def epoch(batches, progress):
            step.run(batches, X, Y, progress=progress)  # all steps in one launch

    # First calls compile. As long as the rate is zero, no parameter changes.
    for function in (step, scores):
        call(function, slice(1000))
    if args.serial:
        rate.set_value(floatX(args.rate))
    else:
        synk.broadcast(rate, floatX(args.rate))
    return epoch, lambda rows: call(scores, rows)


# -- training ------------------------------------------------------------------------


def train(args: argparse.Namespace, data: digits.Digits, epoch, measure) -> dict:
    """Train for some epochs, and return the history of loss and accuracy."""
    shuffle = np.random.default_rng(args.seed)
    history = defaultdict(list)
    parts = {
        "train": slice(data.n_train),
        "validation": slice(data.n_train, len(data.images)),
    }
    with tqdm(
        total=args.epochs * data.n_train, unit=" rows", unit_scale=True, disable=None
    ) as bar:
        for number in range(1, args.epochs + 1):
            order = shuffle.permutation(data.n_train)
            batches = [
                order[low : low + args.batch_size]  # the last may be fewer
                for low in range(0, data.n_train, args.batch_size)
            ]
            start = time.perf_counter()
            epoch(batches, lambda k, batches=batches: bar.update(len(batches[k - 1])))
            history["rows per second"].append(
                data.n_train / (time.perf_counter() - start)
            )
            for part, rows in parts.items():
                loss, accuracy = measure(rows)
                history[f"{part} loss"].append(float(loss))
                history[f"{part} accuracy"].append(float(accuracy))
            bar.write(f"epoch {number:3}: {report(history)}")
    return history


def report(history: dict) -> str:
    """Describe the last epoch in one line."""
    now = {name: values[-1] for name, values in history.items()}
    parts = [
        f"{part} loss {now[f'{part} loss']:.4f} accuracy {now[f'{part} accuracy']:.4f}"
        for part in ("train", "validation")
    ]
    return ", ".join([*parts, f"{now['rows per second']:,.0f} rows/s"])


def main() -> None:
    args = parse_arguments()
    # Forked first: loading data starts threads, which a fork doesn't copy.
    n = 1 if args.serial else synk.fork(args.ranks)
    how = "serial, plain PyTensor" if args.serial else f"{n} rank{'s' * (n > 1)}"
    data = digits.load(bundled=args.digits)
    n_validation = len(data.images) - data.n_train
    print(f"data: {data.name}, {data.n_train} rows and {n_validation} to validate")
    start = time.perf_counter()
    epoch, measure = build(args, data)
    print(f"{how}; compiled in {time.perf_counter() - start:.1f} s")
    history = train(args, data, epoch, measure)
    synk.close()
    speed = np.median(history["rows per second"])
    print(f"speed: {speed:,.0f} rows/s ({how}, median of epochs)")
    digits.plot(history, f"{data.name}: {how}, {speed:,.0f} rows/s", args.plot)
    print(f"plot: {args.plot}")
    print(
        f"final: train loss {history['train loss'][-1]:.6f}"
        f" validation accuracy {history['validation accuracy'][-1]:.4f}"
    )


if __name__ == "__main__":
    main()
