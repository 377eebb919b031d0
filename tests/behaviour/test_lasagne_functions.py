"""Lasagne 0.1's functions that are no layers: objectives, nonlinearities, the rest."""

from pathlib import Path

import numpy as np
import pytest
import theano
import theano.tensor as T
from lasagne import (
    init,
    layers,
    nonlinearities,
    objectives,
    random,
    regularization,
    utils,
)
from lasagne.theano_extensions import conv, padding
from networks import MODE, WHERE

RNG = np.random.RandomState(0)
X = RNG.randn(6, 4)
P = np.exp(X) / np.exp(X).sum(axis=1, keepdims=True)
ONES = (RNG.rand(6, 4) < 0.5).astype(float)
CLASSES = np.array([0, 3, 1, 1, 2, 0], dtype="int32")


def compiled(build, *values):
    """Return a function of variables like the values."""
    inputs = [
        T.TensorType(str(value.dtype), [False] * value.ndim)() for value in values
    ]
    return theano.function(inputs, build(*inputs), mode=MODE)


def run(build, *values):
    """Return what a graph of variables like the values computes to."""
    return np.asarray(compiled(build, *values)(*values))


def check(build, expected, x, *rest, step=1e-6):
    """Compare a graph with numpy's values, its derivative by x with differences."""
    weights = np.random.RandomState(1).rand(*np.shape(expected))

    def both(x, *rest):
        result = build(x, *rest)
        return [result, T.grad((result * weights).sum(), x)]

    function = compiled(both, x, *rest)
    result, gradient = function(x, *rest)
    np.testing.assert_allclose(result, expected, rtol=1e-10, atol=1e-12)
    direction = np.random.RandomState(2).randn(*x.shape)
    above, below = (
        (function(x + s * direction, *rest)[0] * weights).sum() for s in (step, -step)
    )
    slope = (above - below) / (2 * step)
    np.testing.assert_allclose(np.vdot(gradient, direction), slope, rtol=1e-5)


# -- objectives

OBJECTIVES = {
    "binary_crossentropy": (
        objectives.binary_crossentropy,
        -(ONES * np.log(P) + (1 - ONES) * np.log(1 - P)),
        (P, ONES),
    ),
    "categorical_crossentropy": (
        objectives.categorical_crossentropy,
        -np.log(P[np.arange(6), CLASSES]),
        (P, CLASSES),
    ),
    "categorical_crossentropy of rows": (
        objectives.categorical_crossentropy,
        -np.log(P[np.arange(6), CLASSES]),
        (P, np.eye(4)[CLASSES]),
    ),
    "squared_error": (objectives.squared_error, (X - ONES) ** 2, (X, ONES)),
    "aggregate": (lambda x: objectives.aggregate(x**2), (X**2).mean(), (X,)),
    "aggregate sum": (
        lambda x, w: objectives.aggregate(x**2, w, mode="sum"),
        (X**2 * P).sum(),
        (X, P),
    ),
    "aggregate normalized_sum": (
        lambda x, w: objectives.aggregate(x**2, w, mode="normalized_sum"),
        (X**2 * P).sum() / P.sum(),
        (X, P),
    ),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_and_its_gradient(name):
    build, expected, values = OBJECTIVES[name]
    check(build, expected, *values)


# -- nonlinearities

NONLINEARITIES = {
    "sigmoid": 1 / (1 + np.exp(-X)),
    "softmax": P,
    "tanh": np.tanh(X),
    "rectify": np.maximum(X, 0),
    "leaky_rectify": np.maximum(X, 0.01 * X),
    "very_leaky_rectify": np.maximum(X, X / 3),
    "linear": X,
    "identity": X,
}


@pytest.mark.parametrize("name", NONLINEARITIES)
def test_a_nonlinearity_and_its_gradient(name):
    check(getattr(nonlinearities, name), NONLINEARITIES[name], X)


def test_leaky_rectifiers_of_any_leakiness():
    slope = nonlinearities.LeakyRectify(0.25)
    check(slope, np.maximum(X, X / 4), X)


# -- regularisation


def network():
    """Return two layers, and their weights as arrays."""
    random.set_rng(np.random.RandomState(7))
    hidden = layers.DenseLayer(layers.InputLayer((None, 4)), 3)
    last = layers.DenseLayer(hidden, 2)
    return hidden, last, [hidden.W.get_value(), last.W.get_value()]


def test_regularisation():
    hidden, last, (first, second) = network()
    l1, l2 = abs, np.square
    given = regularization
    expected = {
        given.apply_penalty(hidden.W, given.l1): l1(first).sum(),
        given.apply_penalty([hidden.W, last.W], given.l2): l2(first).sum()
        + l2(second).sum(),
        given.regularize_layer_params(last, given.l2): l2(second).sum(),
        given.regularize_layer_params([hidden, last], given.l1): l1(first).sum()
        + l1(second).sum(),
        given.regularize_layer_params_weighted({hidden: 0.5, last: 0.25}, given.l2): l2(
            first
        ).sum()
        / 2
        + l2(second).sum() / 4,
        given.regularize_network_params(last, given.l2): l2(first).sum()
        + l2(second).sum(),
        # The biases, and only these, are not regularisable.
        given.regularize_network_params(last, given.l1, {"regularizable": False}): 0,
    }
    values = theano.function([], list(expected), mode=MODE)()
    np.testing.assert_allclose(values, list(expected.values()), rtol=1e-12)
    penalty = regularization.regularize_network_params(last, regularization.l2)
    gradients = theano.function([], T.grad(penalty, [hidden.W, last.W]), mode=MODE)()
    np.testing.assert_allclose(gradients[0], 2 * first)
    np.testing.assert_allclose(gradients[1], 2 * second)


# -- initial values


@pytest.mark.parametrize(
    ("initial", "deviation"),
    [
        (init.Normal(std=0.5, mean=1), 0.5),
        (init.Uniform(range=2), 2 / np.sqrt(3)),
        (init.Uniform(std=0.5), 0.5),
        (init.GlorotNormal(), np.sqrt(2 / 400)),
        (init.GlorotUniform(gain="relu"), np.sqrt(4 / 400)),
        (init.HeNormal(), np.sqrt(1 / 300)),
        (init.HeUniform(gain="relu"), np.sqrt(2 / 300)),
        (init.Constant(2.0), 0),
        (init.Orthogonal(), np.sqrt(1 / 300)),
    ],
)
def test_initial_values_have_the_spread_they_say(initial, deviation):
    random.set_rng(np.random.RandomState(7))
    values = initial.sample((300, 100))
    assert values.shape == (300, 100)
    assert values.dtype == theano.config.floatX
    np.testing.assert_allclose(values.std(), deviation, rtol=0.03, atol=1e-12)
    layer = layers.DenseLayer(layers.InputLayer((None, 300)), 100, W=initial)
    assert layer.W.get_value().shape == (300, 100)


def test_orthogonal_and_sparse_initial_values():
    q = init.Orthogonal(gain=2.0).sample((8, 5))
    np.testing.assert_allclose(q.T @ q, 4 * np.eye(5), atol=1e-12)
    assert ((init.Sparse(0.3).sample((20, 7)) != 0).sum(axis=0) == 6).all()


def test_a_filter_bank_s_fan_in_counts_its_window():
    values = init.HeNormal().sample((200, 3, 5, 5))
    np.testing.assert_allclose(values.std(), np.sqrt(1 / 75), rtol=0.03)


# -- random numbers


def test_one_generator_decides_all():
    random.set_rng(np.random.RandomState(3))
    assert isinstance(random.get_rng(), np.random.RandomState)
    first = init.Normal().sample((4,))
    random.set_rng(np.random.RandomState(3))
    np.testing.assert_array_equal(init.Normal().sample((4,)), first)


# -- utilities


def test_one_hot():
    np.testing.assert_array_equal(
        run(lambda y: utils.one_hot(y, 5), CLASSES), np.eye(5)[CLASSES]
    )
    if WHERE == "JAX":
        # The number of classes is the largest value here.
        with pytest.raises(NotImplementedError, match="shape of eye"):
            run(utils.one_hot, CLASSES)
    else:
        np.testing.assert_array_equal(run(utils.one_hot, CLASSES), np.eye(4)[CLASSES])


def test_norms():
    expected = np.sqrt((X**2).sum(axis=0))
    np.testing.assert_allclose(utils.compute_norms(X), expected)
    images = RNG.randn(2, 3, 4, 5)
    expected = np.sqrt((images**2).sum(axis=(1, 2, 3)))
    np.testing.assert_allclose(utils.compute_norms(images), expected)


def test_expressions_and_parameters():
    variable = T.matrix()
    assert utils.as_theano_expression(variable) is variable
    np.testing.assert_array_equal(utils.as_theano_expression(X).eval(), X)
    with pytest.raises(TypeError, match="not a Theano expression"):
        utils.as_theano_expression(object())
    assert utils.floatX([1]).dtype == theano.config.floatX
    assert utils.shared_empty(3).get_value().shape == (1, 1, 1)
    param = utils.create_param(init.Constant(3.0), (2, 5), name="p")
    assert param.name == "p"
    np.testing.assert_array_equal(param.get_value(), np.full((2, 5), 3.0))
    assert utils.create_param(param, (2, 5)) is param
    np.testing.assert_array_equal(utils.create_param(X, (6, 4)).get_value(), X)
    with pytest.raises(RuntimeError, match="shape"):
        utils.create_param(X, (4, 6))


def test_lists_and_tuples():
    assert utils.unique([3, 1, 3, 2, 1]) == [3, 1, 2]
    assert utils.as_tuple(2, 3) == (2, 2, 2)
    with pytest.raises(ValueError, match="length 3"):
        utils.as_tuple((1, 2), 3)


def test_an_unrolled_loop_is_the_scan():
    def step(row, total, factor):
        return total * factor + row

    def unrolled(x, factor):
        zeros = T.zeros((4,))
        return utils.unroll_scan(step, x, [zeros], [factor], 6, go_backwards=True)[0]

    def scanned(x, factor):
        zeros = T.zeros((4,))
        return theano.scan(step, x, zeros, factor, go_backwards=True)[0]

    total, expected = np.zeros(4), []
    for row in X[::-1]:
        total = 0.5 * total + row
        expected.append(total)
    for build in unrolled, scanned:
        check(build, np.array(expected), X, np.array(0.5))


# -- other convolutions, padding

SEQUENCES, FILTERS = RNG.randn(2, 3, 14), RNG.randn(5, 3, 4)


def correlated(stride):
    from scipy.signal import correlate  # here: else it takes all workers 50 MB

    """Return the convolution of the sequences with the filters, by scipy."""
    images = [
        [correlate(x, np.flip(w, 1), "valid")[0, ::stride] for w in FILTERS]
        for x in SEQUENCES
    ]
    return np.array(images)


@pytest.mark.parametrize(
    ("name", "stride"),
    [
        ("conv1d_sc", 1),
        ("conv1d_sc", 2),
        ("conv1d_mc0", 2),
        ("conv1d_mc1", 2),
        ("conv1d_unstrided", 2),
        ("conv1d_sd", 2),
        ("conv1d_md", 2),
    ],
)
def test_another_convolution_of_sequences(name, stride):
    def build(x, w):
        shapes = SEQUENCES.shape, FILTERS.shape
        return getattr(conv, name)(x, w, *shapes, subsample=(stride,))

    check(build, correlated(stride), SEQUENCES, FILTERS)


@pytest.mark.parametrize("value", [0, 1.5])
def test_padding(value):
    images = RNG.randn(2, 3, 4, 5)
    expected = np.pad(images, [(0, 0), (0, 0), (1, 2), (3, 3)], constant_values=value)
    check(lambda x: padding.pad(x, [(1, 2), 3], value, 2), expected, images)


# -- helpers of layers


def test_helpers_of_layers():
    hidden, last, weights = network()
    assert layers.get_all_layers(last) == [hidden.input_layer, hidden, last]
    assert layers.get_output_shape(last) == (None, 2)
    assert layers.get_output_shape(last, (7, 4)) == (7, 2)
    assert layers.get_all_params(last) == [hidden.W, hidden.b, last.W, last.b]
    assert layers.get_all_params(last, regularizable=True) == [hidden.W, last.W]
    assert layers.count_params(last) == 4 * 3 + 3 + 3 * 2 + 2
    values = layers.get_all_param_values(last)
    np.testing.assert_array_equal(values[2], weights[1])
    doubled = [2 * value for value in values]
    layers.set_all_param_values(last, doubled)
    np.testing.assert_array_equal(last.W.get_value(), doubled[2])
    with pytest.raises(ValueError, match="mismatch"):
        layers.set_all_param_values(last, doubled[:2])


def test_the_output_for_another_input():
    hidden, last, (first, second) = network()
    expected = np.maximum(np.maximum(X @ first, 0) @ second, 0)
    np.testing.assert_allclose(run(lambda x: layers.get_output(last, x), X), expected)
    given = {hidden: np.ones((2, 3))}
    output = theano.function([], layers.get_output(last, given), mode=MODE)()
    np.testing.assert_allclose(output, np.maximum(np.ones((2, 3)) @ second, 0))


def test_every_function_of_the_modules_is_tested():
    source = Path(__file__).read_text()
    for module in (init, nonlinearities, objectives, random, regularization, utils):
        for name, value in vars(module).items():
            if getattr(value, "__module__", "") != module.__name__:
                continue
            if name[0] != "_" and name not in ("Initializer", "Glorot", "He"):
                assert name in source, f"{module.__name__}.{name}"
