"""`theano.tensor.nnet` and `signal`, and what Lasagne 0.2 asks: closed forms, and JAX.

Theano's own numbers of many of these are in test_theano_tensor.py. Where the wheel of
Lasagne 0.2 is not, its layers can't be tested themselves: some of these graphs call
Theano as one of them does.
"""

import functools

import numpy as np
import pytest
import theano
import theano.tensor as T
from children import in_a_child
from graph_groups import Graph, Group
from scipy.special import softmax
from theano.sandbox.rng_mrg import MRG_RandomStreams
from theano.tensor.nnet import bn, conv3d2d, neighbours
from theano.tensor.nnet.conv import ConvOp
from theano.tensor.nnet.conv import conv2d as first_conv2d
from theano.tensor.signal import downsample, pool

pytestmark = pytest.mark.usefixtures("graphs_in_python")

MODE = "FAST_COMPILE"
X = np.random.default_rng(0).normal(scale=3, size=(4, 5))
LABELS = np.array([0, 4, 2, 2])


def value(graph):
    return theano.function([], graph, mode=MODE)()


P = softmax(X, axis=1)
RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(3, 2, 4, 6))
GAMMA, BETA, MEAN = (RNG.normal(size=(1, 2, 1, 1)) for _ in range(3))
VAR = RNG.uniform(0.5, 2, (1, 2, 1, 1))
SQUARES, FIXED = RNG.normal(size=(2, 3, 5, 6)), RNG.normal(size=(6, 7))
FILTERS = RNG.normal(size=(4, 3, 2, 2))


def trained():
    """Batch normalisation, and what it keeps of a batch."""
    mean, var = (of((0, 2, 3), keepdims=True) for of in (IMAGES.mean, IMAGES.var))
    running = {"running_mean": T.zeros((1, 2, 1, 1))}
    running |= {"running_var": T.ones((1, 2, 1, 1)), "running_average_factor": 0.2}

    def build(x, gamma, beta):
        results = bn.batch_normalization_train(
            x, gamma, beta, axes="spatial", epsilon=1e-3, **running
        )
        assert len(results) == 5
        return results[0] + results[3] + results[4]

    kept = 0.2 * mean + 0.8 + 0.2 * var * 72 / 71
    expected = (IMAGES - mean) / np.sqrt(var + 1e-3) * GAMMA + BETA + kept
    return Graph(build, (IMAGES, GAMMA, BETA), expected)


def older():
    def build(x, *given):
        given = [T.addbroadcast(values, 0, 2, 3) for values in given]
        return bn.batch_normalization(x, *given, mode="high_mem")

    expected = (IMAGES - MEAN) * (GAMMA / VAR) + BETA
    return Graph(build, (IMAGES, GAMMA, BETA, MEAN, VAR), expected)


def pooled(mode, of):
    def build(x):
        old = {"ds": (2, 3), "st": (2, 3), "padding": (0, 0)}
        volumes = x.dimshuffle(0, "x", 1, 2, 3)
        return T.stack(
            [
                pool.pool_2d(x, **old, ignore_border=True, mode=mode),
                pool.pool_3d(volumes, (1, 2, 3), ignore_border=True, mode=mode)[:, 0],
            ]
        )

    expected = of(IMAGES.reshape(3, 2, 2, 2, 2, 3), axis=(3, 5))
    return Graph(build, (IMAGES,), np.stack([expected] * 2))


# -- convolutions as Lasagne's layers call them


def convolved(x, w, step=1):
    """Return images correlated with filters, the filters' elements `step` apart."""
    lengths = tuple((n - 1) * step + 1 for n in w.shape[2:])
    axes = tuple(range(2, x.ndim))
    windows = np.lib.stride_tricks.sliding_window_view(x, lengths, axes)
    windows = windows[(..., *[slice(None, None, step)] * len(axes))]
    of_windows = [1, *range(x.ndim, 2 * x.ndim - 2)]
    return np.moveaxis(np.tensordot(windows, w, [of_windows, [1, *axes]]), -1, 1)


def transposed(ndim, is_known):
    """Every pixel adds its filter, at twice its place."""
    lengths = (3, 4, 2)[:ndim]
    x, w = RNG.normal(size=(2, 3, *lengths)), RNG.normal(size=(3, 2, *[3] * ndim))
    full = tuple(2 * n + 1 for n in lengths)
    expected = np.zeros((2, 2, *full))
    for place in np.ndindex(*lengths):
        part = (..., *(slice(2 * i, 2 * i + 3) for i in place))
        expected[part] += np.einsum("bc,co...->bo...", x[(..., *place)], w)

    def build(x, w):
        op = getattr(T.nnet.abstract_conv, f"AbstractConv{ndim}d_gradInputs")
        convolution = op(
            imshp=(None, 2, *full) if is_known else None,
            kshp=w.type.shape,
            subsample=(2,) * ndim,
            border_mode=(0,) * ndim,
            filter_flip=False,
        )
        return convolution(w, x, full if is_known else [2 * n + 1 for n in x.shape[2:]])

    return Graph(build, (x, w), expected)


def dilated():
    """By the gradient of filters."""
    w = RNG.normal(size=(3, 4, 2, 2))

    def build(x, w):
        convolution = T.nnet.abstract_conv.AbstractConv2d_gradWeights(
            imshp=(3, None, 5, 6),
            kshp=(4, None, 3, 4),
            subsample=(2, 2),
            border_mode="valid",
            filter_flip=False,
        )
        place = x.shape[2] - 2, x.shape[3] - 2
        return convolution(x.transpose(1, 0, 2, 3), w, place).transpose(1, 0, 2, 3)

    expected = convolved(SQUARES, w.transpose(1, 0, 2, 3), 2)
    return Graph(build, (SQUARES, w), expected)


def of_volumes():
    x, w = RNG.normal(size=(2, 2, 4, 3, 5)), RNG.normal(size=(3, 2, 2, 2, 3))

    def build(x, w):
        shapes = (None, 2, 4, 3, 5), (3, 2, 2, 2, 3)
        options = {"subsample": (1, 1, 1), "border_mode": "valid"}
        return T.nnet.conv3d(x, w, *shapes, **options, filter_flip=False)

    return Graph(build, (x, w), convolved(x, w))


def of_time_first():
    x, w = RNG.normal(size=(2, 4, 2, 3, 5)), RNG.normal(size=(3, 2, 2, 2, 3))
    expected = convolved(x.swapaxes(1, 2), w.swapaxes(1, 2)[:, :, ::-1, ::-1, ::-1])
    build = functools.partial(conv3d2d.conv3d, signals_shape=x.shape)
    return Graph(build, (x, w), expected.swapaxes(1, 2))


def cropped():
    """Cut to the smallest."""
    wide = RNG.normal(size=(2, 3, 4, 9))

    def build(x, y):
        least = T.min(T.as_tensor_variable([x.shape, y.shape]), axis=0)
        first = (y.shape[3] - least[3]) // 2
        other = y[:, :, : least[2], slice(first, first + least[3])]
        return x[:, :, : least[2], : least[3]] + other

    return Graph(build, (SQUARES, wide), SQUARES[:, :, :4] + wide[:, :, :, 1:7])


GRAPHS = {
    "batch_normalization_train": trained(),
    "batch_normalization_test": Graph(
        lambda *given: bn.batch_normalization_test(*given, axes="spatial"),
        (IMAGES, GAMMA, BETA, MEAN, VAR),
        (IMAGES - MEAN) / np.sqrt(VAR + 1e-4) * GAMMA + BETA,
    ),
    "batch_normalization": older(),
    "neibs2images": Graph(
        lambda x: neighbours.neibs2images(
            neighbours.images2neibs(x, (2, 3)), (2, 3), x.shape, mode="valid"
        ),
        (IMAGES,),
        IMAGES,
    ),
    "max": pooled("max", np.max),
    "average": pooled("average_exc_pad", np.mean),
    "hard_sigmoid": Graph(T.nnet.hard_sigmoid, (X,), np.clip(0.2 * X + 0.5, 0, 1)),
    "softsign": Graph(T.nnet.softsign, (X,), X / (1 + np.abs(X))),
    "slopes": Graph(T.nnet.relu, (X, X[0] / 9), np.where(X > 0, X, X[0] / 9 * X)),
    "elu of 2": Graph(
        lambda x: T.nnet.elu(x, 2), (X,), np.where(X > 0, X, 2 * np.expm1(X))
    ),
    "transposed, known size": transposed(2, True),
    "transposed, of volumes": transposed(3, False),
    "dilated": dilated(),
    "of volumes": of_volumes(),
    "of volumes, time first": of_time_first(),
    "cropped": cropped(),
    # A known matrix, tiled to the batch, as thin plate splines have it.
    "tiled": Graph(
        lambda x: T.batched_dot(x, T.tile(T.constant(FIXED)[None], (x.shape[0], 1, 1))),
        (SQUARES[:, 0],),
        SQUARES[:, 0] @ FIXED,
    ),
    # The inverse of a layer is its gradient.
    "inverse": Graph(
        lambda x, g: theano.grad(None, wrt=x, known_grads={T.tanh(x): g}),
        (X, P),
        P * (1 - np.tanh(X) ** 2),
    ),
}


@functools.cache
def group():
    return Group(GRAPHS, MODE)


def test_graphs_give_their_closed_forms_and_are_differentiated():
    group().check()
    assert T.nnet.batch_normalization_test is bn.batch_normalization_test


@pytest.mark.slow
@in_a_child
def test_all_is_the_same_in_jax_mode():
    group().check_in("JAX")


def test_relu_of_arrays_is_an_array():
    # 0.5 * (x + abs(x)) in Theano: tests of Lasagne compare with NumPy by it.
    assert isinstance(T.nnet.relu(X), np.ndarray)
    np.testing.assert_array_equal(T.nnet.relu(X), np.maximum(X, 0))
    assert T.nnet.relu(-2.0) == 0
    assert isinstance(T.nnet.relu(X, 0.1), theano.Variable)


def test_h_softmax_is_a_distribution_and_gives_its_targets():
    rng = np.random.default_rng(1)
    w1, b1 = rng.normal(size=(5, 3)), rng.normal(size=3)
    w2, b2 = rng.normal(size=(3, 5, 2)), rng.normal(size=(3, 2))
    classes = softmax(X @ w1 + b1, axis=1)
    inner = softmax(np.einsum("bf,cfo->bco", X, w2) + b2, axis=2)
    joint = (classes[:, :, None] * inner).reshape(4, 6)
    args = X, 4, 6, 3, 2, w1, b1, w2, b2
    np.testing.assert_allclose(value(T.nnet.h_softmax(*args)), joint)
    chosen = value(T.nnet.h_softmax(*args, LABELS))
    np.testing.assert_allclose(chosen, joint[np.arange(4), LABELS])


def test_convolutions_and_pooling_are_those_of_synk_nn():
    from theano.tensor.signal.conv import conv2d as plain_conv2d

    rng = np.random.default_rng(2)
    images, filters = rng.normal(size=(2, 3, 6, 6)), rng.normal(size=(4, 3, 3, 3))
    windows = np.lib.stride_tricks.sliding_window_view(images, (3, 3), axis=(2, 3))
    expected = np.einsum("bcijrs,fcrs->bfij", windows, filters[:, :, ::-1, ::-1])
    x = T.tensor4()
    for conv in (
        T.nnet.conv2d(x, filters, image_shape=(2, 3, 6, 6), filter_shape=(4, 3, 3, 3)),
        first_conv2d(x, filters, image_shape=(2, 3, 6, 6), unroll_batch=2),
    ):
        result = theano.function([x], conv, mode=MODE)(images)
        np.testing.assert_allclose(result, expected)
    one = plain_conv2d(images[0, 0], filters[0, 0])
    single = np.einsum("ijrs,rs->ij", windows[0, 0], filters[0, 0, ::-1, ::-1])
    np.testing.assert_allclose(value(one), single)
    largest = images.reshape(2, 3, 3, 2, 3, 2).max(axis=(3, 5))
    pooled = downsample.max_pool_2d(images, (2, 2), ignore_border=True)
    np.testing.assert_allclose(value(pooled), largest)
    by_op = T.nnet.abstract_conv.AbstractConv2d_gradInputs(subsample=(2, 2))
    shape, how = (2, 3, 13, 13), {"input_dilation": (2, 2)}
    by_name = T.nnet.conv2d_transpose(images, filters[:3], shape, **how)
    by_op = by_op(filters[:3], images, shape[2:])
    np.testing.assert_array_equal(value(by_name), value(by_op))
    with pytest.raises(NotImplementedError, match="unshared"):
        T.nnet.conv2d(images, filters, unshared=True)
    with pytest.raises(NotImplementedError, match="unshared"):
        T.nnet.abstract_conv.AbstractConv2d_gradInputs(unshared=True)


def test_shapes_are_known_before_graphs_are_made():
    """As layers of Blocks ask for them, and older ones; numbers of Theano's tests."""
    assert pool.Pool.out_shape((9, 8, 6), (2, 2)) == [9, 4, 3]
    for window, stride, ignore_border, out in (
        ((3, 3), (5, 7), False, (4, 3)),
        ((5, 3), (5, 7), True, (3, 2)),
    ):
        images = np.random.default_rng(0).normal(size=(2, 1, 16, 16))
        older = downsample.DownsampleFactorMax(window, ignore_border, st=stride)
        shape = older.out_shape(images.shape, window, ignore_border, st=stride)
        newer = pool.Pool(ignore_border)(images, window, stride=stride)
        for result in value([older(images), newer]):
            assert [*result.shape] == shape == [2, 1, *out]
    ask = T.nnet.abstract_conv.get_conv_output_shape
    shapes = (None, 2, 12, 9), (4, 2, 5, 6)
    assert ask(*shapes, "valid", (1, 2)) == (None, 4, 8, 2)
    assert ask(*shapes, "half", (1, 1)) == (None, 4, 12, 10)
    assert ask(*shapes, (1, 2), (1, 1), (2, 1)) == (None, 4, 6, 8)
    assert ask((3, 2, None, 9), shapes[1], "full", (1, 1)) == (3, 4, None, 14)
    assert ConvOp.getOutputShape((12, 9), (5, 6), (2, 2), "full") == (8, 7)


def test_bilinear_upsampling_interpolates_between_the_points():
    x = np.arange(12.0).reshape(1, 1, 3, 4) ** 2
    for ratio in 2, 3:
        result = value(T.nnet.bilinear_upsampling(x, ratio))
        assert result.shape == (1, 1, 3 * ratio, 4 * ratio)
        start = (ratio - 1) // 2
        at_points = result[:, :, start::ratio, start::ratio]
        np.testing.assert_allclose(at_points, x)


def test_random_slopes_and_masks_shared_over_axes():
    streams = MRG_RandomStreams(7)
    x, images = T.tensor4(), -np.ones((40, 3, 2, 2))
    slopes = streams.uniform(
        (x.shape[0], 3, 1, 1), low=0.3, high=0.8, dtype=theano.config.floatX
    )
    mask = streams.binomial((x.shape[0], 3, 1, 1), p=0.5, dtype=x.dtype)
    leaky = T.nnet.relu(x, T.addbroadcast(slopes, 2, 3))
    outputs = [leaky, x * T.patternbroadcast(mask, (False, False, True, True))]
    leaky, masked = theano.function([x], outputs, mode=MODE)(images)
    assert -0.8 <= leaky.min() < -0.7 < -0.4 < leaky.max() <= -0.3
    assert (leaky == leaky[:, :, :1, :1]).all()
    assert set(np.unique(masked)) == {-1, 0}
    assert (masked == masked[:, :, :1, :1]).all()
