"""The likelihoods and networks as PyTensor graphs: by plain PyTensor, and by synk.

Peers by synk import it when they are opened: in plain PyTensor nothing is computed with
synk imported.
"""

from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from bench import likelihoods, networks
from bench.work import Options, questions


def likelihood(column: str) -> tuple[list, list]:
    """Return the inputs x, y and beta, and value and gradient."""
    x = pt.matrix("x", dtype="float64")
    y, beta = (pt.vector(name, dtype="float64") for name in ("y", "beta"))
    value = TERMS[column](y, x @ beta).sum()
    return [x, y, beta], [value, pt.grad(value, beta)]


TERMS = likelihoods.terms_by(pt)


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
        yield
        f = pytensor.function(*likelihood(column), mode=options.mode)
        # In JAX mode results come before they are computed, as JAX's own.
        yield likelihoods.work(lambda: tuple(map(np.asarray, f(x, y, beta))))

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
            yield
            (*rows, point), outputs = likelihood(column)
            f = synk.function(rows, outputs, [point], mode=options.mode)
            tune = partial(planned, f, X, Y, beta)
            yield likelihoods.work(lambda: f(X, Y, beta), tune)

        yield questions(likelihoods.COLUMNS, prepare)


@contextmanager
def train_plain(options, place):
    """In one process with all cores."""

    def prepare(column):
        kind, batch = networks.step_of(column)
        rows, labels = networks.data(options, kind)
        yield
        graph = network(options, kind)
        train = stepper(pytensor.function, graph, options.mode)

        def restart():
            initial = values(options, kind)
            for param, value in zip(graph.params, initial, strict=True):
                param.set_value(value)

        def batch_of(chosen):
            return rows[chosen], labels[chosen]

        step = lambda x, y: float(train(x, y))  # noqa: E731
        yield networks.work(options, batch, step, batch_of, restart)

    yield questions(options.columns, prepare)


@contextmanager
def train_synk(options, place):
    """The serial graph."""
    import synk

    with synk.session(options.ranks):

        def prepare(column):
            kind, batch = networks.step_of(column)
            rows, labels = map(synk.data, networks.data(options, kind))
            yield
            graph = network(options, kind)
            train = stepper(synk.function, graph, options.mode)
            yield networks.work(
                options,
                batch,
                lambda chosen: float(train(rows, labels, batch=chosen)),
                lambda chosen: (chosen,),
                lambda: synk.broadcast(graph.params, values(options, kind)),
                lambda chosen: planned(train, rows, labels, batch=chosen),
            )

        yield questions(options.columns, prepare)


def stepper(function, graph, mode):
    """Return the training step, compiled by PyTensor's or synk's `function`."""
    grads = pytensor.grad(graph.loss, graph.params)
    updates = descent(graph.params, grads)
    return function([graph.x, graph.y], graph.loss, updates=updates, mode=mode)


def planned(function, *args, **kwargs):
    """Make a call; return the plan of it."""
    function(*args, **kwargs)
    return function.explain().to_dict()["plan"].partition(":")[0]
