"""The likelihoods and networks as PyTensor graphs: by plain PyTensor, and by synk.

Peers by synk import it when they are opened: in plain PyTensor nothing is computed with
synk imported.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from bench import likelihoods, networks
from bench.likelihoods import ALPHA, NU
from bench.work import Options, questions, timed


def likelihood(column: str) -> tuple[list, list]:
    """Return the inputs x, y and beta, and value and gradient."""
    x = pt.matrix("x", dtype="float64")
    y, beta = (pt.vector(name, dtype="float64") for name in ("y", "beta"))
    value = TERMS[column](y, x @ beta).sum()
    return [x, y, beta], [value, pt.grad(value, beta)]


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


@contextmanager
def likelihood_plain(options, place):
    """In one process with all cores."""
    x, beta = likelihoods.rows(options), likelihoods.beta()

    def prepare(column):
        y = likelihoods.outcomes(column, x)

        def build():
            f = pytensor.function(*likelihood(column), mode=options.mode)
            # In JAX mode results come before they are computed, as JAX's own.
            return likelihoods.work(lambda: tuple(map(np.asarray, f(x, y, beta))))

        return build

    yield questions(likelihoods.COLUMNS, prepare)


@contextmanager
def likelihood_synk(options, place):
    """The rows lie in shared memory."""
    import synk

    with synk.session(options.ranks):
        x, beta = likelihoods.rows(options), likelihoods.beta()
        X = synk.data(x)

        def prepare(column):
            Y = synk.data(likelihoods.outcomes(column, x))

            def build():
                (*rows, point), outputs = likelihood(column)
                f = synk.function(rows, outputs, [point], mode=options.mode)
                return likelihoods.work(
                    lambda: f(X, Y, beta), lambda: tuned(f, X, Y, beta)
                )

            return build

        yield questions(likelihoods.COLUMNS, prepare)


@contextmanager
def train_plain(options, place):
    """In one process with all cores."""

    def prepare(column):
        kind, batch = networks.step_of(column)
        rows, labels = networks.data(options, kind)

        def build():
            graph = network(options, kind)
            train = stepper(pytensor.function, graph, options.mode)

            def restart():
                initial = values(options, kind)
                for param, value in zip(graph.params, initial, strict=True):
                    param.set_value(value)

            return networks.work(
                options,
                batch,
                lambda x, y: float(train(x, y)),
                lambda chosen: (rows[chosen], labels[chosen]),
                restart,
            )

        return build

    yield questions(options.columns, prepare)


@contextmanager
def train_synk(options, place):
    """The serial graph."""
    import synk

    with synk.session(options.ranks):

        def prepare(column):
            kind, batch = networks.step_of(column)
            rows, labels = map(synk.data, networks.data(options, kind))

            def build():
                graph = network(options, kind)
                train = stepper(synk.function, graph, options.mode)
                return networks.work(
                    options,
                    batch,
                    lambda chosen: float(train(rows, labels, batch=chosen)),
                    lambda chosen: (chosen,),
                    lambda: synk.broadcast(graph.params, values(options, kind)),
                    lambda chosen: tuned(train, rows, labels, batch=chosen),
                )

            return build

        yield questions(options.columns, prepare)


@contextmanager
def train_alone(options, place):
    """By synk with one rank, and plainly, in one process.

    In one process, as a difference of 1 % between two is nothing: memory that happens
    to be laid out otherwise makes as much.
    """
    import synk

    chosen = slice(0, options.alone)
    rows, labels = networks.data(options, "relu")
    with synk.session(1):
        ours, theirs = (network(options, "relu") for _ in range(2))
        train = stepper(synk.function, ours, None)
        plain = stepper(pytensor.function, theirs, None)
        x, y = synk.data(rows), synk.data(labels)

        def ours_once():
            return float(train(x, y, batch=chosen))

        def theirs_once():
            return float(plain(rows[chosen], labels[chosen]))

        yield {
            "check synk": lambda number: [ours_once() for _ in range(number)],
            "check plain": lambda number: [theirs_once() for _ in range(number)],
            "step synk": timed(ours_once),
            "step plain": timed(theirs_once),
        }


def stepper(function, graph, mode):
    """Return the training step, compiled by PyTensor's or synk's `function`."""
    grads = pytensor.grad(graph.loss, graph.params)
    updates = descent(graph.params, grads)
    return function([graph.x, graph.y], graph.loss, updates=updates, mode=mode)


def tuned(function, *args, **kwargs):
    """Have synk choose an engine for a function now; return its name, if it may."""
    import synk

    found = synk.tune(function, *args, **kwargs)
    return next((engine.name for engine in found if engine.is_best), None)
