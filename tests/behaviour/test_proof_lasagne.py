"""Layers of Lasagne and what synk.nn has are shown to split, with their gradients."""

from __future__ import annotations

import lasagne
import numpy as np
import pytest
import theano
import theano.tensor as T
from lasagne import layers as L
from lasagne.nonlinearities import softmax, tanh
from test_lasagne_layers import ALL

import synk
from synk import nn
from synk.compiler.proof import examine, ops_of

MODE = "FAST_COMPILE"
# Its mask is a constant, as long as the batch of its own test.
OTHERS = {"LSTMLayer masked"}


def shown(layer, inputs):
    """Assert that a layer's output is row-wise, and gradients are means and sums."""
    output = L.get_output(layer)
    params = L.get_all_params(layer, trainable=True)
    by_row = (output.reshape((output.shape[0], -1)) ** 2).sum(axis=1)
    check(output, by_row, inputs, params)


def check(output, by_row, inputs, params):
    """Assert what an output and gradients of the mean and sum of losses are.

    The gradient of a loop takes long: the mean's is the sum's with another weight.
    """
    expected = dict.fromkeys([by_row.mean()], "avg") | {output: "gather"}
    weight = T.scalar(dtype=by_row.dtype)
    loss = by_row.sum() * weight
    weighted = [loss, *theano.grad(loss, params)]
    one = T.constant(1, dtype=by_row.dtype)
    for value, op in (one / by_row.shape[0], "avg"), (one, "sum"):
        value = T.cast(value, by_row.dtype)
        expected.update(dict.fromkeys(theano.clone(weighted, {weight: value}), op))
    found = examine(inputs, [], list(expected))
    for var, op in expected.items():
        assert op in ops_of(found[var]), (var, str(found[var]))


@pytest.mark.parametrize("name", sorted(ALL.keys() - OTHERS))
def test_a_layer_splits_into_rows(name):
    make, value = ALL[name]
    incoming = L.InputLayer((None, *value.shape[1:]))
    shown(make(incoming), [incoming.input_var])


RECURRENT = [L.RecurrentLayer, L.LSTMLayer, L.GRULayer]
OPTIONS = [
    {},
    {"learn_init": True},
    {"backwards": True},
    {"gradient_steps": 2},
    {"precompute_input": False},
    {"unroll_scan": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("kind", RECURRENT)
@pytest.mark.parametrize("is_masked", [False, True])
def test_a_recurrent_layer_splits_into_rows(kind, options, is_masked):
    incoming = L.InputLayer((None, 4, 5))
    masks = [L.InputLayer((None, 4))] if is_masked else []
    layer = kind(incoming, 2, mask_input=masks[0] if masks else None, **options)
    shown(layer, [incoming.input_var, *(mask.input_var for mask in masks)])


def test_an_embedding_before_a_recurrent_layer_splits_into_rows():
    words = T.imatrix("words")
    layer = L.EmbeddingLayer(L.InputLayer((None, 4), words), 9, 3)
    shown(layer, [words])
    deep = L.LSTMLayer(L.LSTMLayer(layer, 3), 2)
    dense = L.DenseLayer(L.ReshapeLayer(deep, (-1, 2)), 3, nonlinearity=softmax)
    shown(L.ReshapeLayer(dense, (-1, 4, 3)), [words])


def recurrent(**options):
    """Return a small network on sequences: inputs, losses by row, parameters."""
    lasagne.random.set_rng(np.random.RandomState(7))
    x, y = T.tensor3("x"), T.ivector("y")
    layer = L.InputLayer((None, 4, 3), x)
    layer = L.RecurrentLayer(layer, 2, nonlinearity=tanh, **options)
    layer = L.DenseLayer(L.SliceLayer(layer, -1, axis=1), 3, nonlinearity=softmax)
    losses = lasagne.objectives.categorical_crossentropy(L.get_output(layer), y)
    return [x, y], losses, L.get_all_params(layer, trainable=True)


@pytest.mark.usefixtures("scans_in_python")
def test_clipping_within_a_recurrent_layer_wants_a_sum_of_a_rank():
    # What is clipped is a gradient of the cost: that of a mean is as small as there
    # are rows, so that it depends on them whether a rank clips it. Those of all ranks
    # are what it is divided by, unless the function is local.
    inputs, losses, params = recurrent(grad_clipping=0.05)
    loss = losses.mean()
    updates = lasagne.updates.sgd(synk.grad(loss, params), params, 0.1)
    with pytest.raises(synk.SplitError, match="Clip"):
        synk.function(inputs, loss, updates=updates, strict=True, local=True)
    rng = np.random.RandomState(1)
    values = rng.randn(7, 4, 3), rng.randint(0, 3, 7).astype("int32")
    inputs, losses, params = recurrent(grad_clipping=0.003)  # of some rows
    for loss, op, local in (
        (losses.sum(), "sum", True),
        (losses.sum(), "sum", False),
        (losses.mean(), "avg", False),
    ):
        serial = theano.function(inputs, [loss, *theano.grad(loss, params)], mode=MODE)
        outputs = [loss, *synk.grad(loss, params, op=op)]
        options = {"mode": MODE, "strict": True, "local": local}
        parallel = synk.function(inputs, outputs, **options)
        with synk.session(3):
            got = parallel(*values)
        for one, other in zip(got, serial(*values), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-14)


def filters(*shape):
    return theano.shared(np.ones(shape), "w")


OF_IMAGES = {
    "conv2d": lambda x, w: nn.conv2d(x, w),
    "conv2d, strides": lambda x, w: nn.conv2d(x, w, border_mode=1, subsample=(2, 2)),
    "conv2d, dilation": lambda x, w: nn.conv2d(x, w, filter_dilation=(2, 2)),
    "max pool": lambda x, w: nn.pool_2d(nn.conv2d(x, w), (2, 2)),
    "mean pool": lambda x, w: nn.pool_2d(
        nn.conv2d(x, w), (2, 2), mode="average_inc_pad"
    ),
    "softmax": lambda x, w: nn.softmax(nn.conv2d(x, w).flatten(2)),
    "relu": lambda x, w: nn.relu(nn.conv2d(x, w)),
    "twice": lambda x, w: nn.conv2d(nn.conv2d(x, w, border_mode="half"), w),
    "patches": lambda x, w: nn.neibs2images(
        nn.images2neibs(x * w.sum(), (2, 2)), (2, 2), x.shape
    ),
    "frames": lambda x, w: frames(x, w[:, :1]),
}


def frames(x, w):
    """Convolve each channel as an image of its own."""
    images = x.dimshuffle(1, 0, "x", 2, 3)
    images = images.reshape((-1, 1, x.shape[2], x.shape[3]))
    found = nn.conv2d(images, w).reshape((x.shape[1], x.shape[0], -1))
    return found.dimshuffle(1, 0, 2)


@pytest.mark.parametrize("name", OF_IMAGES)
def test_an_op_on_images_splits_into_rows(name):
    x, w = T.tensor4("x"), filters(3, 3, 2, 2)
    output = OF_IMAGES[name](x, w)
    by_row = (output**2).sum(axis=tuple(range(1, output.ndim)))
    check(output, by_row, [x], [w])


def test_batch_statistics_are_what_does_not_split():
    x, gamma, beta = T.matrix("x"), filters(3), filters(3)
    normal, *_ = nn.batch_normalization_train(x, gamma, beta)
    y = normal.sum(axis=1)
    with pytest.raises(synk.SplitError):
        synk.function([x], y, strict=True, local=True)
    split = synk.function([x], y, mode=MODE, strict=True)
    value = np.random.RandomState(0).randn(7, 3)
    with synk.session(3):
        got = split(value)
    np.testing.assert_allclose(got, theano.function([x], y, mode=MODE)(value), 1e-10)
    fixed = nn.batch_normalization_test(x, gamma, beta, filters(3), filters(3))
    f = synk.function([x], [fixed, (fixed**2).mean()], strict=True)
    assert f.output_modes == ["gather", "avg"]
