"""Rows of two sliceable shared variables that a function pairs, as Synkhronos did."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from reference import PY

import synk


def made(rows=9):
    """Return images, labels and weights, as arrays."""
    rng = np.random.default_rng(rows)
    labels = rng.integers(0, 3, rows).astype("int32")
    return rng.normal(size=(rows, 4)), labels, rng.normal(size=(4, 3))


def step(x, y, w):
    """Return the loss, the errors and the gradient of a classifier."""
    p = pt.special.softmax(x @ w, axis=1)
    loss = -pt.log(p)[pt.arange(y.shape[0]), y].mean()
    return [loss, pt.neq(p.argmax(axis=1), y).mean(), pt.grad(loss, w)]


def numbers(images, labels, weights):
    """Return the same, by numpy."""
    odds = np.exp(images @ weights)
    p = odds / odds.sum(axis=1, keepdims=True)
    rows = np.arange(len(labels))
    slope = (p - np.eye(3)[labels]) / len(labels)
    loss = -np.log(p[rows, labels]).mean()
    return [loss, (p.argmax(axis=1) != labels).mean(), images.T @ slope]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_loss_by_the_labels_of_rows_that_lie_on_the_ranks(n):
    images, labels, weights = made()
    x, y = pytensor.shared(images[:1], "x"), pytensor.shared(labels[:1], "y")
    w = pytensor.shared(weights, "w")
    with synk.session(n):
        f = synk.function([], step(x, y, w), sliceable_shareds=[x, y], mode=PY)
        synk.scatter(x, images)
        synk.scatter(y, labels)
        for found, right in zip(f(), numbers(*made()), strict=True):
            np.testing.assert_allclose(found, right, rtol=1e-12)
        few = [2, 1, 3][:n]
        found = f(batch_s=[slice(0, many) for many in few])
        firsts = [part[0] for part in np.array_split(np.arange(9), n)]
        pairs = zip(firsts, few, strict=True)
        taken = np.concatenate([np.arange(a, a + many) for a, many in pairs])
        right = numbers(images[taken], labels[taken], weights)
        for value, expected in zip(found, right, strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-12)


def test_rows_beside_an_input_are_paired_too(two_ranks):
    images, labels, weights = made(8)
    x, w = pt.dmatrix("x"), pytensor.shared(weights, "w")
    y = pytensor.shared(labels[:1], "y")
    f = synk.function([x], step(x, y, w), sliceable_shareds=[y], mode=PY)
    synk.scatter(y, labels)
    for found, right in zip(f(images), numbers(*made(8)), strict=True):
        np.testing.assert_allclose(found, right, rtol=1e-12)
    with pytest.raises(ValueError, match=r"has 2 of x, 4 of y; scatter them alike"):
        f(images[:4])


def test_other_numbers_of_rows_are_an_error_of_the_call(two_ranks):
    images, labels, weights = made(8)
    x, y = pytensor.shared(images, "x"), pytensor.shared(labels, "y")
    w = pytensor.shared(weights, "w")
    f = synk.function([], step(x, y, w), sliceable_shareds=[x, y], mode=PY)
    synk.scatter(x, images)
    synk.scatter(y, labels[:6])
    with pytest.raises(ValueError, match="rank 0 has 4 of x, 3 of y; scatter"):
        f()
    found = f(batch_s=[slice(0, 3), slice(0, 3)])
    assert found[0] > 0
