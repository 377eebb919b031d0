"""Statistics of all rows, of what a mask selects, and of a rank's own rows."""

from __future__ import annotations

import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from on_ranks import levels, one_and_three_ranks
from reference import PY, cut

import synk

X, Y = pt.matrix("x"), pt.vector("y")
GAMMA = pytensor.shared(np.ones(3), "gamma")
SHIFT = pytensor.shared(np.zeros(3), "shift")
MEAN = pytensor.shared(np.zeros(3), "running_mean")
SCALE = pytensor.shared(np.zeros(3), "running_scale")
START = {GAMMA: np.ones(3), SHIFT: np.zeros(3), MEAN: np.zeros(3), SCALE: np.zeros(3)}
RATE = 0.1


def rows_of(n: int, mean: float = 0) -> np.ndarray:
    return np.random.default_rng(n).normal(mean, 2, size=(n, 3))


def assert_close(got, expected, rtol=1e-10, atol=1e-12):
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol, atol)


# -- how often ranks meet for those of all rows ----------------------------------------


class Network:
    """Layers with batch normalisation, and a step by plain gradients."""

    def __init__(self, layers: int) -> None:
        rng = np.random.default_rng(0)
        h, params = X, []
        for _ in range(layers):
            new = [rng.normal(size=(3, 3)), np.ones(3), np.zeros(3)]
            weights, scale, shift = map(pytensor.shared, new)
            h = h @ weights
            h = (h - h.mean(axis=0)) / pt.sqrt(h.var(axis=0) + 1e-4) * scale + shift
            h = pt.tanh(h)
            params += [weights, scale, shift]
        self.loss = pt.sqr(h - X).mean()
        gradients = pytensor.grad(self.loss, params)
        self.updates = synk.updates.sgd(gradients, params, 0.1)


@one_and_three_ranks
def test_a_layer_meets_once_forward_and_once_back(ranks):
    network = Network(2)
    step = synk.function([X], network.loss, updates=network.updates, mode=PY)
    assert len(levels(step)) == 2 * 2 + 1
    for rows in (rows_of(7), rows_of(2), rows_of(8, mean=1e4)):
        step(rows, check="serial")
    step(rows_of(8), num_slices=2)


def test_a_variance_meets_once_and_loses_no_digits(two_ranks):
    x = pt.tensor3("x")
    outputs = [x.var(axis=0), x.std(axis=(0, 2)), x.var(), x.var(axis=0, ddof=1)]
    f = synk.function([x], [out * 1 for out in outputs], mode=PY)
    centred = synk.function([x], (x - x.mean(axis=0)) / x.std(axis=0), mode=PY)
    assert len(levels(f)) == len(levels(centred)) == 1
    for mean in (0, 1e6):
        v = np.random.default_rng(0).normal(mean, 1, size=(9, 4, 2))
        right = [v.var(0), v.std((0, 2)), v.var(), v.var(0, ddof=1)]
        assert_close(f(v), right)
        expected = (v - v.mean(0)) / v.std(0)
        np.testing.assert_allclose(centred(v), expected, 1e-8, 1e-9)


def test_squares_about_anything_that_is_whole(two_ranks):
    """Not only about the mean: here about the median of the means of columns."""
    middle = pt.sort(X.mean(axis=0))[1]
    cases = [pt.sqr(X - middle).sum(axis=0), ((middle - X) ** 2).mean(axis=0)]
    f = synk.function([X], cases, mode=PY)
    assert len(levels(f)) == 1
    rows = rows_of(7)
    right = (rows - np.median(rows.mean(axis=0))) ** 2
    assert_close(f(rows), [right.sum(axis=0), right.mean(axis=0)])


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
        (rows / s).sum(axis=0) ** 2,
        (rows * s - np.exp(rows) * 2).sum(axis=0) ** 2,
        (rows**2 - rows / s).mean(axis=0) ** 2,
        (rows * s * np.tanh(rows)).sum() ** 2,
    ]
    assert_close(f(rows), right)
    first = synk.function([X], [total**2 for total in sums[:3]], mode=PY)
    assert len(levels(first)) == 1


# -- rows that a mask selects, of a number of their own on each rank -------------------

W = pytensor.shared(np.arange(1.0, 4.0), "w")
MASK = Y > 0
CHOSEN = X[MASK]
COST = pt.sqr(CHOSEN @ W - Y[MASK]).mean()

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


def masked(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of which each third is selected, the first rank's or not."""
    rows = np.random.default_rng(n).normal(size=(n, 3))
    y = -np.ones(n)
    y[[0, *range(3, n, 3)]] = np.arange(1.0, 1 + len(range(0, n, 3)))
    rows[:, 0] = np.abs(rows[:, 0]) * np.roll(y, 1)  # as many are positive
    return rows, y


@one_and_three_ranks
def test_what_a_mask_selects_is_added_or_computed_from_all_rows(ranks):
    W.set_value(np.arange(1.0, 4.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error", synk.SplitWarning)
        added = synk.function([X, Y], list(ADDED.values()), mode=PY)
    assert not any("gather" in ops for ops in levels(added))
    with pytest.warns(synk.SplitWarning, match="need all rows at once"):
        gathered = synk.function([X, Y], list(GATHERED.values()), mode=PY)
    calls = (added, 7, 1), (added, 8, 2), (added, 1, 1), (gathered, 7, 1)
    for f, n, slices in (*calls, (gathered, 12, 1)):
        graphs = ADDED if f is added else GATHERED
        got = f(*masked(n), num_slices=slices)
        right = f.as_theano(*masked(n))
        for name, one, other in zip(graphs, got, right, strict=True):
            np.testing.assert_allclose(one, other, 1e-10, 1e-12, True, name)


def test_ranks_train_by_what_a_mask_selects(two_ranks):
    updates = {W: W - 0.1 * pytensor.grad(COST, W)}
    f = synk.function([X, Y], COST, updates=updates, mode=PY)
    synk.broadcast(W, np.arange(1.0, 4.0))
    for n in (7, 12, 1):
        f(*masked(n), check="serial")
    np.testing.assert_array_equal(*synk.gather(W))


# -- a rank's own, where these are meant, against ranks by hand ------------------------


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


def unlike(n: int) -> np.ndarray:
    """Return rows of which those of one rank are larger than those of the other."""
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


@one_and_three_ranks
def test_ranks_normalise_by_their_own_rows_and_meet_once_in_a_step(ranks):
    for function in (marked(), of_the_function()):
        assert len(levels(function)) == 1
        for n in (7, 2):
            rows = unlike(n)
            for got, right in zip(
                trained(function, rows, 3), by_hand(rows, ranks, 3), strict=True
            ):
                assert_close(got, right)


def test_only_what_is_marked_is_the_ranks_own(two_ranks):
    mean = X.mean(axis=0)
    outputs = [X - mean, X - synk.ops.local(mean), mean, synk.ops.local(mean) ** 2]
    rows = unlike(5)
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
    rows = unlike(5)
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
    *_, scaled = function(unlike(8), num_slices=2)  # every slice has its own
    parts = cut(unlike(8), 4)
    own = np.vstack([p / np.sqrt((p**2).mean(axis=0)) for p in parts])
    np.testing.assert_allclose(scaled, own)


def test_ops_that_are_made_of_others_and_what_counts_rows(two_ranks):
    graphs = {
        "softmax along the rows": pt.special.softmax(X, 0),
        "unbiased variance": X / X.var(axis=0, ddof=1),
        "median": pt.median(X),  # picked by a number of rows: of all
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", synk.SplitWarning)  # all ranks sort all rows
        f = synk.function([X], list(graphs.values()), mode=PY, statistics="local")
    rows = unlike(6)
    right = [
        # A maximum and a sum meet rows; sums of a rank's own rows are to those of all
        # what their numbers are.
        np.vstack([np.exp(p) / np.exp(p).sum(0) for p in cut(rows, 2)]) / 2,
        np.vstack([p / p.var(0, ddof=1) for p in cut(rows, 2)]),
        np.median(rows),
    ]
    assert_close(f(rows), right)


def test_plain_pytensor_sees_nothing_of_it():
    rows, mean, _ = normalised(synk.ops.local)
    graph = [rows, mean, pytensor.grad(pt.sqr(rows).sum(), X)]
    plain, m, _ = normalised()
    expected = [plain, m, pytensor.grad(pt.sqr(plain).sum(), X)]
    GAMMA.set_value(np.ones(3))
    compiled = pytensor.function([X], graph, mode="FAST_COMPILE")
    assert "Local" not in str(compiled.maker.fgraph.toposort())
    value = unlike(5)
    right = pytensor.function([X], expected, mode=PY)(value)
    for got, other in zip(compiled(value), right, strict=True):
        np.testing.assert_allclose(got, other, 1e-10, 1e-10)


def test_there_are_two_kinds_of_statistics():
    with pytest.raises(ValueError, match=r"'exact', 'local'.*got 'mine'"):
        synk.function([X], X.sum(), statistics="mine")
