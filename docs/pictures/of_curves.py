"""Learning curves: the digits of scikit-learn, serially and on two ranks."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter
from sklearn.datasets import load_digits

import synk

from .style import BLUE, ORANGE, WIDTH, ink

EPOCHS, BATCH, UNITS = 12, 100, 32
TRAINED = 1400
"""Rows to train on; the others validate."""


class Curves(NamedTuple):
    """Losses by epoch, of the rows trained on and of the others."""

    trained: np.ndarray
    others: np.ndarray


def gather() -> tuple[Curves, Curves]:
    """Return the curves of the serial run and of two ranks, which must be the same."""
    serial = train(pytensor.function, shared=np.asarray)
    with synk.session(2):
        ranks = train(synk.function, shared=synk.data)
    np.testing.assert_allclose(ranks, serial, rtol=1e-9)
    return serial, ranks


def train(function, shared) -> Curves:
    """Train from the same parameters, with the same batches."""
    digits, random = load_digits(), np.random.default_rng(1)
    order = random.permutation(len(digits.data))
    images, labels = digits.data[order] / 16, digits.target[order]
    x, y = pt.matrix("x"), pt.lvector("y")
    w = pytensor.shared(random.normal(0, 0.1, (images.shape[1], UNITS)), "w")
    v = pytensor.shared(random.normal(0, 0.1, (UNITS, 10)), "v")
    classes = pt.special.softmax(pt.tanh(x @ w) @ v, axis=1)
    loss = -pt.log(classes)[pt.arange(y.shape[0]), y].mean()
    rule = synk.updates.momentum(loss, [w, v], learning_rate=0.1, momentum=0.9)
    step = function([x, y], loss, updates=rule, mode="FAST_COMPILE")
    look = function([x, y], loss, mode="FAST_COMPILE")
    rows = [shared(part[:TRAINED]) for part in (images, labels)]
    others = [shared(part[TRAINED:]) for part in (images, labels)]
    found = []
    for _ in range(EPOCHS):
        batches = np.array_split(random.permutation(TRAINED), TRAINED // BATCH)
        for batch in batches:
            if function is synk.function:
                step(*rows, batch=batch)
            else:
                step(*(part[batch] for part in rows))
        found.append((float(look(*rows)), float(look(*others))))
    return Curves(*np.transpose(found))


def draw(curves: tuple[Curves, Curves]) -> Figure:
    """Draw the curves of two ranks over those of the serial run."""
    serial, ranks = curves
    figure = Figure((WIDTH * 0.75, 3.0), layout="constrained")
    ax = figure.subplots()
    epochs = np.arange(1, EPOCHS + 1)
    for colour, what in ((BLUE, "trained"), (ORANGE, "others")):
        label = {"trained": "rows trained on", "others": "other rows"}[what]
        of_serial, of_ranks = getattr(serial, what), getattr(ranks, what)
        ax.plot(
            epochs,
            of_serial,
            color=colour,
            alpha=0.45,
            linewidth=6,
            label=f"{label}, serial",
        )
        ax.plot(
            epochs,
            of_ranks,
            color=ink(),
            linestyle="-" if what == "trained" else "--",
            linewidth=1.2,
            label=f"{label}, 2 ranks",
        )
    ax.set_yscale("log")
    ax.yaxis.set_major_formatter(ScalarFormatter())
    ax.set_xlabel("epoch")
    ax.set_ylabel("cross-entropy")
    ax.legend()
    return figure
