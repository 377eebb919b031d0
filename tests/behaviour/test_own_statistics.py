"""Statistics of a rank's own rows, where these are meant, against ranks by hand."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from meetings import levels
from reference import PY, cut
from world_sizes import one_and_three_ranks

import synk

X = pt.matrix("x")
GAMMA = pytensor.shared(np.ones(3), "gamma")
SHIFT = pytensor.shared(np.zeros(3), "shift")
MEAN = pytensor.shared(np.zeros(3), "running_mean")
SCALE = pytensor.shared(np.zeros(3), "running_scale")
START = {GAMMA: np.ones(3), SHIFT: np.zeros(3), MEAN: np.zeros(3), SCALE: np.zeros(3)}
RATE = 0.1


def keep(x):
    return x


def normalised(mark=keep):
    """Return normalised rows, and by what."""
    mean = mark(X.mean(axis=0))
    scale = 1 / pt.sqrt(mark(pt.sqr(X - mean).mean(axis=0)) + 1e-4)
    return (X - mean) * scale * GAMMA + SHIFT, mean, scale


def step(mark=keep):
    """Return a cost of normalised rows, and updates that train by plain gradients."""
    rows, mean, scale = normalised(mark)
    cost = pt.sqr(rows - X**2).mean()
    params = [GAMMA, SHIFT]
    gradients = pytensor.grad(cost, params)
    updates = [(p, p - RATE * g) for p, g in zip(params, gradients, strict=True)]
    updates += [(MEAN, 0.5 * MEAN + mean), (SCALE, 0.5 * SCALE + scale)]
    return cost, updates


def rows_of(n: int) -> np.ndarray:
    return np.random.default_rng(n).normal(size=(n, 3)) + np.arange(n)[:, None]


def by_hand(rows: np.ndarray, ranks: int, steps: int) -> tuple[list, list]:
    """Return costs and parameters where each rank takes its rows for all there are."""
    cost, updates = step()
    plain = pytensor.function([X], [cost, *(new for _, new in updates)], mode=PY)
    for var, value in START.items():
        var.set_value(value)
    costs = []
    parts = [part for part in cut(rows, ranks) if len(part)]
    for _ in range(steps):
        made = [plain(part) for part in parts]
        weights = [len(part) / len(rows) for part in parts]
        means = [
            sum(w * value for w, value in zip(weights, values, strict=True))
            for values in zip(*made, strict=True)
        ]
        costs.append(means[0])
        for (var, _), value in zip(updates, means[1:], strict=True):
            var.set_value(value)
    return costs, [var.get_value() for var in START]


def trained(function, rows, steps):
    for var, value in START.items():
        synk.broadcast(var, value)
    costs = [function(rows) for _ in range(steps)]
    values = [var.get_value() for var in START]
    for rank in range(1, synk.size()):
        for var, value in zip(START, values, strict=True):
            np.testing.assert_array_equal(synk.get_value(rank, var), value)
    return costs, values


def marked():
    cost, updates = step(synk.ops.local)
    return synk.function([X], cost, updates=updates, mode=PY)


def of_the_function():
    cost, updates = step()
    return synk.function([X], cost, updates=updates, mode=PY, statistics="local")


@pytest.mark.parametrize("make", [marked, of_the_function])
@pytest.mark.parametrize("n", [7, 2])
@one_and_three_ranks
def test_ranks_normalise_by_their_own_rows_and_meet_once_in_a_step(ranks, n, make):
    rows = rows_of(n)
    function = make()
    assert len(levels(function)) == 1
    right = by_hand(rows, ranks, 3)
    for got, expected in zip(trained(function, rows, 3), right, strict=True):
        np.testing.assert_allclose(got, expected, 1e-10, 1e-12)


def test_exact_ones_are_of_all_rows_and_meet_more_often(two_ranks):
    cost, updates = step()
    function = synk.function([X], cost, updates=updates, mode=PY)
    assert len(levels(function)) > 1
    got, right = trained(function, rows_of(7), 2), by_hand(rows_of(7), 1, 2)
    np.testing.assert_allclose(got[0], right[0], 1e-10)


def test_only_what_is_marked_is_the_ranks_own(two_ranks):
    mean = X.mean(axis=0)
    outputs = [X - mean, X - synk.ops.local(mean), mean, synk.ops.local(mean) ** 2]
    rows = rows_of(5)
    function = synk.function([X], outputs, mode=PY)
    assert function.output_modes == ["gather", "gather", "avg", "avg"]
    of_all, own, mean, squares = function(rows)
    parts = cut(rows, 2)
    np.testing.assert_allclose(of_all, rows - rows.mean(axis=0))
    np.testing.assert_allclose(own, np.vstack([part - part.mean(0) for part in parts]))
    np.testing.assert_allclose(mean, rows.mean(axis=0))
    own_squares = [part.mean(0) ** 2 * len(part) / 5 for part in parts]
    np.testing.assert_allclose(squares, sum(own_squares))


def test_what_does_not_meet_rows_again_is_of_all_rows(two_ranks):
    """Also of a statistic that does, elsewhere."""
    rows = rows_of(5)
    squares = pt.sqr(X).mean(axis=0)
    total = pt.log(pt.exp(X).sum()) + GAMMA.sum()
    outputs = [pt.log(squares), total, X / pt.sqrt(squares)]
    function = synk.function([X], outputs, mode=PY, statistics="local")
    synk.broadcast(GAMMA, np.ones(3))
    found, likelihood, scaled = function(rows)
    np.testing.assert_allclose(found, np.log((rows**2).mean(axis=0)))
    np.testing.assert_allclose(likelihood, np.log(np.exp(rows).sum()) + 3)
    np.testing.assert_allclose(
        scaled, np.vstack([p / np.sqrt((p**2).mean(axis=0)) for p in cut(rows, 2)])
    )


def test_every_slice_has_its_own(two_ranks):
    function = synk.function([X], X - X.mean(axis=0), mode=PY, statistics="local")
    rows = rows_of(8)
    np.testing.assert_allclose(
        function(rows, num_slices=2),
        np.vstack([part - part.mean(0) for part in cut(rows, 4)]),
    )


def test_ops_that_are_made_of_others_as_well(two_ranks):
    """A softmax along the rows is a maximum and a sum that meet rows."""
    function = synk.function([X], pt.special.softmax(X, 0), mode=PY, statistics="local")
    rows = rows_of(6)
    odds = np.vstack([np.exp(p) / np.exp(p).sum(0) for p in cut(rows, 2)])
    # Sums of a rank's own rows are to those of all what their numbers are.
    np.testing.assert_allclose(function(rows), odds / 2)


def test_unbiased_variances_count_the_ranks_own_rows(two_ranks):
    function = synk.function(
        [X], X / X.var(axis=0, ddof=1), mode=PY, statistics="local"
    )
    rows = rows_of(6)
    np.testing.assert_allclose(
        function(rows), np.vstack([p / p.var(0, ddof=1) for p in cut(rows, 2)])
    )


def test_plain_pytensor_sees_nothing_of_it():
    rows, mean, _ = normalised(synk.ops.local)
    graph = [rows, mean, pytensor.grad(pt.sqr(rows).sum(), X)]
    plain, m, _ = normalised()
    expected = [plain, m, pytensor.grad(pt.sqr(plain).sum(), X)]
    GAMMA.set_value(np.ones(3))
    compiled = pytensor.function([X], graph, mode="FAST_COMPILE")
    assert "Local" not in str(compiled.maker.fgraph.toposort())
    value = rows_of(5)
    right = pytensor.function([X], expected, mode=PY)(value)
    for got, other in zip(compiled(value), right, strict=True):
        np.testing.assert_allclose(got, other, 1e-10, 1e-10)


def test_there_are_two_kinds_of_statistics():
    with pytest.raises(ValueError, match=r"'exact', 'local'.*got 'mine'"):
        synk.function([X], X.sum(), statistics="mine")


@pytest.mark.filterwarnings("ignore::synk.SplitWarning")  # all ranks sort all rows
def test_what_is_picked_by_a_number_of_rows_is_of_all_rows(two_ranks):
    f = synk.function([X], pt.median(X), mode=PY, statistics="local")
    rows = rows_of(7)
    np.testing.assert_allclose(f(rows), np.median(rows))
