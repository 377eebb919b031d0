"""The training step that is compared: network, data, questions, and what is right."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator

import numpy as np

from .options import Options
from .timing import Question, timed

RATE = 0.05
"""Of gradient descent."""


def weights(options: Options) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the initial weight matrices (inputs, outputs) and biases, float32."""
    random = np.random.default_rng(0)
    return [
        (
            (random.normal(size=(n, m)) * np.sqrt(2 / n)).astype("float32"),
            np.zeros(m, "float32"),
        )
        for n, m in itertools.pairwise(options.layers)
    ]


def data(options: Options) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows, float32, and their labels, int64."""
    random = np.random.default_rng(1)
    shape = options.rows, options.layers[0]
    rows = random.standard_normal(shape, dtype="float32")
    return rows, random.integers(0, options.layers[-1], options.rows)


def slices(options: Options, batch: int) -> list[slice]:
    """Return the batches: side by side, and none smaller than the others."""
    return [
        slice(start, start + batch)
        for start in range(0, options.rows - batch + 1, batch)
    ]


def questions(
    options: Options,
    step: Callable[..., float],
    batch_of: Callable[[slice], tuple],
    restart: Callable[[], object],
    together: Callable[[], object] | None = None,
) -> dict[str, Question]:
    """Return what every implementation of the step is asked.

    Parameters
    ----------
    options : Options
    step : callable
        Makes a step with the arguments that `batch_of` returned; returns the loss.
    batch_of : callable
        Returns a batch in the form that `step` likes best.
    restart : callable
        Sets the initial weights.
    together : callable, optional
        A barrier, where several processes step together.
    """
    found: dict[str, Question] = {}
    for batch in options.batches:
        batches = [batch_of(rows) for rows in slices(options, batch)]

        def losses(number: int, batches=batches) -> list[float]:
            restart()
            return [
                step(*b) for b in itertools.islice(itertools.cycle(batches), number)
            ]

        def forever(batches=batches) -> Iterator[float]:
            for of_batch in itertools.cycle(batches):
                yield step(*of_batch)

        found[f"losses {batch}"] = losses
        found[f"step {batch}"] = timed(forever().__next__, together)
    return found


@functools.cache
def reference(
    options: Options, batch: int, number: int, same_rows: bool = False
) -> list[float]:
    """Return the losses of the first steps, in float64 by numpy alone.

    With `same_rows` all steps are made with the first batch.
    """
    rows, labels = data(options)
    params = [[w.astype("float64"), b.astype("float64")] for w, b in weights(options)]
    losses = []
    batches = slices(options, batch)[: 1 if same_rows else None]
    for chosen in itertools.islice(itertools.cycle(batches), number):
        loss, grads = _loss_and_gradients(
            params, rows[chosen].astype("float64"), labels[chosen], options.activation
        )
        losses.append(loss)
        for (w, b), (of_w, of_b) in zip(params, grads, strict=True):
            w -= RATE * of_w
            b -= RATE * of_b
    return losses


def _loss_and_gradients(params, x, labels, activation):
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
    for (w, _), layer in zip(reversed(params), reversed(layers), strict=True):
        grads.insert(0, (layer.T @ delta, delta.sum(axis=0)))
        slope = 1 - layer**2 if activation == "tanh" else layer > 0
        delta = (delta @ w.T) * slope
    return float(-log_p[here].mean()), grads
