"""Every layer of Lasagne 0.1 runs as it is, and its gradient is right.

In JAX mode as well: see ``test_lasagne_jax.py``.
"""

import lasagne
import numpy as np
import pytest
import theano
import theano.tensor as T
from lasagne import layers as L
from lasagne.nonlinearities import tanh
from networks import MODE

pytestmark = pytest.mark.usefixtures("scans_in_python")

RNG = np.random.RandomState(0)
SEQUENCES, IMAGES = RNG.rand(3, 4, 5), RNG.rand(2, 3, 6, 6)


def pair(incoming):
    """Return the incoming layer twice, for layers that merge."""
    return [incoming, L.NonlinearityLayer(incoming, T.sqr)]


def masked(incoming):
    mask = L.InputLayer((None, 4), T.ones((3, 4)))
    options = {"learn_init": True, "precompute_input": False, "grad_clipping": 9.0}
    return L.LSTMLayer(incoming, 2, mask_input=mask, **options)


def recurrent(kind, **options):
    return lambda incoming: kind(incoming, 2, **options)


def dense(features):
    return L.DenseLayer(L.InputLayer((None, features)), 2, nonlinearity=None)


def custom(incoming):
    return L.CustomRecurrentLayer(incoming, dense(5), dense(2), nonlinearity=tanh)


def each_recurrent():
    """Return every recurrent layer, with options."""
    # Without kinks: a difference that steps over one is no gradient.
    smooth = {"nonlinearity": tanh}
    options = {"learn_init": True, "backwards": True, "precompute_input": False}
    yield "RecurrentLayer", recurrent(L.RecurrentLayer, **smooth, **options)
    yield "GRULayer", recurrent(L.GRULayer, **options)
    yield "GRULayer unrolled", recurrent(L.GRULayer, unroll_scan=True)
    yield "LSTMLayer masked", masked
    yield "CustomRecurrentLayer", custom


OF_SEQUENCES = {
    "ConcatLayer": lambda x: L.ConcatLayer(pair(x)),
    "DenseLayer": lambda x: L.DenseLayer(x, 3, nonlinearity=tanh),
    "DimshuffleLayer": lambda x: L.DimshuffleLayer(x, (0, 2, "x", 1)),
    "ElemwiseMergeLayer": lambda x: L.ElemwiseMergeLayer(pair(x), T.mul),
    "ElemwiseSumLayer": lambda x: L.ElemwiseSumLayer(pair(x), coeffs=[1, 2]),
    "FeaturePoolLayer": lambda x: L.FeaturePoolLayer(x, 2),
    "FeatureWTALayer": lambda x: L.FeatureWTALayer(x, 2),
    "FlattenLayer": L.FlattenLayer,
    "GlobalPoolLayer": L.GlobalPoolLayer,
    "NINLayer": lambda x: L.NINLayer(x, 3, nonlinearity=tanh),
    "NonlinearityLayer": lambda x: L.NonlinearityLayer(x, tanh),
    "PadLayer": lambda x: L.PadLayer(x, 2),
    "ReshapeLayer": lambda x: L.ReshapeLayer(x, ([0], -1)),
    "SliceLayer": lambda x: L.SliceLayer(x, slice(1, 3), axis=1),
    "SliceLayer of one": lambda x: L.SliceLayer(x, -1, axis=1),
    "Conv1DLayer": lambda x: L.Conv1DLayer(x, 3, 2, nonlinearity=tanh),
    "MaxPool1DLayer": lambda x: L.MaxPool1DLayer(x, 2),
    **dict(each_recurrent()),
}
OF_IMAGES = {
    "Conv2DLayer": lambda x: L.Conv2DLayer(x, 2, 3, nonlinearity=tanh),
    "Conv2DLayer same": lambda x: L.Conv2DLayer(x, 2, 3, pad="same", stride=2),
    "Conv2DLayer full": lambda x: L.Conv2DLayer(x, 2, 3, pad="full"),
    "LocalResponseNormalization2DLayer": L.LocalResponseNormalization2DLayer,
    "MaxPool2DLayer": lambda x: L.MaxPool2DLayer(x, 2),
    "MaxPool2DLayer with border": lambda x: L.MaxPool2DLayer(
        x, 4, stride=3, ignore_border=False
    ),
    "Pool2DLayer": lambda x: L.Pool2DLayer(x, 2, mode="average_inc_pad"),
}
ALL = {
    **{name: (make, SEQUENCES) for name, make in OF_SEQUENCES.items()},
    **{name: (make, IMAGES) for name, make in OF_IMAGES.items()},
}
NOT_HERE = {
    "Layer": "base class",
    "MergeLayer": "base class",
    "InputLayer": "in every test",
    "DropoutLayer": "test_noise_layers",
    "GaussianNoiseLayer": "test_noise_layers",
    "EmbeddingLayer": "test_embedding",
}


def test_every_layer_class_is_tested():
    classes = {name for name in dir(L) if name.endswith("Layer") and name[0].isupper()}
    tested = {name.split()[0] for name in ALL}
    assert classes == tested | set(NOT_HERE)


@pytest.mark.parametrize("name", ALL)
def test_a_layer_runs_and_is_differentiated(name):
    lasagne.random.set_rng(np.random.RandomState(7))
    make, value = ALL[name]
    incoming = L.InputLayer((None, *value.shape[1:]))
    layer = make(incoming)
    x, output = incoming.input_var, L.get_output(layer)
    params = L.get_all_params(layer, trainable=True)
    # Weighted, so that no error cancels.
    weights = theano.shared(np.random.RandomState(1).rand(1000))
    loss = (output.flatten() * weights[: output.size]).sum()
    grads = theano.grad(loss, [x, *params])
    run = theano.function([x], [output, loss, *grads], mode=MODE)
    result, _, *gradients = run(value)

    for length, expected in zip(result.shape, L.get_output_shape(layer), strict=True):
        assert expected in (None, length)
    for place, gradient in zip([None, *params], gradients, strict=True):
        direction = np.random.RandomState(3).randn(*gradient.shape)
        slope = central_difference(run, value, place, direction)
        assert np.isclose(slope, np.vdot(gradient, direction), rtol=1e-4, atol=1e-6)


def central_difference(run, value, param, direction, step=1e-6):
    """Return the loss's slope when the input, or `param`, moves in a direction."""
    losses = []
    for move in step * direction, -step * direction:
        if param is None:
            losses.append(run(value + move)[1])
        else:
            before = param.get_value()
            param.set_value(before + move)
            losses.append(run(value)[1])
            param.set_value(before)
    return (losses[0] - losses[1]) / (2 * step)


def output_of(make, value):
    """Return a layer's output for `value`, and the layer."""
    lasagne.random.set_rng(np.random.RandomState(7))
    incoming = L.InputLayer((None, *value.shape[1:]))
    layer = make(incoming)
    run = theano.function([incoming.input_var], L.get_output(layer), mode=MODE)
    return run(value), layer


def params_of(layer):
    """Return a layer's parameters by name."""
    return {param.name: param.get_value() for param in layer.get_params()}


BY_HAND = {
    "ConcatLayer": lambda x, p: np.concatenate([x, x**2], axis=1),
    "DenseLayer": lambda x, p: np.tanh(x.reshape(3, -1) @ p["W"] + p["b"]),
    "DimshuffleLayer": lambda x, p: x.transpose(0, 2, 1)[:, :, None],
    "ElemwiseMergeLayer": lambda x, p: x**3,
    "ElemwiseSumLayer": lambda x, p: x + 2 * x**2,
    "FeaturePoolLayer": lambda x, p: x.reshape(3, 2, 2, 5).max(axis=2),
    "FlattenLayer": lambda x, p: x.reshape(3, -1),
    "GlobalPoolLayer": lambda x, p: x.mean(axis=2),
    "NINLayer": lambda x, p: np.tanh(
        np.einsum("bcs,co->bos", x, p["W"]) + p["b"][:, None]
    ),
    "NonlinearityLayer": lambda x, p: np.tanh(x),
    "PadLayer": lambda x, p: np.pad(x, ((0, 0), (0, 0), (2, 2))),
    "ReshapeLayer": lambda x, p: x.reshape(3, -1),
    "SliceLayer": lambda x, p: x[:, 1:3],
    "SliceLayer of one": lambda x, p: x[:, -1],
    "MaxPool1DLayer": lambda x, p: x[:, :, :4].reshape(3, 4, 2, 2).max(axis=3),
    "MaxPool2DLayer": lambda x, p: x.reshape(2, 3, 3, 2, 3, 2).max(axis=(3, 5)),
    "Pool2DLayer": lambda x, p: x.reshape(2, 3, 3, 2, 3, 2).mean(axis=(3, 5)),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_a_layer_gives_what_numpy_gives(name):
    make, value = ALL[name]
    result, layer = output_of(make, value)
    np.testing.assert_allclose(result, BY_HAND[name](value, params_of(layer)))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def test_lstm_gives_what_its_equations_give():
    result, layer = output_of(recurrent(L.LSTMLayer), SEQUENCES)
    p = params_of(layer)
    names = "ingate", "forgetgate", "cell", "outgate"
    cell, hidden = np.zeros((3, 2)), np.zeros((3, 2))
    for step in range(SEQUENCES.shape[1]):
        i, f, c, o = (
            SEQUENCES[:, step] @ p[f"W_in_to_{name}"]
            + hidden @ p[f"W_hid_to_{name}"]
            + p[f"b_{name}"]
            for name in names
        )
        i = sigmoid(i + cell * p["W_cell_to_ingate"])
        f = sigmoid(f + cell * p["W_cell_to_forgetgate"])
        cell = f * cell + i * np.tanh(c)
        # Version 0.1 adds the last peephole after the nonlinearity.
        o = sigmoid(o) + cell * p["W_cell_to_outgate"]
        hidden = o * np.tanh(cell)
        np.testing.assert_allclose(result[:, step], hidden, rtol=1e-10)


def test_a_mask_of_ones_changes_nothing():
    plain, _ = output_of(recurrent(L.LSTMLayer), SEQUENCES)
    with_mask, _ = output_of(OF_SEQUENCES["LSTMLayer masked"], SEQUENCES)
    np.testing.assert_allclose(plain, with_mask, rtol=1e-12)


def test_embedding():
    words = T.imatrix()
    layer = L.EmbeddingLayer(L.InputLayer((None, 3), words), 10, 4)
    output = L.get_output(layer)
    run = theano.function(
        [words], [output, theano.grad(output.sum(), layer.W)], mode=MODE
    )
    chosen = np.array([[1, 2, 1], [9, 0, 1]], dtype="int32")
    result, gradient = run(chosen)
    np.testing.assert_array_equal(result, layer.W.get_value()[chosen])
    counts = np.bincount(chosen.ravel(), minlength=10)
    np.testing.assert_array_equal(gradient, np.repeat(counts[:, None], 4, axis=1))


def test_noise_layers():
    lasagne.random.set_rng(np.random.RandomState(7))
    incoming = L.InputLayer((None, 50))
    x = incoming.input_var
    value = np.full((40, 50), 2.0)
    drop, noise = L.DropoutLayer(incoming, p=0.2), L.GaussianNoiseLayer(incoming, 0.5)
    random = L.get_output([drop, noise])
    same = L.get_output([drop, noise], deterministic=True)
    slopes = [theano.grad(output.sum(), x) for output in random]
    run = theano.function([x], [*random, *slopes, *same], mode=MODE)
    dropped, noisy, slope, ones, *same = map(np.asarray, run(value))
    again, *_ = run(value)
    np.testing.assert_allclose(np.unique(dropped), [0, 2.5])
    # Five standard deviations: 2.5 * sqrt(0.16 / 2000), 0.5 / sqrt(2 * 2000).
    assert abs(dropped.mean() - 2) < 0.112
    assert abs(noisy.std() - 0.5) < 0.04
    assert not np.array_equal(dropped, again), "the same mask in two calls"
    np.testing.assert_allclose(slope, dropped / 2)
    np.testing.assert_array_equal(ones, np.ones_like(value))
    for deterministic in same:
        np.testing.assert_array_equal(deterministic, value)
