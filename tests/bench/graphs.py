"""The likelihoods and networks as PyTensor graphs: plain PyTensor's and synk's."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt

from . import likelihoods, networks
from .likelihoods import ALPHA, NU
from .options import Options


class Likelihood(NamedTuple):
    """Inputs, value and gradient."""

    x: Any
    y: Any
    beta: Any
    outputs: list


def likelihood(column: str) -> Likelihood:
    x = pt.matrix("x", dtype="float64")
    y, beta = (pt.vector(name, dtype="float64") for name in ("y", "beta"))
    value = TERMS[column](y, x @ beta).sum()
    return Likelihood(x, y, beta, [value, pt.grad(value, beta)])


def _student(y: Any, eta: Any) -> Any:
    constant = pt.gammaln(NU / 2) - pt.gammaln((NU + 1) / 2) + pt.log(NU * np.pi) / 2
    return constant + (NU + 1) / 2 * pt.log1p((y - eta) ** 2 / NU)


def _negative_binomial(y: Any, eta: Any) -> Any:
    constant = pt.gammaln(ALPHA) - ALPHA * np.log(ALPHA)
    terms = pt.gammaln(y + 1) - pt.gammaln(y + ALPHA) + constant
    return terms + (y + ALPHA) * pt.log(ALPHA + pt.exp(eta)) - y * eta


TERMS = {
    "logistic": lambda y, eta: pt.softplus(eta) - y * eta,
    "poisson": lambda y, eta: pt.exp(eta) - y * eta + pt.gammaln(y + 1),
    "student": _student,
    "negative-binomial": _negative_binomial,
}
assert TERMS.keys() == likelihoods.COLUMNS.keys()


class Network(NamedTuple):
    """Inputs, loss and parameters."""

    x: Any
    y: Any
    loss: Any
    params: list


def network(options: Options, kind: str) -> Network:
    x = pt.tensor("x", dtype="float32", shape=(None,) * (4 if kind == "cnn" else 2))
    y = pt.vector("y", dtype="int64")
    params = [pytensor.shared(value) for value in values(options, kind)]
    *hidden, last = zip(params[::2], params[1::2], strict=True)
    layer = x
    for w, b in hidden:
        layer = _layer(layer, w, b, kind)
    log_p = pt.special.log_softmax(layer.flatten(2) @ last[0] + last[1], axis=1)
    # Not `log_p[pt.arange(y.shape[0]), y]`: PyTensor's JAX mode has no such range.
    classes = np.arange(last[1].get_value(borrow=True).size)
    chosen = pt.switch(pt.eq(y[:, None], classes), log_p, np.float32(0))
    return Network(x, y, -chosen.sum(axis=1).mean(), params)


def _layer(x: Any, w: Any, b: Any, kind: str) -> Any:
    if w.ndim == 4:
        # PyTensor has no convolution of its own. Imported here, so that in plain
        # PyTensor nothing else is computed with synk imported.
        from synk import nn

        z = nn.conv2d(x, w, border_mode="half") + b[:, None, None]
        return nn.pool_2d(relu(z), (2, 2))
    z = x.flatten(2) @ w + b
    return pt.tanh(z) if kind == "tanh" else relu(z)


def relu(x: Any) -> Any:
    return pt.maximum(x, np.float32(0))


def descent(params: list, grads: list) -> list[tuple]:
    """Return the updates of gradient descent."""
    return [
        (param, param - np.float32(networks.RATE) * grad)
        for param, grad in zip(params, grads, strict=True)
    ]


def values(options: Options, kind: str) -> list[np.ndarray]:
    """Return the parameters' initial values, in their order in the graph."""
    return [
        # Theano convolves, which flips the filters.
        value[:, :, ::-1, ::-1].copy() if value.ndim == 4 else value
        for pair in networks.weights(options, kind)
        for value in pair
    ]
