"""What `explain(graph=True)` draws, of a step with batch normalisation on two ranks."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
from matplotlib.figure import Figure

import synk

from .style import WIDTH


def gather() -> synk.Explanation:
    """Return the explanation of a step, after a call: bytes are known then."""
    random = np.random.default_rng(0)
    x, y = pt.matrix("x"), pt.vector("y")
    w = pytensor.shared(random.normal(0, 0.1, (20, 10)), "w")
    v = pytensor.shared(random.normal(0, 0.1, 10), "v")
    h = x @ w
    h = (h - h.mean(axis=0)) / h.std(axis=0)
    loss = ((pt.tanh(h) @ v - y) ** 2).mean()
    loss.name = "loss"
    rule = synk.updates.sgd(pytensor.grad(loss, [w, v]), [w, v], 0.1)
    step = synk.function([x, y], loss, updates=rule, name="step", mode="FAST_COMPILE")
    with synk.session(2):
        step(random.normal(size=(100, 20)), random.normal(size=100))
        return step.explain(graph=True)


def draw(explanation: synk.Explanation) -> Figure:
    """Draw it as users do."""
    figure = Figure((WIDTH, 6.6))
    explanation.plot(ax=figure.subplots())
    return figure
