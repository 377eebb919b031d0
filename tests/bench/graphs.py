"""The training step as a PyTensor graph: plain and synk's differ in one line."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt

from . import mlp
from .options import Options


class Graph(NamedTuple):
    """Inputs, loss and parameters."""

    x: Any
    y: Any
    loss: Any
    params: list


def build(options: Options) -> Graph:
    x, y = pt.matrix("x", dtype="float32"), pt.vector("y", dtype="int64")
    params = []
    layer = x
    for i, (w, b) in enumerate(mlp.weights(options)):
        if i:
            layer = pt.tanh(layer) if options.activation == "tanh" else relu(layer)
        params += [pytensor.shared(w, f"w{i}"), pytensor.shared(b, f"b{i}")]
        layer = layer @ params[-2] + params[-1]
    log_p = pt.special.log_softmax(layer, axis=1)
    return Graph(x, y, -log_p[pt.arange(y.shape[0]), y].mean(), params)


def relu(x: Any) -> Any:
    return pt.maximum(x, np.float32(0))


def descent(params: list, grads: list) -> list[tuple]:
    """Return the updates of gradient descent."""
    return [
        (param, param - np.float32(mlp.RATE) * grad)
        for param, grad in zip(params, grads, strict=True)
    ]


def values(options: Options) -> list[np.ndarray]:
    """Return the parameters' initial values, in their order in the graph."""
    return [value for pair in mlp.weights(options) for value in pair]
