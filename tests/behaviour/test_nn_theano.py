"""`synk.nn` under Theano's names, with Theano's arguments: values and derivatives."""

from __future__ import annotations

import numpy as np
import pytest
import theano.tensor as T
from networks import check_derivatives, evaluate
from theano.tensor.nnet import bn, neighbours
from theano.tensor.signal import pool

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3, 2, 4, 6))
GAMMA, BETA, MEAN = (RNG.normal(size=(1, 2, 1, 1)) for _ in range(3))
VAR = RNG.uniform(0.5, 2, (1, 2, 1, 1))


def check(build, expected, *values):
    """Compare a graph with numpy's values, first and second slopes with differences."""
    np.testing.assert_allclose(evaluate(build, *values), expected, rtol=1e-9)
    check_derivatives(build, *values)


def test_batch_normalization_train():
    axes = (0, 2, 3)
    mean, var = X.mean(axes, keepdims=True), X.var(axes, keepdims=True)

    def build(x, gamma, beta):
        results = bn.batch_normalization_train(
            x,
            gamma,
            beta,
            axes="spatial",
            epsilon=1e-3,
            running_average_factor=0.2,
            running_mean=T.zeros((1, 2, 1, 1)),
            running_var=T.ones((1, 2, 1, 1)),
        )
        assert len(results) == 5
        return results[0] + results[3] + results[4]

    running = 0.2 * mean + 0.8 + 0.2 * var * 72 / 71
    expected = (X - mean) / np.sqrt(var + 1e-3) * GAMMA + BETA + running
    check(build, expected, X, GAMMA, BETA)


def test_batch_normalization_test():
    expected = (X - MEAN) / np.sqrt(VAR + 1e-4) * GAMMA + BETA
    given = X, GAMMA, BETA, MEAN, VAR
    check(lambda *v: bn.batch_normalization_test(*v, axes="spatial"), expected, *given)
    assert T.nnet.batch_normalization_test is bn.batch_normalization_test


@pytest.mark.parametrize("mode", ["low_mem", "high_mem"])
def test_the_older_batch_normalization(mode):
    def build(x, *given):
        given = [T.addbroadcast(values, 0, 2, 3) for values in given]
        return bn.batch_normalization(x, *given, mode=mode)

    expected = (X - MEAN) * (GAMMA / VAR) + BETA
    check(build, expected, X, GAMMA, BETA, MEAN, VAR)


def test_images_to_neighbours_and_back():
    patches = X.reshape(3, 2, 2, 2, 2, 3).transpose(0, 1, 2, 4, 3, 5).reshape(-1, 6)
    check(lambda x: neighbours.images2neibs(x, (2, 3)), patches, X)

    def back(patches):
        return neighbours.neibs2images(patches, (2, 3), X.shape, mode="valid")

    np.testing.assert_allclose(evaluate(back, patches), X)


@pytest.mark.parametrize(
    ("mode", "of"),
    [("max", np.max), ("sum", np.sum), ("average_exc_pad", np.mean)],
)
def test_pooling_by_new_and_old_arguments(mode, of):
    parts = X.reshape(3, 2, 2, 2, 2, 3)
    expected = of(parts, axis=(3, 5))
    check(
        lambda x: pool.pool_2d(x, ws=(2, 3), ignore_border=True, mode=mode), expected, X
    )
    old = {"ds": (2, 3), "st": (2, 3), "padding": (0, 0)}
    got = evaluate(lambda x: pool.pool_2d(x, **old, ignore_border=True, mode=mode), X)
    np.testing.assert_allclose(got, expected)
    volumes = of(X.reshape(3, 1, 2, 2, 2, 2, 3), axis=(2, 4, 6))[:, None]
    check(
        lambda x: pool.pool_3d(
            x.dimshuffle(0, "x", 1, 2, 3), (2, 2, 3), ignore_border=True, mode=mode
        ),
        volumes.reshape(3, 1, 1, 2, 2),
        X,
    )


def test_second_derivatives_of_networks():
    w = RNG.normal(size=(2, 2, 2, 2))

    def build(x, w):
        features = T.nnet.conv2d(x, w, border_mode="half", filter_flip=False)
        pooled = pool.pool_2d(T.tanh(features), (2, 2), ignore_border=True)
        return T.nnet.softmax(pooled.flatten(2))

    check_derivatives(build, X, w)
