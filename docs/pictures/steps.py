"""The training step whose time the pictures show: a network of two layers."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt

import synk

ROWS, WIDTH = 600, 700
"""Enough parameters that their reduction and update are seen."""

CALLS = 20


class Seen(NamedTuple):
    """A timeline, and an explanation, of one session of two ranks."""

    events: list[dict[str, Any]]
    explanation: synk.Explanation


@cache
def seen() -> Seen:
    """Train for some calls on two ranks, under a trace.

    The mode compiles within a second, and computes with numpy.
    """
    random = np.random.default_rng(0)
    x, y = pt.matrix("x"), pt.vector("y")
    w = pytensor.shared(random.normal(0, 0.05, (WIDTH, WIDTH)), "w")
    v = pytensor.shared(random.normal(0, 0.05, WIDTH), "v")
    loss = ((pt.tanh(x @ w) @ v - y) ** 2).mean()
    loss.name = "loss"
    rule = synk.updates.sgd(loss, [w, v], learning_rate=0.1)
    train = synk.function([x, y], loss, updates=rule, name="train", mode="FAST_COMPILE")
    with synk.session(2), tempfile.TemporaryDirectory() as folder:
        X = synk.data(random.normal(size=(ROWS, WIDTH)))
        Y = synk.data(random.normal(size=ROWS))
        for _ in range(3):
            train(X, Y)
        path = Path(folder, "trace.json")
        with synk.trace(path):
            for _ in range(CALLS):
                train(X, Y)
        events = json.loads(path.read_text())["traceEvents"]
        return Seen(events, train.explain(X, Y, measure=True))
