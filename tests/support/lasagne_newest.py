"""Networks of Lasagne 0.2 on two ranks, to the serial numbers.

``test_theano_programs.py`` runs it: a program of its own, as the process of tests may
have Lasagne 0.1. It prints the name of each check that holds.
"""

import importlib
import sys

import synk  # isort: skip  it has the names of Theano's

import lasagne
import numpy as np
import pytest
import theano
import theano.tensor as T
from lasagne import layers as L


def images():
    """Return images of any size, labels, and the last of convolutional layers."""
    lasagne.random.set_rng(np.random.RandomState(3))
    x, y = T.tensor4("x"), T.ivector("y")
    layer = L.InputLayer((None, 2, None, None), x)
    layer = L.Conv2DLayer(layer, 4, 3, pad="same", b=None, nonlinearity=None)
    layer = L.NonlinearityLayer(L.BatchNormLayer(layer), lasagne.nonlinearities.elu)
    layer = L.SpatialPyramidPoolingLayer(layer, [2, 1], "average_exc_pad")
    layer = L.DenseLayer(layer, 5, b=None, nonlinearity=None)
    layer = L.NonlinearityLayer(L.BatchNormLayer(layer), lasagne.nonlinearities.selu)
    return x, y, L.DenseLayer(layer, 3, nonlinearity=lasagne.nonlinearities.softmax)


def sequences():
    """Return a network with a gated recurrent layer that reads masked sequences."""
    lasagne.random.set_rng(np.random.RandomState(4))
    x, y = T.tensor3("x"), T.ivector("y")
    layer = L.InputLayer((None, None, 4), x)
    layer = L.GRULayer(layer, 5, learn_init=True, only_return_final=True)
    return x, y, L.DenseLayer(layer, 3, nonlinearity=lasagne.nonlinearities.softmax)


def training(function, network):
    """Return a training step, a loss by stored statistics, and all parameters."""
    x, y, layer = network

    def loss(**options):
        found = L.get_output(layer, **options)
        return lasagne.objectives.categorical_crossentropy(found, y).mean()

    params = L.get_all_params(layer, trainable=True)
    cost = loss()
    updates = lasagne.updates.amsgrad(cost, params, learning_rate=0.05)
    step = function([x, y], cost, updates=updates)
    test = function([x, y], loss(deterministic=True))
    return step, test, L.get_all_params(layer)


def compare(make, batches):
    """Assert that two ranks have the serial run's losses and parameters."""
    step, test, of_serial = training(theano.function, make())
    before = [param.get_value() for param in of_serial]
    expected = [step(*batch) for batch in batches]
    expected.append(test(*batches[0]))
    step, test, params = training(synk.function, make())
    with synk.session(2):
        losses = [step(*batch) for batch in batches]
        losses.append(test(*batches[0]))
        np.testing.assert_allclose(losses, expected, rtol=1e-9)
        for param, other, start in zip(params, of_serial, before, strict=True):
            assert np.abs(other.get_value() - start).max() > 1e-4, f"{param} is as ever"
            for rank in range(2):
                found, text = synk.get_value(rank, param), f"{param} on rank {rank}"
                np.testing.assert_allclose(found, other.get_value(), 1e-9, 1e-10, text)


def batch(rows, *shape, seed):
    random = np.random.RandomState(seed)
    labels = random.randint(0, 3, rows).astype("int32")
    return random.normal(size=(rows, *shape)) * 2 + 1, labels


def batch_normalisation():
    compare(images, [batch(9, 2, 6, 7, seed=0), batch(8, 2, 5, 5, seed=1)])


def gated_recurrent_units():
    compare(sequences, [batch(7, 6, 4, seed=0), batch(6, 3, 4, seed=1)])


def the_order_of_parameters():
    """By which lists of saved weights are read again."""
    x, y, z = (theano.shared(0.0, name) for name in "xyz")
    for expression in (x + y) + z, x + (y + z), [x, y + z], [(x + y) * x, z]:
        found = lasagne.utils.collect_shared_vars(expression)
        assert found == [x, y, z], found
    layer = L.DenseLayer(
        (None, 2), 3, W=T.dot(T.outer(x + T.ones(2), y + T.ones(3)), z)
    )
    assert layer.get_params(unwrap_shared=True)[:3] == [x, y, z]


def layers_for_gpus():
    """Which scripts import within ``except ImportError``."""
    for module in "dnn", "corrmm", "cuda_convnet":
        with pytest.raises(ImportError, match=r"GPU|pylearn2"):
            importlib.import_module(f"lasagne.layers.{module}")


if __name__ == "__main__":
    assert hasattr(L, "BatchNormLayer"), lasagne.__version__
    for name in sys.argv[1:]:
        globals()[name]()
        print(name, flush=True)
