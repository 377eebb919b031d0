"""Lasagne's update rules, unchanged, give the serial run's numbers on ranks.

Version 0.1 has seven.
"""

import os
import subprocess
import sys

import lasagne
import numpy as np
import pytest
import theano
import theano.tensor as T
from lasagne import layers as L

import synk

pytestmark = pytest.mark.usefixtures("scans_in_python")

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


def constrained(loss_or_grads, params):
    """Bound the gradients' norm together, then that of a row of weights."""
    grads = lasagne.updates.total_norm_constraint(loss_or_grads, 0.1)
    updates = lasagne.updates.sgd(grads, params, 0.1)
    first = params[0]
    updates[first] = lasagne.updates.norm_constraint(updates[first], 0.5)
    return updates


def bounded_norm(loss_or_grads, params):
    """Train with the norm of the gradients as an output, too, of the same rule."""
    grads, norm = lasagne.updates.total_norm_constraint(
        loss_or_grads, 0.1, return_norm=True
    )
    updates = lasagne.updates.sgd(grads, params, 0.1 / (1 + norm))
    return lasagne.updates.apply_momentum(updates, params, momentum=0.8)


HELPERS = {
    "apply_momentum": lambda grads, params: lasagne.updates.apply_momentum(
        lasagne.updates.sgd(grads, params, 0.1), params, momentum=0.8
    ),
    "apply_nesterov_momentum": lambda grads, params: (
        lasagne.updates.apply_nesterov_momentum(
            lasagne.updates.rmsprop(grads, params, 0.01), momentum=0.8
        )
    ),
    "norm_constraint": constrained,
    "total_norm_constraint": bounded_norm,
}


def test_every_helper_is_tested():
    assert set(lasagne.updates.__all__) == set(RATES) | set(HELPERS)


@pytest.mark.parametrize("name", HELPERS)
def test_a_helper_of_rules_gives_the_serial_numbers_on_ranks(name):
    def made(function, grad):
        inputs, loss, params = network()
        updates = HELPERS[name](grad(loss, params), params)
        return function(inputs, loss, updates=updates, mode=MODE), params

    serial, expected = made(theano.function, theano.grad)
    batches = [rows(17), rows(10)]
    losses = [serial(*batch) for batch in batches]
    for n in 2, 3:
        parallel, params = made(synk.function, synk.grad)
        with synk.session(n):
            got = [parallel(*batch) for batch in batches]
            np.testing.assert_allclose(got, losses, rtol=1e-10)
            for rank in range(n):
                for param, of_serial in zip(params, expected, strict=True):
                    value = synk.get_value(rank, param)
                    np.testing.assert_allclose(
                        value, of_serial.get_value(), rtol=1e-9, atol=1e-12
                    )
    if name == "norm_constraint":
        norms = np.sqrt((params[0].get_value() ** 2).sum(axis=0))
        np.testing.assert_array_less(norms, 0.5 + 1e-6)


JAX = """
import numpy as np
import synk
import lasagne, theano
from test_lasagne_training import RATES, network, rows

def made(function, grad, mode):
    inputs, loss, params = network()
    updates = lasagne.updates.adam(grad(loss, params), params)
    return function(inputs, loss, updates=updates, mode=mode), params

serial, expected = made(theano.function, theano.grad, "FAST_COMPILE")
losses = [serial(*rows(n)) for n in (17, 10)]
parallel, params = made(synk.function, synk.grad, "JAX")
with synk.session(2):
    got = [parallel(*rows(n)) for n in (17, 10)]
    np.testing.assert_allclose(got, losses, rtol=1e-9)
    for rank in range(2):
        for param, of_serial in zip(params, expected, strict=True):
            value = synk.get_value(rank, param)
            np.testing.assert_allclose(value, of_serial.get_value(), rtol=1e-8)
print("the serial numbers")
"""


def test_a_rule_gives_the_serial_numbers_on_ranks_in_jax_mode():
    pytest.importorskip("jax", reason="JAX, of the extra synk[jax], is not installed")
    done = subprocess.run(
        [sys.executable, "-c", JAX],
        cwd=os.path.dirname(__file__),
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.strip() == "the serial numbers", done.stderr[-4000:]


@pytest.mark.filterwarnings("ignore:Setting default_update")
def test_running_averages_by_default_updates_of_clones():
    """As batch normalisation in Lasagne 0.2 has them."""
    x = T.matrix("x")

    def made(function, **options):
        mean = theano.shared(np.zeros(4), name="mean")
        running = theano.clone(mean, share_inputs=False)
        running.default_update = 0.5 * running + 0.5 * x.mean(0)
        centred = x - mean.dimshuffle("x", 0) + 0 * running
        loss = (centred**2).mean()
        # Averages that differ from rank to rank are a SplitWarning, unless meant.
        output = (loss, "avg") if options else loss
        train = function([x], output, mode=MODE, **options)
        shifted = (x - mean, "gather") if options else x - mean
        return train, function([x], shifted, mode=MODE, **options), mean

    train, use, expected = made(theano.function)
    value = rows(7)[0]
    train(value)
    centred = use(value)
    for n in 2, 3:
        train, use, mean = made(synk.function)
        with synk.session(n):
            use(value)
            train(value)
            for rank in range(n):
                found = synk.get_value(rank, mean)
                np.testing.assert_allclose(found, expected.get_value())
            np.testing.assert_allclose(use(value), centred)
        train, use, mean = made(synk.function, local=True)
        with synk.session(n):
            use(value)
            train(value)
            # Every rank has the average of its own rows, until all are reduced.
            assert not np.allclose(use(value), centred)
            synk.all_reduce(mean)
            np.testing.assert_allclose(mean.get_value(), expected.get_value())
            np.testing.assert_allclose(use(value), centred)


def test_an_embedding_and_a_recurrent_layer_on_ranks():
    lasagne.random.set_rng(np.random.RandomState(7))
    words, y = T.imatrix("words"), T.ivector("y")
    layer = L.EmbeddingLayer(L.InputLayer((None, 4), words), 9, 3)
    layer = L.RecurrentLayer(layer, 3, nonlinearity=T.tanh)
    softmax = lasagne.nonlinearities.softmax
    layer = L.DenseLayer(L.SliceLayer(layer, -1, axis=1), 3, nonlinearity=softmax)
    loss = lasagne.objectives.categorical_crossentropy(L.get_output(layer), y).mean()
    params = L.get_all_params(layer, trainable=True)
    serial = theano.function([words, y], [loss, *T.grad(loss, params)], mode=MODE)
    outputs = [loss, *synk.grad(loss, params)]
    parallel = synk.function([words, y], outputs, mode=MODE, strict=True)
    rng = np.random.RandomState(1)
    values = rng.randint(0, 9, (7, 4)).astype("int32"), rows(7)[1]
    with synk.session(2):
        got = parallel(*values)
    for one, other in zip(got, serial(*values), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-14)
