"""The training steps that are compared: networks, data, and what is right.

A column is named ``"relu 512"``: what kind of network, and the rows of a batch. A kind
is the activation of dense layers, or ``cnn``: convolutions of 3 x 3 on images that keep
their size, each with relu and a maximum over 2 x 2, and dense layers after them, which
is the network of ``demos/mnist.py --model cnn``.

Weights of four dimensions are a convolution's, which correlates: filters are not
flipped. Those of two are a dense layer's.
"""

import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from .work import Options, Work

RATE = 0.05
"""Of gradient descent."""

CNN = "cnn"


class Step(NamedTuple):
    """A training step: a column."""

    kind: str  # "relu", "tanh" or "cnn"
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
    starts = range(0, options.rows - batch + 1, batch)
    return [slice(start, start + batch) for start in starts]


def work(
    options: Options,
    batch: int,
    step: Callable[..., float],
    batch_of: Callable[[slice], tuple],
    restart: Callable[[], object],
    tune: Callable[..., str | None] = lambda *_: None,
) -> Work:
    """Return the work of an implementation.

    Its `step` takes what `batch_of` has made of a slice, and returns the loss;
    `restart` sets the initial weights, and `tune` tells how a call is computed.
    """
    batches = [batch_of(rows) for rows in slices(options, batch)]

    def losses(number: int) -> list[float]:
        restart()
        return [step(*b) for b in itertools.islice(itertools.cycle(batches), number)]

    forever = (step(*of_batch) for of_batch in itertools.cycle(batches))
    return Work(forever.__next__, losses, lambda: tune(*batches[0]))


# -- the losses that steps of dense networks must have: in float64, by numpy alone


@functools.cache
def reference(options: Options, column: str, number: int) -> list[float]:
    """Return the losses of the first steps."""
    step = step_of(column)
    rows, labels = data(options, step.kind)
    params = [
        [w.astype("float64"), b.astype("float64")]
        for w, b in weights(options, step.kind)
    ]
    losses = []
    batches = slices(options, step.batch)
    for chosen in itertools.islice(itertools.cycle(batches), number):
        loss, grads = loss_and_gradients(
            params, rows[chosen].astype("float64"), labels[chosen], step.activation
        )
        losses.append(loss)
        for (w, b), (of_w, of_b) in zip(params, grads, strict=True):
            w -= RATE * of_w
            b -= RATE * of_b
    return losses


def loss_and_gradients(params, x, labels, activation):
    """Return the mean cross-entropy, and its gradients by layer."""
    layers = [x]
    for w, b in params[:-1]:
        z = layers[-1] @ w + b
        layers.append(np.tanh(z) if activation == "tanh" else np.maximum(z, 0))
    z = layers[-1] @ params[-1][0] + params[-1][1]
    z -= z.max(axis=1, keepdims=True)
    log_p = z - np.log(np.exp(z).sum(axis=1, keepdims=True))
    here = np.arange(len(labels)), labels
    delta = np.exp(log_p)
    delta[here] -= 1
    delta /= len(labels)
    grads: list = []
    for (w, _), values in zip(reversed(params), reversed(layers), strict=True):
        grads.insert(0, (values.T @ delta, delta.sum(axis=0)))
        slope = 1 - values**2 if activation == "tanh" else values > 0
        delta = delta @ w.T * slope
    return float(-log_p[here].mean()), grads
