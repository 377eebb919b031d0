"""Lasagne's layers split into rows, and its update rules have the serial numbers."""

import functools

import lasagne
import numpy as np
import pytest
import theano
import theano.tensor as T
from children import in_a_child
from lasagne import layers as L
from lasagne import updates as rules
from lasagne.nonlinearities import softmax, tanh
from test_theano_lasagne import LAYERS

import synk

pytestmark = pytest.mark.usefixtures("scans_in_python")

MODE = "FAST_COMPILE"
RECURRENT = "RecurrentLayer", "LSTMLayer", "GRULayer"


# -- what is gathered, averaged, added


class Expected:
    """Outputs, and how they are to be reduced."""

    def __init__(self):
        self.outputs, self.modes = [], []

    def add(self, output, params):
        """Add a layer's output, its mean and sum of squares, gradients of both.

        The gradient of a loop takes long: the mean's is the sum's with another weight.
        """
        by_row = (output**2).sum(axis=tuple(range(1, output.ndim)))
        weight = T.scalar(dtype=by_row.dtype)
        loss = by_row.sum() * weight
        weighted = [loss, *theano.grad(loss, params)]
        self.outputs += [output, by_row.mean()]
        self.modes += ["gather", "avg"]
        one = T.constant(1, dtype=by_row.dtype)
        for value, mode in (one / by_row.shape[0], "avg"), (one, "sum"):
            value = T.cast(value, by_row.dtype)
            self.outputs += theano.clone(weighted, {weight: value})
            self.modes += [mode] * len(weighted)

    def check(self, *inputs):
        f = synk.function(list(inputs), self.outputs, strict=True)
        assert f.output_modes == self.modes


@pytest.mark.parametrize("kind", LAYERS)
def test_layers_split_into_rows(kind):
    table, value = LAYERS[kind]
    incoming = L.InputLayer((None, *value.shape[1:]))
    expected = Expected()
    for name, (make, _) in table.items():
        if name not in RECURRENT:
            layer = make(incoming)
            expected.add(L.get_output(layer), L.get_all_params(layer, trainable=True))
    expected.check(incoming.input_var)


OPTIONS = (
    {"learn_init": True, "gradient_steps": 2},
    {"backwards": True, "precompute_input": False},
    {"unroll_scan": True},
)


@pytest.mark.parametrize("kind", [getattr(L, name) for name in RECURRENT])
def test_recurrent_layers_split_into_rows_with_and_without_a_mask(kind):
    incoming, mask = L.InputLayer((None, 4, 5)), L.InputLayer((None, 4))
    expected = Expected()
    for i, options in enumerate(OPTIONS):
        layer = kind(incoming, 2, mask_input=mask if i == 1 else None, **options)
        expected.add(L.get_output(layer), L.get_all_params(layer, trainable=True))
    expected.check(incoming.input_var, mask.input_var)


# -- training


def batch(n=17):
    rng = np.random.RandomState(3)
    return rng.randn(n, 4), rng.randint(0, 3, n).astype("int32")


def network(x, y):
    """Return the same small network each time: its loss and parameters."""
    lasagne.random.set_rng(np.random.RandomState(7))
    layer = L.DenseLayer(L.InputLayer((None, 4), x), 3, nonlinearity=softmax)
    loss = lasagne.objectives.categorical_crossentropy(L.get_output(layer), y).mean()
    loss += 1e-3 * lasagne.regularization.regularize_network_params(
        layer, lasagne.regularization.l2
    )
    return loss, L.get_all_params(layer, trainable=True)


def constrained(grads, params):
    """Bound the gradients' norm together, then that of a row of weights."""
    grads, norm = rules.total_norm_constraint(grads, 0.1, return_norm=True)
    updates = rules.sgd(grads, params, 0.1 / (1 + norm))
    updates[params[0]] = rules.norm_constraint(updates[params[0]], 0.5)
    return updates


def with_momentum(grads, params):
    return rules.apply_momentum(rules.sgd(grads, params, 0.1), params, momentum=0.8)


def with_nesterov_momentum(grads, params):
    moves = rules.rmsprop(grads, params, 0.01)
    return rules.apply_nesterov_momentum(moves, momentum=0.8)


RATES = {"sgd": 0.1, "momentum": 0.1, "nesterov_momentum": 0.1, "adagrad": 1.0}
RATES |= {"rmsprop": 0.01, "adadelta": 1.0, "adam": 0.001}
RULES = {
    name: functools.partial(getattr(rules, name), learning_rate=rate)
    for name, rate in RATES.items()
} | {
    "apply_momentum": with_momentum,
    "apply_nesterov_momentum": with_nesterov_momentum,
    "norm_constraint total_norm_constraint": constrained,
}


def of_rules(names, function, grad, mode=MODE):
    """Return one function that trains a network by each rule, and the parameters."""
    x, y = T.matrix("x"), T.ivector("y")
    losses, updates, parameters = [], {}, {}
    for name in names:
        loss, params = network(x, y)
        losses.append(loss)
        updates.update(RULES[name](grad(loss, params), params))
        parameters[name] = params
    return function([x, y], losses, updates=updates, mode=mode), parameters


def test_every_rule_is_tested():
    assert set(rules.__all__) == {name for names in RULES for name in names.split()}


def assert_serial_numbers(names, n, mode=MODE, rtol=1e-9):
    serial, expected = of_rules(names, theano.function, theano.grad)
    losses = [serial(*batch(rows)) for rows in (17, 10)]
    parallel, found = of_rules(names, synk.function, synk.grad, mode)
    with synk.session(n):
        got = [parallel(*batch(rows)) for rows in (17, 10)]
        by_rank = {
            name: [synk.get_value(rank, params) for rank in range(n)]
            for name, params in found.items()
        }
    np.testing.assert_allclose(got, losses, rtol=rtol)
    for name, of_ranks in by_rank.items():
        weights = [param.get_value() for param in expected[name]]
        for values in of_ranks:
            for value, weight in zip(values, weights, strict=True):
                np.testing.assert_allclose(value, weight, rtol, 1e-12, err_msg=name)
    return found


def test_rules_have_the_serial_numbers_on_ranks():
    found = assert_serial_numbers(RULES, 2)
    weights = found["norm_constraint total_norm_constraint"][0].get_value()
    np.testing.assert_array_less(np.sqrt((weights**2).sum(axis=0)), 0.5 + 1e-6)


@in_a_child
def test_rules_have_the_serial_numbers_on_ranks_in_jax_mode():
    assert_serial_numbers(["adam"], 2, "JAX", 1e-8)


@pytest.mark.filterwarnings("ignore:Setting default_update")
def test_running_averages_by_default_updates_of_clones(two_ranks):
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
    value = batch(7)[0]
    train(value)
    centred = use(value)
    train, use, mean = made(synk.function)
    train(value)
    for rank in 0, 1:
        found = synk.get_value(rank, mean)
        np.testing.assert_allclose(found, expected.get_value())
    np.testing.assert_allclose(use(value), centred)
    train, use, mean = made(synk.function, local=True)
    train(value)
    # Every rank has the average of its own rows, until all are reduced.
    assert not np.allclose(use(value), centred)
    synk.all_reduce(mean)
    np.testing.assert_allclose(mean.get_value(), expected.get_value())
    np.testing.assert_allclose(use(value), centred)


def recurrent(x, **options):
    """Return losses by row of a small network on sequences, and its parameters."""
    lasagne.random.set_rng(np.random.RandomState(7))
    words, y = T.imatrix("words"), T.ivector("y")
    layer = L.EmbeddingLayer(L.InputLayer((None, 4), words), 9, 3)
    layer = L.ElemwiseSumLayer([layer, L.InputLayer((None, 4, 3), x)])
    layer = L.RecurrentLayer(layer, 2, nonlinearity=tanh, **options)
    layer = L.DenseLayer(L.SliceLayer(layer, -1, axis=1), 3, nonlinearity=softmax)
    losses = lasagne.objectives.categorical_crossentropy(L.get_output(layer), y)
    return [x, words, y], losses, L.get_all_params(layer, trainable=True)


def test_clipping_within_a_recurrent_layer_wants_a_sum_of_a_rank(two_ranks):
    # What is clipped is a gradient of the cost: that of a mean is as small as there
    # are rows, so that it depends on them whether a rank clips it. Those of all ranks
    # are what it is divided by, unless the function is local.
    inputs, losses, params = recurrent(T.tensor3("x"), grad_clipping=0.003)
    loss = losses.mean()
    updates = rules.sgd(synk.grad(loss, params), params, 0.1)
    with pytest.raises(synk.SplitError, match="Clip"):
        synk.function(inputs, loss, updates=updates, strict=True, local=True)
    rng = np.random.RandomState(1)
    words = rng.randint(0, 9, (7, 4)).astype("int32")
    values = rng.randn(7, 4, 3), words, rng.randint(0, 3, 7).astype("int32")
    total = losses.sum()
    of_mean, of_sum = theano.grad(loss, params), theano.grad(total, params)
    serial = theano.function(inputs, [loss, *of_mean, total, *of_sum], mode=MODE)
    expected = serial(*values)
    assert not np.allclose(expected[2], expected[2 + len(of_sum) + 1] / 7), "unclipped"
    by_sum = [total, *synk.grad(total, params, op="sum")]
    by_mean = [loss, *synk.grad(loss, params)]
    for outputs, local in (by_sum, True), ([*by_mean, *by_sum], False):
        parallel = synk.function(inputs, outputs, mode=MODE, strict=True, local=local)
        of_serial = expected[-len(outputs) :]
        for one, other in zip(parallel(*values), of_serial, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-14)
