"""Lasagne's update rules, unchanged, give the serial run's numbers on ranks."""

import lasagne
import numpy as np
import pytest
import theano
import theano.tensor as T
from lasagne import layers as L

import synk

MODE = "FAST_COMPILE"
RATES = {
    "sgd": {"learning_rate": 0.1},
    "momentum": {"learning_rate": 0.1},
    "nesterov_momentum": {"learning_rate": 0.1},
    "adagrad": {},
    "rmsprop": {"learning_rate": 0.01},
    "adadelta": {},
    "adam": {},
}


def network():
    """Return the same small network each time: inputs, loss, parameters."""
    lasagne.random.set_rng(np.random.RandomState(7))
    x, y = T.matrix("x"), T.ivector("y")
    softmax = lasagne.nonlinearities.softmax
    layer = L.DenseLayer(L.InputLayer((None, 4), x), 3, nonlinearity=softmax)
    loss = lasagne.objectives.categorical_crossentropy(L.get_output(layer), y).mean()
    loss += 1e-3 * lasagne.regularization.regularize_network_params(
        layer, lasagne.regularization.l2
    )
    return [x, y], loss, L.get_all_params(layer, trainable=True)


def rows(n=17):
    rng = np.random.RandomState(3)
    return rng.randn(n, 4), rng.randint(0, 3, n).astype("int32")


def test_every_rule_is_tested():
    rules = {
        name
        for name in lasagne.updates.__all__
        if not name.startswith(("apply_", "norm_", "total_"))
    }
    assert rules == set(RATES)


@pytest.mark.parametrize("rule", RATES)
def test_a_rule_gives_the_serial_numbers_on_ranks(rule):
    update = getattr(lasagne.updates, rule)
    inputs, loss, params = network()
    updates = update(loss, params, **RATES[rule])
    serial = theano.function(inputs, loss, updates=updates, mode=MODE)
    batches = [rows(17), rows(10)]
    expected = [serial(*batch) for batch in batches]
    weights = [param.get_value() for param in params]
    for n in 2, 3:
        inputs, loss, params = network()
        updates = update(synk.grad(loss, params), params, **RATES[rule])
        train = synk.function(inputs, loss, updates=updates, mode=MODE)
        with synk.session(n):
            losses = [train(*batch) for batch in batches]
            for rank in range(n):
                values = [synk.get_value(rank, param) for param in params]
                for value, weight in zip(values, weights, strict=True):
                    np.testing.assert_allclose(value, weight, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(losses, expected, rtol=1e-10)


def test_norm_constraints_and_momentum_on_ranks():
    def train_by(make, grad):
        inputs, loss, params = network()
        grads = lasagne.updates.total_norm_constraint(grad(loss, params), 0.1)
        updates = lasagne.updates.sgd(grads, params, 0.1)
        updates = lasagne.updates.apply_nesterov_momentum(updates, params)
        first = params[0]
        updates[first] = lasagne.updates.norm_constraint(updates[first], 0.5)
        return make(inputs, loss, updates=updates, mode=MODE), first

    serial, expected = train_by(theano.function, theano.grad)
    serial(*rows())
    parallel, first = train_by(synk.function, synk.grad)
    with synk.session(2):
        parallel(*rows())
    np.testing.assert_allclose(first.get_value(), expected.get_value(), rtol=1e-10)
    norms = np.sqrt((first.get_value() ** 2).sum(axis=0))
    np.testing.assert_array_less(norms, 0.5 + 1e-6)


@pytest.mark.filterwarnings("ignore::synk.SplitWarning")
def test_an_embedding_and_a_recurrent_layer_on_ranks():
    lasagne.random.set_rng(np.random.RandomState(7))
    words, y = T.imatrix("words"), T.ivector("y")
    layer = L.EmbeddingLayer(L.InputLayer((None, 4), words), 9, 3)
    layer = L.RecurrentLayer(layer, 3, grad_clipping=5.0, nonlinearity=T.tanh)
    softmax = lasagne.nonlinearities.softmax
    layer = L.DenseLayer(L.SliceLayer(layer, -1, axis=1), 3, nonlinearity=softmax)
    loss = lasagne.objectives.categorical_crossentropy(L.get_output(layer), y).mean()
    params = L.get_all_params(layer, trainable=True)
    serial = theano.function([words, y], [loss, *T.grad(loss, params)], mode=MODE)
    parallel = synk.function([words, y], [loss, *synk.grad(loss, params)], mode=MODE)
    rng = np.random.RandomState(1)
    values = rng.randint(0, 9, (7, 4)).astype("int32"), rows(7)[1]
    with synk.session(2):
        got = parallel(*values)
    for one, other in zip(got, serial(*values), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-14)
