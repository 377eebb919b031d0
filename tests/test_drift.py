"""Updates by a rank's own rows, of variables that the outputs take for equal.

There are none but in local functions: otherwise what is of all rows is stored.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk

MODE = "FAST_COMPILE"


def model():
    x, w = pt.matrix("x"), pytensor.shared(np.ones(3), "w")
    return x, w, ((x @ w - 1) ** 2).mean()


def step(gradient, w):
    return [(w, w - 0.1 * gradient)]


def test_a_gradient_by_plain_pytensor_is_reduced():
    x, w, loss = model()
    rows = np.arange(15.0).reshape(5, 3) / 15
    updates = step(pytensor.grad(loss, w), w)
    train = synk.function([x], loss, updates=updates, mode=MODE, strict=True)
    expected = pytensor.function([x], updates[0][1], mode=MODE)(rows)
    with synk.session(2):
        train(rows)
        for value in synk.gather(w):
            np.testing.assert_allclose(value, expected, rtol=1e-12)


def test_a_gradient_that_nothing_reduces_is_told_and_ranks_do_differ():
    x, w, loss = model()
    updates = step(pytensor.grad(loss, w), w)
    with pytest.warns(synk.SplitWarning, match=r"values of w will differ.*synk\.grad"):
        train = synk.function([x], loss, updates=updates, mode=MODE, local=True)
    with synk.session(2):
        train(np.arange(12.0).reshape(4, 3) / 12)
        first, second = synk.gather(w)
    assert not np.allclose(first, second)


def test_it_is_an_error_where_all_is_to_be_shown():
    x, w, loss = model()
    updates = step(pytensor.grad(loss, w), w)
    with pytest.raises(synk.SplitError, match="values of w will differ"):
        synk.function([x], loss, updates=updates, strict=True, local=True)


def gradient_by_synk():
    x, w, loss = model()
    return {"outputs": loss, "updates": step(synk.grad(loss, w), w), "inputs": [x]}


def named_op():
    x, w, loss = model()
    updates = step(pytensor.grad(loss, w), w)
    return {"outputs": (loss, "avg"), "updates": updates, "inputs": [x]}


def gradient_kept_in_a_variable():
    x, w, loss = model()
    kept = pytensor.shared(np.zeros(3))
    updates = [(kept, pytensor.grad(loss, w))]
    return {"outputs": loss, "updates": updates, "inputs": [x]}


def sum_of_each_rank():
    x, _, loss = model()
    total = pytensor.shared(0.0)
    updates = [(total, total + x.sum())]
    return {"outputs": loss, "updates": updates, "inputs": [x]}


def decay_without_rows():
    x, w, loss = model()
    return {"outputs": loss, "updates": [(w, 0.9 * w)], "inputs": [x]}


def random_stream():
    x, w, loss = model()
    rng = pytensor.shared(np.random.default_rng(0))
    state, noise = pt.random.normal(size=x.shape, rng=rng).owner.outputs
    loss = loss + (noise @ w).mean()
    return {"outputs": loss, "updates": [(rng, state)], "inputs": [x]}


@pytest.mark.parametrize(
    "arguments",
    [
        gradient_by_synk,
        named_op,
        gradient_kept_in_a_variable,
        sum_of_each_rank,
        decay_without_rows,
        random_stream,
    ],
    ids=lambda made: made.__name__,
)
def test_nothing_is_said_of_other_updates(arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("error", synk.SplitWarning)
        synk.function(**arguments(), local=True)
