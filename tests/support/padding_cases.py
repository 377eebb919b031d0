"""Graphs that can be padded, of each kind that networks and models are made of.

Each takes rows x of 4 numbers, classes y below 3, short sequences s of 4 numbers and
small images, and returns what is computed of them. Variables have fixed values.
"""

import numpy as np
import pytensor
import pytensor.tensor as pt

from synk import nn

CASES = {}


def case(make):
    CASES[make.__name__] = make
    return make


def inputs():
    return [
        pt.matrix("x"),
        pt.lvector("y"),
        pt.tensor3("s", shape=(None, None, 4)),
        pt.tensor4("images"),
    ]


def rows(n: int, seed: int = 0):
    random = np.random.default_rng(seed)
    return [
        random.normal(size=(n, 4)),
        random.integers(0, 3, n),
        random.normal(size=(n, 3, 4)),
        random.normal(size=(n, 2, 6, 6)),
    ]


def weights(*shape: int):
    random = np.random.default_rng(len(shape) * 100 + sum(shape))
    return pytensor.shared(random.normal(size=shape), name=f"w{shape}")


def with_gradients(loss, *params):
    return [loss, *pytensor.grad(loss, list(params))]


@case
def statistics(x, y, s, images):
    """Reductions over the rows, beside them, and over both."""
    centred = x - x.mean(axis=0)
    return [
        *(x.sum(), x.sum(axis=0), x.mean(), x.var(axis=0), x.std(), x.prod(axis=0)),
        *(x.max(axis=0), x.min(), abs(x).max(), y.max(), y.min(), y.sum()),
        *((x > 0).all(axis=0), (x > 9).any(), x.argmax(axis=1)),
        *(x.norm(2), pt.logsumexp(x, axis=0), centred, centred.T @ centred),
        *(x.shape[0], x.size, x / x.shape[0], x * y.sum(), pt.ones_like(x).sum()),
        pt.full((x.shape[0],), x.shape[0]),
        pt.set_subtensor(pt.stack([y, y], axis=1)[:, 0], x.shape[0]),
        pt.inc_subtensor(pt.zeros(3, dtype="int64")[y], x.shape[0]),
        *(pt.special.softmax(x, axis=0), pt.special.log_softmax(s, axis=0).max(axis=0)),
        *(s.mean(axis=(0, 1)), s.sum(axis=1), s.max(axis=(0, 2)), x[:, 1:3]),
        *(pt.stack([x, x]), pt.arange(x.shape[0])),
    ]


@case
def perceptron(x, y, s, images):
    """Softmax and cross-entropy by ``p[arange(n), y]``, and a likelihood as a sum."""
    w, v, b = weights(4, 5), weights(5, 3), weights(3)
    p = pt.special.softmax(pt.tanh(x @ w) @ v + b, axis=1)
    loss = -pt.log(p[pt.arange(y.shape[0]), y]).mean()
    accuracy = pt.eq(p.argmax(axis=1), y).mean()
    q = pt.sigmoid(x @ w[:, 0] + b[0])
    likelihood = pt.switch(y > 0, pt.log(q), pt.log(1 - q)).sum()
    of_both = [*with_gradients(loss, w, v, b), *with_gradients(likelihood, w, b)]
    return [*of_both, p, accuracy, pt.switch(q > 0.5, 1, 0).sum()]


@case
def batch_norm(x, y, s, images):
    """Statistics over the rows, and gradients through them."""
    w, gamma, beta = weights(4, 5), weights(5), weights(2, 5)[0]
    made = nn.batch_normalization_train(
        x @ w, gamma, beta, running_mean=weights(5), running_var=abs(weights(5))
    )
    loss = pt.sqr(made[0] - 1).sum(axis=1).mean()
    return [*made, *with_gradients(loss, w, gamma)]


@case
def convolution(x, y, s, images):
    """Convolution, pooling, and batch normalisation of channels."""
    w, v, gamma = weights(3, 2, 3, 3), weights(12, 3), weights(3)
    maps = nn.conv2d(images, w)
    maps = nn.batch_normalization_train(maps, gamma, gamma * 0, "spatial")[0]
    maps = nn.pool_2d(pt.tanh(maps), (2, 2))
    scores = nn.log_softmax(maps.flatten(2) @ v)
    loss = -scores[pt.arange(y.shape[0]), y].mean()
    return [*with_gradients(loss, w, v, gamma), maps, scores]


@case
def recurrence(x, y, s, images):
    """A loop over time, with rows along the second axis, also in the products."""
    w, u = weights(4, 5), weights(5, 5)

    def step(now, state, u):
        return pt.tanh(now + state @ u)

    states = pytensor.scan(
        step,
        sequences=[pt.dot(s.dimshuffle(1, 0, 2), w)],
        outputs_info=[pt.zeros((s.shape[0], 5))],
        non_sequences=[u],
        return_updates=False,
    )
    loss = pt.sqr(states[-1]).mean() + states.var()
    return [*with_gradients(loss, w, u), states]
