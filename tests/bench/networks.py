"""The training steps that are compared: networks, data, and what is right.

A column is named ``"relu 512"``: what kind of network, and the rows of a batch. A kind
is the activation of dense layers, or ``cnn``: convolutions of 3 x 3 on images that keep
their size, each with relu and a maximum over 2 x 2, and dense layers after them, which
is the network of ``demos/mnist.py --model cnn``.

Weights of four dimensions are a convolution's, which correlates: filters are not
flipped. Those of two are a dense layer's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from .options import Options
from .work import Work

RATE = 0.05
"""Of gradient descent."""

CNN = "cnn"


class Step(NamedTuple):
    """A training step: a column.

    Attributes
    ----------
    kind : {"relu", "tanh", "cnn"}
    batch : int
        Rows.
    """

    kind: str
    batch: int

    @property
    def activation(self) -> str:
        return "relu" if self.kind == CNN else self.kind


def step_of(column: str) -> Step:
    """Return what a column is about.

    >>> step_of("cnn 64")
    Step(kind='cnn', batch=64)
    """
    kind, batch = column.split()
    return Step(kind, int(batch))


def weights(options: Options, kind: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the initial weights and biases, float32.

    The weights' shape is (inputs, outputs), or (outputs, inputs, 3, 3).
    """
    random = np.random.default_rng(0)
    layers, filters = options.layers, []
    if kind == CNN:
        filters = [(m, n, 3, 3) for n, m in itertools.pairwise((1, *options.filters))]
        side = options.side // 2 ** len(filters)
        layers = (options.filters[-1] * side**2, *options.units)
    found = []
    for shape in (*filters, *itertools.pairwise(layers)):
        inputs = shape[0] if len(shape) == 2 else np.prod(shape[1:])
        w = random.normal(size=shape) * np.sqrt(2 / inputs)
        outputs = shape[1] if len(shape) == 2 else shape[0]
        found.append((w.astype("float32"), np.zeros(outputs, "float32")))
    return found


def data(options: Options, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows, float32, and their labels, int64."""
    random = np.random.default_rng(1)
    shape: tuple[int, ...] = (options.layers[0],)
    if kind == CNN:
        shape = 1, options.side, options.side
    rows = random.standard_normal((options.rows, *shape), dtype="float32")
    classes = (options.units if kind == CNN else options.layers)[-1]
    return rows, random.integers(0, classes, options.rows)


def slices(options: Options, batch: int) -> list[slice]:
    """Return the batches: side by side, and none smaller than the others."""
    return [
        slice(start, start + batch)
        for start in range(0, options.rows - batch + 1, batch)
    ]


def work(
    options: Options,
    batch: int,
    step: Callable[..., float],
    batch_of: Callable[[slice], tuple],
    restart: Callable[[], object],
    tune: Callable[..., str | None] = lambda *_: None,
) -> Work:
    """Return the work of an implementation.

    Parameters
    ----------
    options : Options
    batch : int
    step : callable
        Makes a step with the arguments that `batch_of` returned; returns the loss.
    batch_of : callable
        Returns a batch in the form that `step` likes best.
    restart : callable
        Sets the initial weights.
    tune : callable, optional
        Has it choose how to compute, with the arguments of a step; returns its choice.
    """
    batches = [batch_of(rows) for rows in slices(options, batch)]

    def losses(number: int) -> list[float]:
        restart()
        return [step(*b) for b in itertools.islice(itertools.cycle(batches), number)]

    def forever() -> Iterator[float]:
        for of_batch in itertools.cycle(batches):
            yield step(*of_batch)

    return Work(forever().__next__, losses, lambda: tune(*batches[0]))
