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
from lasagne import layers as L
from lasagne import nonlinearities, objectives, regularization, utils
from lasagne import updates as rules
from lasagne.nonlinearities import softmax, tanh
from lasagne.theano_extensions import conv, padding
from reference import PY

import synk

pytestmark = pytest.mark.usefixtures("scans_in_python")

MODE = "FAST_COMPILE"
RECURRENT = "RecurrentLayer", "LSTMLayer", "GRULayer"
RNG = np.random.RandomState(0)
SEQUENCES, IMAGES = RNG.rand(3, 4, 5), RNG.rand(2, 3, 6, 6)


# -- layers: arguments, options, and what each of them makes of its input

lasagne.random.set_rng(np.random.RandomState(7))
# Without kinks: a difference that steps over one is no gradient.
SMOOTH = {"nonlinearity": tanh}
OPTIONS = {"learn_init": True, "backwards": True, "precompute_input": False}
MASKED = {"mask_input": L.InputLayer((None, 4), T.ones((3, 4))), "grad_clipping": 9.0}
OF_STEP, OF_STATE = (
    L.DenseLayer(L.InputLayer((None, n)), 2, nonlinearity=None) for n in (5, 2)
)
MERGING = "ConcatLayer", "ElemwiseMergeLayer", "ElemwiseSumLayer"


def nin(x, p):
    return np.tanh(np.einsum("bcs,co->bos", x, p["W"]) + p["b"][:, None])


LOOPS = {
    "RecurrentLayer": ([2], SMOOTH | OPTIONS, None),
    "GRULayer": ([2], OPTIONS, None),
    "LSTMLayer": ([2], {"learn_init": True, "precompute_input": False} | MASKED, None),
    "CustomRecurrentLayer": ([OF_STEP, OF_STATE], SMOOTH, None),
}
OF_SEQUENCES = {
    "ConcatLayer": ([], {}, lambda x, p: np.concatenate([x, x**2], axis=1)),
    "DenseLayer": (
        [3],
        SMOOTH,
        lambda x, p: np.tanh(x.reshape(3, -1) @ p["W"] + p["b"]),
    ),
    "DimshuffleLayer": ([(0, 2, "x", 1)], {}, lambda x, p: x.mT[:, :, None]),
    "ElemwiseMergeLayer": ([T.mul], {}, lambda x, p: x**3),
    "ElemwiseSumLayer": ([[1, 2]], {}, lambda x, p: x + 2 * x**2),
    "FeaturePoolLayer": ([2], {}, lambda x, p: x.reshape(3, 2, 2, 5).max(axis=2)),
    "FeatureWTALayer": ([2], {}, None),
    "FlattenLayer": ([], {}, lambda x, p: x.reshape(3, -1)),
    "GlobalPoolLayer": ([], {}, lambda x, p: x.mean(axis=2)),
    "NINLayer": ([3], SMOOTH, nin),
    "NonlinearityLayer": ([tanh], {}, lambda x, p: np.tanh(x)),
    "PadLayer": ([2], {}, lambda x, p: np.pad(x, ((0, 0), (0, 0), (2, 2)))),
    "ReshapeLayer": ([([0], -1)], {}, lambda x, p: x.reshape(3, -1)),
    "SliceLayer": ([slice(1, 3)], {"axis": 1}, lambda x, p: x[:, 1:3]),
    "Conv1DLayer": ([3, 2], SMOOTH, None),
    "MaxPool1DLayer": (
        *([2], {}),
        lambda x, p: x[:, :, :4].reshape(3, 4, 2, 2).max(axis=3),
    ),
}
OF_IMAGES = {
    "Conv2DLayer": ([2, 3], SMOOTH, None),
    "Conv2DLayer same": ([2, 3], {"pad": "same", "stride": 2}, None),
    "LocalResponseNormalization2DLayer": ([], {}, None),
    "MaxPool2DLayer": (
        *([2], {}),
        lambda x, p: x.reshape(2, 3, 3, 2, 3, 2).max(axis=(3, 5)),
    ),
    "Pool2DLayer": (
        *([2], {"mode": "average_inc_pad"}),
        lambda x, p: x.reshape(2, 3, 3, 2, 3, 2).mean(axis=(3, 5)),
    ),
}
LAYERS = {
    "sequences": (OF_SEQUENCES, SEQUENCES),
    "images": (OF_IMAGES, IMAGES),
    "loops": (LOOPS, SEQUENCES),
}


def layer_of(table, name, incoming):
    """Return a layer of a table, on the one that is there."""
    args, options, _ = table[name]
    if name in MERGING:
        incoming = [incoming, L.NonlinearityLayer(incoming, T.sqr)]
    return getattr(L, name.split()[0])(incoming, *args, **options)


OTHERS = {"Layer", "MergeLayer", "InputLayer"}  # base classes, and in every test
OF_THEIR_OWN = {"DropoutLayer", "GaussianNoiseLayer", "EmbeddingLayer"}


def test_every_layer_class_is_tested():
    classes = {name for name in dir(L) if name.endswith("Layer") and name[0].isupper()}
    tested = {name.split()[0] for table, _ in LAYERS.values() for name in table}
    assert classes == tested | OTHERS | OF_THEIR_OWN


@functools.cache
def graphs_of(kind):
    table, value = LAYERS[kind]
    graphs = {}
    for name, (_, _, by_hand) in table.items():
        lasagne.random.set_rng(np.random.RandomState(7))
        incoming = L.InputLayer((None, *value.shape[1:]))
        layer = layer_of(table, name, incoming)
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


@pytest.mark.parametrize("name", ["dnn", "corrmm", "cuda_convnet"])
def test_layers_for_gpus_are_missing(name):
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


# -- what is gathered, averaged, added


def check_split(inputs, layers):
    """Assert that outputs are gathered, means averaged, sums added; gradients, too.

    The gradient of a loop takes long: the mean's is the sum's with another weight.
    """
    outputs, modes = [], []
    for layer in layers:
        output, params = L.get_output(layer), L.get_all_params(layer, trainable=True)
        by_row = (output**2).sum(axis=tuple(range(1, output.ndim)))
        weight = T.scalar(dtype=by_row.dtype)
        loss = by_row.sum() * weight
        weighted = [loss, *theano.grad(loss, params)]
        outputs += [output, by_row.mean()]
        modes += ["gather", "avg"]
        one = T.constant(1, dtype=by_row.dtype)
        for value, mode in (one / by_row.shape[0], "avg"), (one, "sum"):
            value = T.cast(value, by_row.dtype)
            outputs += theano.clone(weighted, {weight: value})
            modes += [mode] * len(weighted)
    assert synk.function(inputs, outputs, strict=True).output_modes == modes


@pytest.mark.parametrize("kind", LAYERS)
def test_layers_split_into_rows(kind):
    table, value = LAYERS[kind]
    incoming = L.InputLayer((None, *value.shape[1:]))
    some = [name for name in table if name not in RECURRENT]
    layers = [layer_of(table, name, incoming) for name in some]
    check_split([incoming.input_var], layers)


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers_split_into_rows_with_and_without_a_mask(name):
    kind = getattr(L, name)
    incoming, mask = L.InputLayer((None, 4, 5)), L.InputLayer((None, 4))
    backwards = {"backwards": True, "precompute_input": False, "mask_input": mask}
    layers = [
        kind(incoming, 2, learn_init=True, gradient_steps=2),
        kind(incoming, 2, **backwards),
    ]
    if name == RECURRENT[0]:  # others are unrolled by the same function
        layers.append(kind(incoming, 2, unroll_scan=True))
    check_split([incoming.input_var, mask.input_var], layers)


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


def of_rules(names, function, grad, mode=PY):
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


def assert_serial_numbers(names, n, mode=PY, rtol=1e-9):
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


def test_clipping_within_a_recurrent_layer_wants_a_sum_of_a_rank(two_ranks):
    # What is clipped is a gradient of the cost: that of a mean is as small as there
    # are rows, so that it depends on them whether a rank clips it. Those of all ranks
    # are what it is divided by, unless the function is local.
    lasagne.random.set_rng(np.random.RandomState(7))
    incoming = L.InputLayer((None, 4, 3))
    layer = L.RecurrentLayer(incoming, 2, nonlinearity=tanh, grad_clipping=0.003)
    params = L.get_all_params(layer, trainable=True)
    losses = (L.get_output(layer) ** 2).sum(axis=(1, 2))
    loss, total, inputs = losses.mean(), losses.sum(), [incoming.input_var]
    updates = rules.sgd(synk.grad(loss, params), params, 0.1)
    with pytest.raises(synk.SplitError, match="Clip"):
        synk.function(inputs, loss, updates=updates, strict=True, local=True)
    value = np.random.RandomState(1).randn(7, 4, 3)
    of_mean, of_sum = theano.grad(loss, params), theano.grad(total, params)
    expected = theano.function(inputs, [*of_mean, *of_sum], mode=PY)(value)
    assert not np.allclose(expected[0], expected[len(of_sum)] / 7), "unclipped"
    by_sum = synk.grad(total, params, op="sum")
    for outputs, local in (by_sum, True), (synk.grad(loss, params) + by_sum, False):
        parallel = synk.function(inputs, outputs, mode=PY, strict=True, local=local)
        of_serial = expected[-len(outputs) :]
        for one, other in zip(parallel(value), of_serial, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-14)
