"""What code written for Lasagne after 0.1 asks of Theano, call by call.

That version is on no package index: where its wheel is not, its layers can't be tested
themselves. Each graph calls Theano as one of them does, and is compared with numpy, and
in JAX mode.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import theano
import theano.tensor as T
from children import in_a_child
from graph_groups import Graph, Group
from theano.sandbox.rng_mrg import MRG_RandomStreams

pytestmark = pytest.mark.usefixtures("scans_in_python")

MODE = "FAST_COMPILE"
RNG = np.random.default_rng(0)
IMAGES, MATRIX = RNG.normal(size=(2, 3, 5, 6)), RNG.normal(size=(4, 5))


def convolved(x, w, step=1):
    """Return images correlated with filters, the filters' elements `step` apart."""
    lengths = tuple((n - 1) * step + 1 for n in w.shape[2:])
    axes = tuple(range(2, x.ndim))
    windows = np.lib.stride_tricks.sliding_window_view(x, lengths, axes)
    windows = windows[(..., *[slice(None, None, step)] * len(axes))]
    of_windows = [1, *range(x.ndim, 2 * x.ndim - 2)]
    return np.moveaxis(np.tensordot(windows, w, [of_windows, [1, *axes]]), -1, 1)


# -- convolutions


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


def dilated(is_known):
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
        place = (3, 4) if is_known else (x.shape[2] - 2, x.shape[3] - 2)
        return convolution(x.transpose(1, 0, 2, 3), w, place).transpose(1, 0, 2, 3)

    expected = convolved(IMAGES, w.transpose(1, 0, 2, 3), 2)
    return Graph(build, (IMAGES, w), expected)


def of_volumes():
    x, w = RNG.normal(size=(2, 2, 4, 3, 5)), RNG.normal(size=(3, 2, 2, 2, 3))

    def build(x, w):
        return T.nnet.conv3d(
            x,
            w,
            (None, 2, 4, 3, 5),
            (3, 2, 2, 2, 3),
            subsample=(1, 1, 1),
            border_mode="valid",
            filter_flip=False,
        )

    return Graph(build, (x, w), convolved(x, w))


def plain():
    w = RNG.normal(size=(4, 3, 2, 2))
    convolution = T.nnet.abstract_conv.AbstractConv2d(filter_flip=False)
    assert convolution.convdim == 2
    return Graph(convolution, (IMAGES, w), convolved(IMAGES, w))


def local():
    """Filters that differ from place to place: shifted images times weights."""
    w = RNG.normal(size=(2, 3, 3, 5, 6))

    def build(x, w):
        result = (x[:, None] * w[None, :, :, 1]).sum(axis=-3)
        for shift, new, old in (
            (0, slice(1, 5), slice(0, 4)),
            (2, slice(0, 4), slice(1, 5)),
        ):
            part = (x[:, None, :, old] * w[:, :, shift, new]).sum(axis=-3)
            result = T.inc_subtensor(result[:, :, new], part)
        return result

    padded = np.pad(IMAGES, [(0, 0), (0, 0), (1, 1), (0, 0)])
    expected = sum(
        np.einsum("bcij,ocij->boij", padded[:, :, s : s + 5], w[:, :, s])
        for s in range(3)
    )
    return Graph(build, (IMAGES, w), expected)


# -- pooling and its reverse


def pooled(mode, of):
    x = RNG.normal(size=(2, 2, 4, 6, 2))
    parts = x.reshape(2, 2, 2, 2, 3, 2, 1, 2)

    def build(x):
        options = {"ignore_border": True, "pad": (0, 0, 0), "mode": mode}
        return T.signal.pool.pool_3d(x, ws=(2, 2, 2), stride=(2, 2, 2), **options)

    return Graph(build, (x,), of(parts, axis=(3, 5, 7)))


def spread():
    def build(x):
        shape = (x.shape[0], x.shape[1], x.shape[2] * 2, x.shape[3] * 3)
        zeros = T.zeros(shape=shape, dtype=x.dtype)
        return T.set_subtensor(zeros[:, :, ::2, ::3], x)

    expected = np.zeros((2, 3, 10, 18))
    expected[:, :, ::2, ::3] = IMAGES
    return Graph(build, (IMAGES,), expected)


# -- other layers


def tiled():
    """As thin plate splines have it: a known matrix, tiled to the batch."""
    fixed = RNG.normal(size=(3, 7))

    def build(x):
        known = T.as_tensor_variable(fixed).dimshuffle("x", 0, 1)
        return T.batched_dot(x[:, 0, :, :3], T.tile(known, (x.shape[0], 1, 1)))

    return Graph(build, (IMAGES,), IMAGES[:, 0, :, :3] @ fixed)


def inverse():
    """The inverse of a layer is its gradient."""
    other = RNG.normal(size=MATRIX.shape)

    def build(x, g):
        return theano.grad(None, wrt=x, known_grads={T.tanh(x): g})

    return Graph(build, (MATRIX, other), other * (1 - np.tanh(MATRIX) ** 2))


def cropped():
    """Cut to the smallest."""
    wide = RNG.normal(size=(2, 3, 4, 9))

    def build(x, y):
        least = T.min(T.as_tensor_variable([x.shape, y.shape]), axis=0)
        first = (y.shape[3] - least[3]) // 2
        other = y[:, :, : least[2], slice(first, first + least[3])]
        return x[:, :, : least[2], : least[3]] + other

    return Graph(build, (IMAGES, wide), IMAGES[:, :, :4] + wide[:, :, :, 1:7])


def standardised(x):
    centred = x - x.mean((2, 3), keepdims=True)
    return centred / T.sqrt(T.sqr(centred).mean((2, 3), keepdims=True) + 1e-4)


def leaky(x, slopes):
    return T.nnet.relu(x, slopes.dimshuffle(["x", 0, "x", "x"]))


def last_state():
    """A loop that ends in its last state, and skips what is masked."""
    sequences, w = RNG.normal(size=(3, 6, 4)), RNG.normal(size=(4, 4))
    mask = (np.arange(6) < np.array([[6], [2], [4]])).astype(float)
    keeps = theano.shared(mask)

    def build(x, w):
        def step(row, keep, hidden, w):
            new = T.tanh(row + T.dot(hidden, w))
            return T.switch(keep, new, hidden)

        states = theano.scan(
            fn=step,
            sequences=[x.dimshuffle(1, 0, 2), keeps.dimshuffle(1, 0, "x")],
            outputs_info=[T.dot(T.ones((x.shape[0], 1)), T.zeros((1, 4)))],
            non_sequences=[w],
            truncate_gradient=-1,
            go_backwards=False,
            strict=True,
        )[0]
        return states[-1]

    hidden = np.zeros((3, 4))
    for i in range(6):
        new = np.tanh(sequences[:, i] + hidden @ w)
        hidden = np.where(mask[:, i : i + 1] > 0, new, hidden)
    return Graph(build, (sequences, w), hidden)


CENTRED = IMAGES - IMAGES.mean((2, 3), keepdims=True)
SLOPES = np.array([0.25, 0.5, 0.0])
GRAPHS = {
    "transposed, known size": transposed(2, True),
    "transposed": transposed(2, False),
    "transposed, of volumes": transposed(3, False),
    "dilated, known size": dilated(True),
    "dilated": dilated(False),
    "cropped": cropped(),
    "of volumes": of_volumes(),
    "plain": plain(),
    "local": local(),
    "largest": pooled("max", np.max),
    "mean": pooled("average_exc_pad", np.mean),
    "sum": pooled("sum", np.sum),
    "spread": spread(),
    "tiled": tiled(),
    "upscaled": Graph(
        lambda x: T.extra_ops.repeat(T.extra_ops.repeat(x, 3, 3), 2, 2),
        (IMAGES,),
        IMAGES.repeat(3, axis=3).repeat(2, axis=2),
    ),
    "inverse": inverse(),
    "standardised": Graph(
        standardised,
        (IMAGES,),
        CENTRED / np.sqrt(IMAGES.var((2, 3), keepdims=True) + 1e-4),
    ),
    "leaky": Graph(
        leaky,
        (IMAGES, SLOPES),
        np.where(IMAGES > 0, IMAGES, SLOPES[:, None, None] * IMAGES),
    ),
    "last state": last_state(),
}


@functools.cache
def group():
    return Group(GRAPHS, MODE)


def test_graphs_give_what_numpy_gives_and_are_differentiated():
    group().check()


@in_a_child
def test_all_is_the_same_in_jax_mode():
    group().check_in("JAX")


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


def test_what_layers_ask_of_types_and_graphs():
    assert tuple(T.alloc(0, 3, 0, 5).mean(-1).shape.eval()) == (3, 0)
    column = T.TensorType("float64", (False, True))()
    assert column.broadcastable == (False, True)
    given = theano.shared(np.ones((3, 1)), broadcastable=(False, True))
    assert given.broadcastable == (False, True)
    w, x = theano.shared(np.ones((5, 2))), T.matrix()
    found = theano.gof.graph.inputs([T.dot(x, w)])
    assert [v for v in found if isinstance(v, theano.compile.SharedVariable)] == [w]
    with pytest.raises(NotImplementedError, match="unshared"):
        T.nnet.abstract_conv.AbstractConv2d(unshared=True)
