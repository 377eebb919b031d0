"""A script of 2015 runs as it is, and on ranks with the numbers of the serial run."""

import numpy as np
import pytest
import theano
import theano.tensor as T
from theano.sandbox.rng_mrg import MRG_RandomStreams
from theano.tensor.shared_randomstreams import RandomStreams

import synk

MODE = "FAST_COMPILE"


class LogisticRegression:
    """As scripts wrote it then."""

    def __init__(self, input, n_in, n_out):
        self.W = theano.shared(
            value=np.zeros((n_in, n_out), dtype=theano.config.floatX),
            name="W",
            borrow=True,
        )
        self.b = theano.shared(
            value=np.zeros((n_out,), dtype=theano.config.floatX), name="b", borrow=True
        )
        self.p_y_given_x = T.nnet.softmax(T.dot(input, self.W) + self.b)
        self.y_pred = T.argmax(self.p_y_given_x, axis=1)
        self.params = [self.W, self.b]

    def negative_log_likelihood(self, y):
        return -T.mean(T.log(self.p_y_given_x)[T.arange(y.shape[0]), y])

    def errors(self, y):
        return T.mean(T.neq(self.y_pred, y))


def digits(rows=47):
    """Return a small problem whose classes depend on the inputs."""
    rng = np.random.RandomState(23455)
    x = rng.randn(rows, 4)
    return x, np.argmax(x[:, :3] + 0.1 * rng.randn(rows, 3), axis=1).astype("int32")


def by_hand(x, y, steps, rate):
    """Return losses and weights of the same descent in NumPy."""
    w, b, losses = np.zeros((4, 3)), np.zeros(3), []
    for _ in range(steps):
        logits = x @ w + b
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        losses.append(-np.log(p[np.arange(len(y)), y]).mean())
        d = (p - np.eye(3)[y]) / len(y)
        w, b = w - rate * x.T @ d, b - rate * d.sum(axis=0)
    return losses, w


def model():
    x, y = T.matrix("x"), T.ivector("y")
    return x, y, LogisticRegression(input=x, n_in=4, n_out=3)


def test_logistic_regression_with_givens_and_an_index():
    x, y, classifier = model()
    images, labels = digits()
    shared_x = theano.shared(
        np.asarray(images, dtype=theano.config.floatX), borrow=True
    )
    shared_y = T.cast(theano.shared(labels.astype("float64")), "int32")
    cost, index = classifier.negative_log_likelihood(y), T.lscalar()
    g_w = T.grad(cost=cost, wrt=classifier.W)
    g_b = T.grad(cost=cost, wrt=classifier.b)
    train = theano.function(
        inputs=[index],
        outputs=cost,
        updates=[
            (classifier.W, classifier.W - 0.13 * g_w),
            (classifier.b, classifier.b - 0.13 * g_b),
        ],
        givens={
            x: shared_x[index * 20 : (index + 1) * 20],
            y: shared_y[index * 20 : (index + 1) * 20],
        },
        mode=MODE,
    )
    losses, w = by_hand(images[:20], labels[:20], 4, 0.13)
    np.testing.assert_allclose([train(0) for _ in range(4)], losses, rtol=1e-10)
    np.testing.assert_allclose(classifier.W.get_value(), w, rtol=1e-10)
    errors = theano.function([x, y], classifier.errors(y), mode=MODE)
    expected = np.mean(np.argmax(images @ w + classifier.b.get_value(), 1) != labels)
    assert errors(images, labels) == expected


@pytest.mark.parametrize("n", [2, 3])
def test_the_same_on_ranks_by_synk_function(n):
    x, y, classifier = model()
    images, labels = digits()
    cost = classifier.negative_log_likelihood(y)
    grads = synk.grad(cost, classifier.params)
    train = synk.function(
        [x, y],
        [cost, classifier.errors(y)],
        updates=[
            (p, p - 0.13 * g) for p, g in zip(classifier.params, grads, strict=True)
        ],
        mode=MODE,
        strict=True,
    )
    losses, w = by_hand(images, labels, 3, 0.13)
    with synk.session(n):
        got = [train(images, labels) for _ in range(3)]
    np.testing.assert_allclose([loss for loss, _ in got], losses, rtol=1e-10)
    np.testing.assert_allclose(classifier.W.get_value(), w, rtol=1e-10)


@pytest.mark.parametrize("streams", [RandomStreams, MRG_RandomStreams])
def test_streams_differ_between_calls_and_ranks(streams):
    x = T.matrix("x")
    rng = streams(seed=42)
    mask = rng.binomial(size=x.shape, n=1, p=0.5, dtype=theano.config.floatX)
    masks = synk.function([x], (mask * x, "gather"), mode=MODE)
    with synk.session(2):
        first, second = masks(np.ones((40, 8))), masks(np.ones((40, 8)))
    for drawn in first, second:
        assert 0.3 < drawn.mean() < 0.7
        assert set(np.unique(drawn)) == {0.0, 1.0}
        assert not np.array_equal(drawn[:20], drawn[20:]), "ranks drew the same mask"
    assert not np.array_equal(first, second)
