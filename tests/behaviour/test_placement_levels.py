"""How often ranks meet: statistics that are needed whole together meet once."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child
from meetings import levels
from reference import PY
from world_sizes import one_and_three_ranks

import synk

X = pt.matrix("x")


def rows_of(n: int, mean: float = 0) -> np.ndarray:
    return np.random.default_rng(n).normal(mean, 2, size=(n, 3))


def normalised(h, scale, shift):
    mean, variance = h.mean(axis=0), h.var(axis=0)
    return (h - mean) / pt.sqrt(variance + 1e-4) * scale + shift


class Network:
    """Layers with batch normalisation, and a step by plain gradients."""

    def __init__(self, layers: int) -> None:
        rng = np.random.default_rng(0)
        h, params = X, []
        for _ in range(layers):
            new = [rng.normal(size=(3, 3)), np.ones(3), np.zeros(3)]
            weights, scale, shift = map(pytensor.shared, new)
            h = pt.tanh(normalised(h @ weights, scale, shift))
            params += [weights, scale, shift]
        self.loss = pt.sqr(h - X).mean()
        gradients = pytensor.grad(self.loss, params)
        self.updates = synk.updates.sgd(gradients, params, 0.1)


@pytest.mark.parametrize("layers", [1, 3])
@one_and_three_ranks
def test_a_layer_meets_once_forward_and_once_back(ranks, layers):
    network = Network(layers)
    step = synk.function([X], network.loss, updates=network.updates, mode=PY)
    assert len(levels(step)) == 2 * layers + 1
    for rows in (rows_of(7), rows_of(2), rows_of(8, mean=1e4)):
        step(rows, check="serial")
    step(rows_of(8), num_slices=2)


@pytest.mark.parametrize("mean", [0, 1e6])
def test_a_variance_meets_once_and_loses_no_digits(mean, two_ranks):
    x = pt.tensor3("x")
    outputs = [x.var(axis=0), x.std(axis=(0, 2)), x.var(), x.var(axis=0, ddof=1)]
    f = synk.function([x], [out * 1 for out in outputs], mode=PY)
    values = np.random.default_rng(0).normal(mean, 1, size=(9, 4, 2))
    right = [values.var(0), values.std((0, 2)), values.var(), values.var(0, ddof=1)]
    for got, expected in zip(f(values), right, strict=True):
        np.testing.assert_allclose(got, expected, 1e-10)
    assert len(levels(f)) == 1
    centred = synk.function([x], (x - x.mean(axis=0)) / x.std(axis=0), mode=PY)
    assert len(levels(centred)) == 1
    expected = (values - values.mean(0)) / values.std(0)
    np.testing.assert_allclose(centred(values), expected, 1e-8, 1e-9)


def test_squares_about_anything_that_is_whole(two_ranks):
    """Not only about the mean: here about the median of the means of columns."""
    middle = pt.sort(X.mean(axis=0))[1]
    cases = [pt.sqr(X - middle).sum(axis=0), ((middle - X) ** 2).mean(axis=0)]
    f = synk.function([X], cases, mode=PY)
    assert len(levels(f)) == 1
    rows = rows_of(7)
    right = (rows - np.median(rows.mean(axis=0))) ** 2
    total, mean = f(rows)
    np.testing.assert_allclose(total, right.sum(axis=0), 1e-12)
    np.testing.assert_allclose(mean, right.mean(axis=0), 1e-12)


def test_what_is_linear_in_a_whole_value_does_not_wait_for_it(two_ranks):
    size = pt.sqrt(pt.sqr(X).sum(axis=0))
    sums = [
        (X / size).sum(axis=0),
        (X * size - pt.exp(X) * 2).sum(axis=0),
        (-(X / size) + X**2).mean(axis=0),
        (X * size * pt.tanh(X)).sum(),
    ]
    # Squared, so that the sums are needed whole.
    f = synk.function([X], [total**2 for total in sums], mode=PY)
    rows = rows_of(7)
    s = np.sqrt((rows**2).sum(axis=0))
    right = [
        (rows / s).sum(axis=0),
        (rows * s - np.exp(rows) * 2).sum(axis=0),
        (rows**2 - rows / s).mean(axis=0),
        (rows * s * np.tanh(rows)).sum(),
    ]
    for got, expected in zip(f(rows), right, strict=True):
        np.testing.assert_allclose(got, expected**2, 1e-11)
    first = synk.function([X], [total**2 for total in sums[:3]], mode=PY)
    assert len(levels(first)) == 1


@pytest.mark.slow
@in_a_child
def test_in_jax_mode():
    network = Network(2)
    step = synk.function([X], network.loss, updates=network.updates, mode="JAX")
    with synk.session(2):
        for rows in (rows_of(8), rows_of(1)):
            step(rows, check="serial")
