"""Rows that a mask selects: of a number of their own on each rank."""

from __future__ import annotations

import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from reference import PY

import synk

X, Y = pt.matrix("x"), pt.vector("y")
W = pytensor.shared(np.arange(1.0, 4.0), "w")
MASK = Y > 0
CHOSEN = X[MASK]
ERRORS = CHOSEN @ W - Y[MASK]
COST = pt.sqr(ERRORS).mean()

ADDED = {
    "mean": CHOSEN.mean(axis=0),
    "sum": CHOSEN.sum(),
    "variance": CHOSEN.var(axis=0),
    "deviation": CHOSEN.std(),
    "number": CHOSEN.shape[0] + 1,
    "cost": COST,
    "gradient": pytensor.grad(COST, W),
    "gradient of rows": pytensor.grad(pt.exp(CHOSEN / 10).mean(), X),
    "second moments": CHOSEN.T @ CHOSEN / MASK.sum(),
    "weighted": (CHOSEN * Y[MASK][:, None]).sum(axis=0) / Y[MASK].sum(),
    "row-wise": pt.special.softmax(CHOSEN, axis=1).mean(axis=0),
    "again among all": pt.set_subtensor(CHOSEN, 0.0).sum(axis=1),
    "centred": pt.sqr(X - CHOSEN.mean(axis=0)).sum(),
    "product": pt.prod(CHOSEN),
}

GATHERED = {
    "largest": CHOSEN.max(axis=0),
    "rows": CHOSEN * 2,
    "sorted": pt.sort(CHOSEN, axis=0),
    "running": pt.cumsum(Y[MASK]),
    "other masks": (CHOSEN[:, 0] * Y[X[:, 0] > 0]).sum(),
    "of two": pt.concatenate([CHOSEN, X]).mean(axis=0),
    "put in": pt.inc_subtensor(CHOSEN, Y[X[:, 0] > 0][:, None]).sum(axis=0),
    "first": CHOSEN[0],
    "every other": CHOSEN[::2].sum(),
    "flat": CHOSEN.reshape((-1,)).sum(),
}


def values(n: int) -> tuple[np.ndarray, np.ndarray]:
    rows = np.random.default_rng(n).normal(size=(n, 3))
    y = -np.ones(n)
    y[[0, *range(3, n, 3)]] = np.arange(1.0, 1 + len(range(0, n, 3)))
    rows[:, 0] = np.abs(rows[:, 0]) * np.roll(y, 1)  # as many are positive
    return rows, y


@pytest.fixture(params=[2, 3, 5], ids=lambda n: f"{n}ranks")
def some_ranks(request):
    with synk.session(request.param):
        yield request.param


def compare(graphs: dict, f, n: int, **options) -> None:
    plain = pytensor.function([X, Y], list(graphs.values()), mode=PY)
    right = plain(*values(n))
    for name, got, expected in zip(
        graphs, f(*values(n), **options), right, strict=True
    ):
        np.testing.assert_allclose(got, expected, 1e-10, 1e-12, err_msg=name)


def test_sums_and_means_of_them_are_added(some_ranks):
    with warnings.catch_warnings():
        warnings.simplefilter("error", synk.SplitWarning)
        f = synk.function([X, Y], list(ADDED.values()), mode=PY)
    ops = {op for stage in f.explain().to_dict()["stages"] for op in ops_of(stage)}
    assert "gather" not in ops
    for n in (7, 12, 1):
        compare(ADDED, f, n)
    compare(ADDED, f, 8, num_slices=2)


def ops_of(stage: dict) -> list[str]:
    return [value["op"] for value in stage["reduces"]]


def test_what_else_is_made_of_them_is_computed_from_all_rows(some_ranks):
    with pytest.warns(synk.SplitWarning, match="need all rows at once"):
        f = synk.function([X, Y], list(GATHERED.values()), mode=PY)
    compare(GATHERED, f, 7)
    compare(GATHERED, f, 12)


def test_ranks_train_by_what_a_mask_selects(some_ranks):
    f = synk.function(
        [X, Y], COST, updates={W: W - 0.1 * pytensor.grad(COST, W)}, mode=PY
    )
    synk.broadcast(W, np.arange(1.0, 4.0))
    for n in (7, 12, 1):
        f(*values(n), check="serial")
    expected = synk.get_value(0, W)
    for rank in range(1, some_ranks):
        np.testing.assert_array_equal(synk.get_value(rank, W), expected)
