"""The splitting proof understands networks of images; ranks give the serial numbers."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from reference import PY

import synk
from synk import nn

X, Y = pt.tensor4("x"), pt.lvector("y")
FILTERS = pytensor.shared(
    np.random.default_rng(0).normal(size=(3, 2, 3, 3)) / 4, "filters"
)
WIDE = pt.tensor4("wide")
WEIGHTS = pytensor.shared(np.random.default_rng(1).normal(size=(27, 4)) / 4, "weights")


def network(mode: str):
    hidden = pt.tanh(nn.conv2d(X, FILTERS, border_mode="half"))
    pooled = nn.pool_2d(hidden, (2, 2), ignore_border=True, mode=mode)
    return nn.softmax(pooled.flatten(2) @ WEIGHTS)


def loss(mode: str):
    return nn.categorical_crossentropy(network(mode), Y).mean()


def images(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    return rng.normal(size=(n, 2, 6, 6)), rng.integers(0, 4, n)


@pytest.mark.parametrize("mode", ["max", "average_exc_pad"])
def test_a_network_of_images_is_understood(mode, two_ranks):
    cost = loss(mode)
    gradients = pytensor.grad(cost, [FILTERS, WEIGHTS])
    reduced = synk.grad(cost, [FILTERS, WEIGHTS])
    outputs = [cost, network(mode), *gradients, *reduced]
    f = synk.function([X, Y], outputs, mode=PY, strict=True)
    assert f.output_modes == ["avg", "gather", "avg", "avg", None, None]
    plain = pytensor.function([X, Y], outputs, mode=PY)
    for n in (1, 5):
        for got, right in zip(f(*images(n)), plain(*images(n)), strict=True):
            np.testing.assert_allclose(got, right, rtol=1e-10, atol=1e-12)


def test_patches_and_transposed_convolutions_are_understood(two_ranks):
    patches = nn.images2neibs(X, (3, 3), mode="valid")
    wider = nn.conv2d_transpose(
        nn.conv2d(X, FILTERS), FILTERS, output_shape=(None, 2, 6, 6)
    )
    outputs = [
        patches,
        nn.neibs2images(patches, (3, 3), X.shape),
        nn.conv2d(X, FILTERS, 1, subsample=(2, 2), filter_dilation=(2, 2)),
        pytensor.grad((patches**2).sum(), X),
        wider,
        pytensor.grad(wider.sum(), FILTERS),
    ]
    f = synk.function([X], outputs, mode=PY, strict=True)
    assert f.output_modes == ["gather"] * 5 + ["sum"]
    plain = pytensor.function([X], outputs, mode=PY)
    x, _ = images(5)
    for got, right in zip(f(x), plain(x), strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "output",
    [
        pytest.param(nn.conv2d(X.dimshuffle(1, 0, 2, 3), FILTERS), id="channels"),
        pytest.param(nn.conv2d(pt.ones((1, 2, 6, 6)), X), id="filters"),
        pytest.param(nn.pool_2d(X.dimshuffle(1, 2, 3, 0), (2, 2), True), id="pixels"),
        pytest.param(
            nn.batch_normalization_train(X, np.ones((1, 2, 6, 6)), 0 * X[:1])[0],
            id="statistics",
        ),
    ],
)
def test_what_couples_images_is_computed_from_all_and_refused_of_a_rank(
    output, two_ranks
):
    with pytest.raises(synk.SplitError):
        synk.function([X], output, strict=True, local=True)
    with pytest.warns(synk.SplitWarning, match="needs all rows at once"):
        f = synk.function([X], output, mode=PY)
    x, _ = images(2)  # as many as the filters have channels
    right = pytensor.function([X], output, mode=PY)(x)
    np.testing.assert_allclose(f(x), right, rtol=1e-10, atol=1e-12)


def test_pixels_of_layers_have_nothing_to_do_with_the_number_of_rows():
    """So what takes their number needs no value of the layer, and no reduction."""
    hidden = nn.conv2d(pt.tanh(nn.conv2d(X, FILTERS)).sum(axis=1, keepdims=True), WIDE)
    pooled = nn.pool_2d(hidden, (2, 2), ignore_border=True)
    means = [var.sum(axis=(2, 3)) / var.shape[2] for var in (hidden, pooled)]
    f = synk.function([X], means, bcast_inputs=[WIDE], mode=PY, strict=True)
    assert f.output_modes == ["gather", "gather"]
    assert [stage["reduces"] for stage in f.explain().to_dict()["stages"]] == [[]]
