"""Lasagne 0.1 as it is: its layers and functions, their gradients, on ranks, in JAX."""

import functools
import importlib

import lasagne
import numpy as np
import pytest
import theano
import theano.tensor as T
from children import in_a_child
from graph_groups import Graph, Group
from lasagne import init, nonlinearities, objectives, regularization, utils
from lasagne import layers as L
from lasagne.nonlinearities import tanh
from lasagne.theano_extensions import conv, padding

pytestmark = pytest.mark.usefixtures("scans_in_python")

MODE = "FAST_COMPILE"
RNG = np.random.RandomState(0)
SEQUENCES, IMAGES = RNG.rand(3, 4, 5), RNG.rand(2, 3, 6, 6)


# -- layers: what each of them makes of its input


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


# Without kinks: a difference that steps over one is no gradient.
SMOOTH = {"nonlinearity": tanh}
OPTIONS = {"learn_init": True, "backwards": True, "precompute_input": False}
LOOPS = {
    "RecurrentLayer": (recurrent(L.RecurrentLayer, **SMOOTH, **OPTIONS), None),
    "GRULayer": (recurrent(L.GRULayer, **OPTIONS), None),
    "LSTMLayer": (masked, None),
    "CustomRecurrentLayer": (custom, None),
}
OF_SEQUENCES = {
    "ConcatLayer": (
        lambda x: L.ConcatLayer(pair(x)),
        lambda x, p: np.concatenate([x, x**2], axis=1),
    ),
    "DenseLayer": (
        lambda x: L.DenseLayer(x, 3, nonlinearity=tanh),
        lambda x, p: np.tanh(x.reshape(3, -1) @ p["W"] + p["b"]),
    ),
    "DimshuffleLayer": (
        lambda x: L.DimshuffleLayer(x, (0, 2, "x", 1)),
        lambda x, p: x.transpose(0, 2, 1)[:, :, None],
    ),
    "ElemwiseMergeLayer": (
        lambda x: L.ElemwiseMergeLayer(pair(x), T.mul),
        lambda x, p: x**3,
    ),
    "ElemwiseSumLayer": (
        lambda x: L.ElemwiseSumLayer(pair(x), coeffs=[1, 2]),
        lambda x, p: x + 2 * x**2,
    ),
    "FeaturePoolLayer": (
        lambda x: L.FeaturePoolLayer(x, 2),
        lambda x, p: x.reshape(3, 2, 2, 5).max(axis=2),
    ),
    "FeatureWTALayer": (lambda x: L.FeatureWTALayer(x, 2), None),
    "FlattenLayer": (L.FlattenLayer, lambda x, p: x.reshape(3, -1)),
    "GlobalPoolLayer": (L.GlobalPoolLayer, lambda x, p: x.mean(axis=2)),
    "NINLayer": (
        lambda x: L.NINLayer(x, 3, nonlinearity=tanh),
        lambda x, p: np.tanh(np.einsum("bcs,co->bos", x, p["W"]) + p["b"][:, None]),
    ),
    "NonlinearityLayer": (
        lambda x: L.NonlinearityLayer(x, tanh),
        lambda x, p: np.tanh(x),
    ),
    "PadLayer": (
        lambda x: L.PadLayer(x, 2),
        lambda x, p: np.pad(x, ((0, 0), (0, 0), (2, 2))),
    ),
    "ReshapeLayer": (
        lambda x: L.ReshapeLayer(x, ([0], -1)),
        lambda x, p: x.reshape(3, -1),
    ),
    "SliceLayer": (
        lambda x: L.SliceLayer(x, slice(1, 3), axis=1),
        lambda x, p: x[:, 1:3],
    ),
    "Conv1DLayer": (lambda x: L.Conv1DLayer(x, 3, 2, nonlinearity=tanh), None),
    "MaxPool1DLayer": (
        lambda x: L.MaxPool1DLayer(x, 2),
        lambda x, p: x[:, :, :4].reshape(3, 4, 2, 2).max(axis=3),
    ),
}
OF_IMAGES = {
    "Conv2DLayer": (lambda x: L.Conv2DLayer(x, 2, 3, nonlinearity=tanh), None),
    "Conv2DLayer same": (lambda x: L.Conv2DLayer(x, 2, 3, pad="same", stride=2), None),
    "LocalResponseNormalization2DLayer": (L.LocalResponseNormalization2DLayer, None),
    "MaxPool2DLayer": (
        lambda x: L.MaxPool2DLayer(x, 2),
        lambda x, p: x.reshape(2, 3, 3, 2, 3, 2).max(axis=(3, 5)),
    ),
    "Pool2DLayer": (
        lambda x: L.Pool2DLayer(x, 2, mode="average_inc_pad"),
        lambda x, p: x.reshape(2, 3, 3, 2, 3, 2).mean(axis=(3, 5)),
    ),
}
LAYERS = {
    "sequences": (OF_SEQUENCES, SEQUENCES),
    "images": (OF_IMAGES, IMAGES),
    "loops": (LOOPS, SEQUENCES),
}
OTHERS = {"Layer", "MergeLayer", "InputLayer"}  # base classes, and in every test
OF_THEIR_OWN = {"DropoutLayer", "GaussianNoiseLayer", "EmbeddingLayer"}


def test_every_layer_class_is_tested():
    classes = {name for name in dir(L) if name.endswith("Layer") and name[0].isupper()}
    tested = {name.split()[0] for table, _ in LAYERS.values() for name in table}
    assert classes == tested | OTHERS | OF_THEIR_OWN


@functools.cache
def graphs_of(kind):
    """Return the graphs of a table of layers."""
    table, value = LAYERS[kind]
    graphs = {}
    for name, (make, by_hand) in table.items():
        lasagne.random.set_rng(np.random.RandomState(7))
        incoming = L.InputLayer((None, *value.shape[1:]))
        layer = make(incoming)
        params = L.get_all_params(layer, trainable=True)
        expected = by_hand and by_hand(
            value, {param.name: param.get_value() for param in layer.get_params()}
        )

        def build(x, layer=layer, incoming=incoming, params=params):
            return L.get_output(layer, {incoming: x}), params

        graphs[name] = Graph(build, (value,), expected)
        # What is not known when the graph is built is None.
        for told, length in zip(
            L.get_output_shape(layer), np.shape(expected), strict=False
        ):
            assert told in (None, length), name
    return graphs


@functools.cache
def group(kind):
    return Group(FUNCTIONS if kind == "functions" else graphs_of(kind), MODE)


@pytest.mark.parametrize("kind", LAYERS)
def test_layers_give_what_numpy_gives_and_are_differentiated(kind):
    group(kind).check()


def test_an_embedding():
    words = T.imatrix()
    layer = L.EmbeddingLayer(L.InputLayer((None, 3), words), 10, 4)
    output = L.get_output(layer)
    outputs = [output, theano.grad(output.sum(), layer.W)]
    run = theano.function([words], outputs, mode=MODE)
    chosen = np.array([[1, 2, 1], [9, 0, 1]], dtype="int32")
    result, gradient = run(chosen)
    np.testing.assert_array_equal(result, layer.W.get_value()[chosen])
    counts = np.bincount(chosen.ravel(), minlength=10)
    np.testing.assert_array_equal(gradient, np.repeat(counts[:, None], 4, axis=1))


def check_noise(mode):
    lasagne.random.set_rng(np.random.RandomState(7))
    incoming = L.InputLayer((None, 50))
    x = incoming.input_var
    value = np.full((40, 50), 2.0)
    drop, noise = L.DropoutLayer(incoming, p=0.2), L.GaussianNoiseLayer(incoming, 0.5)
    random = L.get_output([drop, noise])
    same = L.get_output([drop, noise], deterministic=True)
    slopes = [theano.grad(output.sum(), x) for output in random]
    run = theano.function([x], [*random, *slopes, *same], mode=mode)
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


def test_noise_layers():
    check_noise(MODE)


def test_helpers_of_layers():
    hidden = L.DenseLayer(L.InputLayer((None, 4)), 3)
    last = L.DenseLayer(hidden, 2)
    assert L.get_output_shape(last, (7, 4)) == (7, 2)
    assert L.get_all_params(last) == [hidden.W, hidden.b, last.W, last.b]
    assert L.get_all_params(last, regularizable=True) == [hidden.W, last.W]
    assert L.count_params(last) == 4 * 3 + 3 + 3 * 2 + 2
    doubled = [2 * value for value in L.get_all_param_values(last)]
    L.set_all_param_values(last, doubled)
    np.testing.assert_array_equal(last.W.get_value(), doubled[2])
    with pytest.raises(ValueError, match="mismatch"):
        L.set_all_param_values(last, doubled[:2])
    given = {hidden: np.ones((2, 3))}
    output = theano.function([], L.get_output(last, given), mode=MODE)()
    np.testing.assert_allclose(output, np.maximum(np.ones((2, 3)) @ doubled[2], 0))


@pytest.mark.parametrize("name", ["dnn", "corrmm", "cuda_convnet"])
def test_layers_for_gpus_are_missing(name):
    """As in a Theano without a GPU: scripts import them within `except ImportError`."""
    with pytest.raises(ImportError, match=r"GPU|dnn not available|pylearn2"):
        importlib.import_module(f"lasagne.layers.{name}")


# -- functions: objectives, nonlinearities, other convolutions, regularisation

X = RNG.randn(6, 4)
P = np.exp(X) / np.exp(X).sum(axis=1, keepdims=True)
ONES = (RNG.rand(6, 4) < 0.5).astype(float)
CLASSES = np.array([0, 3, 1, 1, 2, 0], dtype="int32")
TEXTS, FILTERS = RNG.randn(2, 3, 14), RNG.randn(5, 3, 4)
PADDED = np.pad(IMAGES, [(0, 0), (0, 0), (1, 2), (3, 3)], constant_values=1.5)


def correlated(stride):
    """Return the convolution of sequences with filters."""
    windows = np.lib.stride_tricks.sliding_window_view(TEXTS, 4, axis=2)
    return np.einsum("bcik,fck->bfi", windows[:, :, ::stride], FILTERS[:, :, ::-1])


def convolution(name, stride):
    def build(x, w):
        shapes = TEXTS.shape, FILTERS.shape
        return getattr(conv, name)(x, w, *shapes, subsample=(stride,))

    return Graph(build, (TEXTS, FILTERS), correlated(stride))


def penalties(w):
    l1, l2 = regularization.l1, regularization.l2
    return l1(w) + 2 * l2(w) + regularization.apply_penalty([w, 2 * w], l2)


def unrolled(x, factor):
    def step(row, total, factor):
        return total * factor + row

    zeros = T.zeros((4,))
    return utils.unroll_scan(step, x, [zeros], [factor], 6, go_backwards=True)[0]


HALVES = 2.0 ** -np.arange(6)[:, None]
SUMMED = HALVES * np.cumsum(X[::-1] / HALVES, axis=0)  # what `unrolled` gives
LIKELIHOODS = -np.log(P[np.arange(6), CLASSES])
CROSSENTROPY = objectives.categorical_crossentropy
FUNCTIONS = {
    "categorical_crossentropy": Graph(CROSSENTROPY, (P, CLASSES), LIKELIHOODS),
    "aggregate": Graph(lambda x: objectives.aggregate(x**2), (X,), (X**2).mean()),
    "aggregate, normalized_sum": Graph(
        lambda x, w: objectives.aggregate(x**2, w, mode="normalized_sum"),
        (X, P),
        (X**2 * P).sum() / P.sum(),
    ),
    "softmax": Graph(nonlinearities.softmax, (X,), P),
    "leaky": Graph(nonlinearities.leaky_rectify, (X,), np.maximum(X, 0.01 * X)),
    "penalties": Graph(penalties, (X,), abs(X).sum() + 7 * (X**2).sum()),
    "unroll_scan": Graph(unrolled, (X, 0.5), SUMMED),
    "pad": Graph(lambda x: padding.pad(x, [(1, 2), 3], 1.5, 2), (IMAGES,), PADDED),
    "conv1d_sc, plain": convolution("conv1d_sc", 1),
    **{
        f"conv1d_{name}": convolution(f"conv1d_{name}", 2)
        for name in ("sc", "mc0", "mc1", "unstrided", "sd", "md")
    },
}


def test_functions_give_what_numpy_gives_and_are_differentiated():
    group("functions").check()


def test_utilities():
    assert init.Normal().sample((3, 2)).dtype == theano.config.floatX
    np.testing.assert_array_equal(utils.one_hot(CLASSES).eval(), np.eye(4)[CLASSES])
    np.testing.assert_allclose(utils.compute_norms(X), np.sqrt((X**2).sum(axis=0)))
    variable = T.matrix()
    assert utils.as_theano_expression(variable) is variable
    np.testing.assert_array_equal(utils.as_theano_expression(X).eval(), X)
    with pytest.raises(TypeError, match="not a Theano expression"):
        utils.as_theano_expression(object())
    assert utils.shared_empty(3).get_value().shape == (1, 1, 1)
    param = utils.create_param(init.Constant(3.0), (2, 5), name="p")
    np.testing.assert_array_equal(param.get_value(), np.full((2, 5), 3.0))
    assert utils.create_param(param, (2, 5)) is param
    with pytest.raises(RuntimeError, match="shape"):
        utils.create_param(X, (4, 6))


# Which make the same of other variables, and take long to compile.
ALIKE = (
    *("RecurrentLayer", "CustomRecurrentLayer", "conv1d_sc", "conv1d_mc0"),
    *("conv1d_sc, plain", "conv1d_sd", "unroll_scan"),
)


@pytest.mark.parametrize("kind", [*LAYERS, "functions"])
@in_a_child
def test_all_is_the_same_in_jax_mode(kind):
    group(kind).check_in("JAX", without=ALIKE)
    if kind == "functions":
        check_noise("JAX")
