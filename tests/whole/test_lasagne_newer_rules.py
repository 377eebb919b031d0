"""What code written for Lasagne after 0.1 asks of Theano beside its layers.

Objectives, update rules, looks at graphs; see ``test_lasagne_newer.py``.
"""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import theano
import theano.tensor as T
from networks import MODE, check_derivatives, evaluate

RNG = np.random.default_rng(0)
MATRIX = RNG.normal(size=(4, 5))
CLASSES = np.array([0, 4, 1, 2], dtype="int32")


# -- objectives


def test_hinge_losses():
    def multiclass(p, y):
        chosen = T.extra_ops.to_one_hot(y, p.shape[1])
        correct = p[chosen.nonzero()]
        rest = T.reshape(p[(1 - chosen).nonzero()], (-1, p.shape[1] - 1))
        return T.nnet.relu(T.max(rest, axis=1) - correct + 1)

    others = np.where(np.eye(5)[CLASSES] == 1, -np.inf, MATRIX).max(axis=1)
    expected = np.maximum(others - MATRIX[np.arange(4), CLASSES] + 1, 0)
    np.testing.assert_allclose(evaluate(multiclass, MATRIX, CLASSES), expected)

    def binary(p):
        return T.nnet.relu(1 - p * (2 * T.gt(p, 0.3) - 1))

    signs = 2 * (MATRIX > 0.3) - 1
    np.testing.assert_allclose(
        evaluate(binary, MATRIX), np.maximum(0, 1 - MATRIX * signs)
    )
    check_derivatives(binary, MATRIX, second=False)


def test_accuracies():
    def among_best(p, y):
        best = T.argsort(p, axis=-1)
        best = best[[slice(None) for _ in range(best.ndim - 1)] + [slice(-2, None)]]
        return T.any(T.eq(best, T.shape_padaxis(y, axis=-1)), axis=-1)

    two = MATRIX.argsort(axis=1)[:, -2:]
    targets = np.array([two[0, 0], two[1, 1], two[2, 0], 0], dtype="int32")
    expected = [True, True, True, 0 in two[3]]
    np.testing.assert_array_equal(evaluate(among_best, MATRIX, targets), expected)
    exact = evaluate(lambda p, y: T.eq(T.argmax(p, axis=-1), y), MATRIX, targets)
    np.testing.assert_array_equal(exact, MATRIX.argmax(axis=1) == targets)


def test_a_column_of_predictions_is_seen_in_its_type():
    column = T.TensorType("float64", (False, True))()
    assert column.broadcastable == (False, True)
    assert theano.shared(
        np.ones((3, 1)), broadcastable=(False, True)
    ).broadcastable == (
        False,
        True,
    )


# -- parameters and updates


def test_shared_variables_of_an_expression():
    w = theano.shared(np.ones((5, 2)))
    x = T.matrix()
    found = [
        variable
        for variable in theano.gof.graph.inputs([T.dot(x, w)])
        if isinstance(variable, theano.compile.SharedVariable)
    ]
    assert found == [w]


@pytest.mark.parametrize("rule", ["adamax", "amsgrad"])
def test_update_rules_with_largest_moments(rule):
    """As in Kingma and Ba 2015, algorithm 2, and Reddi et al. 2018."""
    p = theano.shared(MATRIX.copy())
    one = T.constant(1)
    step = theano.shared(np.asarray(0.0))
    mean, second, top = (
        theano.shared(
            np.zeros(p.get_value(borrow=True).shape), broadcastable=p.broadcastable
        )
        for _ in range(3)
    )
    gradient = T.grad((p**2).sum(), p)
    t = step + 1
    new = 0.9 * mean + (one - 0.9) * gradient
    updates = {step: t, mean: new}
    if rule == "adamax":
        updates[top] = T.maximum(0.999 * top, abs(gradient) + 1e-8)
        rate = 0.1 / (one - 0.9**t)
        updates[p] = p - rate * new / updates[top]
    else:
        updates[second] = 0.999 * second + (one - 0.999) * gradient**2
        updates[top] = T.maximum(top, updates[second])
        rate = 0.1 * T.sqrt(one - 0.999**t) / (one - 0.9**t)
        updates[p] = p - rate * new / (T.sqrt(updates[top]) + 1e-8)
    train = theano.function([], [], updates=updates, mode=MODE)

    value, m, v, u = MATRIX.copy(), 0, 0, 0
    for i in range(1, 4):
        train()
        g = 2 * value
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        if rule == "adamax":
            u = np.maximum(0.999 * u, abs(g) + 1e-8)
            value = value - 0.1 / (1 - 0.9**i) * m / u
        else:
            u = np.maximum(u, v)
            rate = 0.1 * np.sqrt(1 - 0.999**i) / (1 - 0.9**i)
            value = value - rate * m / (np.sqrt(u) + 1e-8)
    np.testing.assert_allclose(p.get_value(), value, rtol=1e-9)


@pytest.mark.parametrize("name", ["dnn", "corrmm", "cuda_convnet"])
def test_layers_for_gpus_are_missing_as_in_a_theano_without_one(name):
    with pytest.raises(ImportError, match=r"GPU|dnn not available|pylearn2"):
        importlib.import_module(f"lasagne.layers.{name}")
    assert theano.config.device == "cpu"
