"""Statistics of all rows, of what a mask selects, and of a rank's own rows."""

import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from on_ranks import assert_on_ranks, levels, one_and_three_ranks
from reference import PY, cut

import synk

X, Y = pt.matrix("x"), pt.vector("y")
GAMMA = pytensor.shared(np.ones(3), "gamma")
SHIFT = pytensor.shared(np.zeros(3), "shift")
MEAN = pytensor.shared(np.zeros(3), "running_mean")
SCALE = pytensor.shared(np.zeros(3), "running_scale")
START = {GAMMA: np.ones(3), SHIFT: np.zeros(3), MEAN: np.zeros(3), SCALE: np.zeros(3)}


def rows_of(n: int, mean: float = 0) -> np.ndarray:
    return np.random.default_rng(n).normal(mean, 2, size=(n, 3))


def assert_close(got, expected, rtol=1e-10, atol=1e-12):
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol, atol)


# -- how often ranks meet for those of all rows ----------------------------------------


@one_and_three_ranks
def test_a_layer_meets_once_forward_and_once_back(ranks):
    rng, h, params = np.random.default_rng(0), X, []
    for _ in range(2):
        new = [rng.normal(size=(3, 3)), np.ones(3), np.zeros(3)]
        weights, scale, shift = new = list(map(pytensor.shared, new))
        params += new
        h = h @ weights
        h = (h - h.mean(axis=0)) / pt.sqrt(h.var(axis=0) + 1e-4) * scale + shift
        h = pt.tanh(h)
    loss = pt.sqr(h - X).mean()
    updates = synk.updates.sgd(pytensor.grad(loss, params), params, 0.1)
    train = synk.function([X], loss, updates=updates, mode=PY)
    assert len(levels(train)) == 2 * 2 + 1
    for rows in (rows_of(7), rows_of(2), rows_of(8, mean=1e4)):
        train(rows, check="serial")
    train(rows_of(8), num_slices=2)


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


def test_what_is_linear_in_a_whole_value_does_not_wait_for_it(two_ranks):
    middle, size = pt.sort(X.mean(axis=0))[1], pt.sqrt(pt.sqr(X).sum(axis=0))
    squares = [pt.sqr(X - middle).sum(axis=0), ((middle - X) ** 2).mean(axis=0)]
    # Squared, so that the sums are needed whole.
    sums = [
        (X / size).sum(axis=0) ** 2,
        (X * size - pt.exp(X) * 2).sum(axis=0) ** 2,
        (-(X / size) + X**2).mean(axis=0) ** 2,
        (X * size * pt.tanh(X)).sum() ** 2,
    ]
    for graphs, meetings in ((squares, 1), (sums[:3], 1), (sums, None)):
        f = synk.function([X], graphs, mode=PY)
        assert meetings is None or len(levels(f)) == meetings
        assert_close(f(rows_of(7)), f.as_theano(rows_of(7)))


# -- rows that a mask selects, of a number of their own on each rank -------------------

W = pytensor.shared(np.arange(1.0, 4.0), "w")
MASK = Y > 0
CHOSEN = X[MASK]
COST = pt.sqr(CHOSEN @ W - Y[MASK]).mean()

ADDED = {
    "mean": CHOSEN.mean(axis=0),
    "variance": CHOSEN.var(axis=0),
    "number": CHOSEN.shape[0] + 1,
    "cost": COST,
    "gradient": pytensor.grad(COST, W),
    "gradient of rows": pytensor.grad(pt.exp(CHOSEN / 10).mean(), X),
    "weighted": (CHOSEN * Y[MASK][:, None]).sum(axis=0) / Y[MASK].sum(),
    "again among all": pt.set_subtensor(CHOSEN, 0.0).sum(axis=1),
    "centred": pt.sqr(X - CHOSEN.mean(axis=0)).sum(),
    "product": pt.prod(CHOSEN),
}

GATHERED = {
    "largest": CHOSEN.max(axis=0),
    "rows": CHOSEN * 2,
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
@pytest.mark.filterwarnings("error::synk.SplitWarning")
def test_what_a_mask_selects_is_added_or_computed_from_all_rows(ranks):
    """As outputs, and as a gradient by which all ranks train."""
    updates = {W: W - 0.1 * pytensor.grad(COST, W)}
    added = synk.function([X, Y], list(ADDED.values()), updates=updates, mode=PY)
    assert not any("gather" in ops for ops in levels(added))
    with pytest.warns(synk.SplitWarning, match="need all rows at once"):
        gathered = synk.function([X, Y], list(GATHERED.values()), mode=PY)
    calls = (added, 7, 1), (added, 8, 2), (added, 1, 1), (gathered, 7, 1)
    for f, n, slices in (*calls, (gathered, 12, 1)):
        graphs = ADDED if f is added else GATHERED
        W.set_value(np.arange(1.0, 4.0))
        right = f.as_theano(*masked(n))
        trained = W.get_value()
        W.set_value(np.arange(1.0, 4.0))
        got = f(*masked(n), num_slices=slices)
        for name, one, other in zip(graphs, got, right, strict=True):
            np.testing.assert_allclose(one, other, 1e-10, 1e-12, True, name)
        assert_on_ranks(W, trained, 1e3)
        assert len(np.unique(synk.gather(W), axis=0)) == 1


# -- a rank's own, where these are meant, against ranks by hand ------------------------


def normalised(mark):
    """Return normalised rows, and by what."""
    mean = mark(X.mean(axis=0))
    scale = 1 / pt.sqrt(mark(pt.sqr(X - mean).mean(axis=0)) + 1e-4)
    return (X - mean) * scale * GAMMA + SHIFT, mean, scale


def step(make, mark=lambda value: value, **options):
    """Return a function of the cost of normalised rows, which trains by gradients."""
    rows, mean, scale = normalised(mark)
    cost = pt.sqr(rows - X**2).mean()
    gradients = zip([GAMMA, SHIFT], pytensor.grad(cost, [GAMMA, SHIFT]), strict=True)
    updates = [(param, param - 0.1 * slope) for param, slope in gradients]
    updates += [(MEAN, 0.5 * MEAN + mean), (SCALE, 0.5 * SCALE + scale)]
    if make is pytensor.function:  # what one rank computes
        return make([X], [cost, *(new for _, new in updates)], mode=PY)
    return make([X], cost, updates=updates, mode=PY, **options)


def unlike(n: int) -> np.ndarray:
    """Return rows of which those of one rank are larger than those of the other."""
    return np.random.default_rng(n).normal(size=(n, 3)) + np.arange(n)[:, None]


def by_hand(rows: np.ndarray, ranks: int, steps: int) -> tuple[list, list]:
    """Return costs and parameters where each rank takes its rows for all there are."""
    plain, costs = step(pytensor.function), []
    for var, value in START.items():
        var.set_value(value)
    parts = [part for part in cut(rows, ranks) if len(part)]
    for _ in range(steps):
        made = zip(*map(plain, parts), strict=True)
        weights = list(map(len, parts))
        cost, *news = (np.average(of, axis=0, weights=weights) for of in made)
        costs.append(cost)
        for var, value in zip(START, news, strict=True):
            var.set_value(value)
    return costs, [var.get_value() for var in START]


@one_and_three_ranks
def test_ranks_normalise_by_their_own_rows_and_meet_once_in_a_step(ranks):
    marked = step(synk.function, synk.ops.local)
    for function in (marked, step(synk.function, statistics="local")):
        assert len(levels(function)) == 1
        for rows in (unlike(7), unlike(2)):
            right_costs, right = by_hand(rows, ranks, 3)
            for var, value in START.items():
                synk.broadcast(var, value)
            assert_close([function(rows) for _ in range(3)], right_costs)
            assert_close([var.get_value() for var in START], right)
            for values in map(synk.gather, START):
                np.testing.assert_array_equal(values, values[:1].repeat(ranks, axis=0))


def test_only_what_is_marked_is_the_ranks_own(two_ranks):
    mean = X.mean(axis=0)
    outputs = [X - mean, X - synk.ops.local(mean), mean, synk.ops.local(mean) ** 2]
    rows = unlike(5)
    function = synk.function([X], outputs, mode=PY)
    assert function.output_modes == ["gather", "gather", "avg", "avg"]
    parts = cut(rows, 2)
    own_squares = [part.mean(0) ** 2 * len(part) / 5 for part in parts]
    right = [
        rows - rows.mean(axis=0),
        np.vstack([part - part.mean(0) for part in parts]),
        rows.mean(axis=0),
        sum(own_squares),
    ]
    assert_close(function(rows), right)


def test_what_does_not_meet_rows_again_is_of_all_rows(two_ranks):
    rows = unlike(5)
    squares = pt.sqr(X).mean(axis=0)
    total = pt.log(pt.exp(X).sum()) + GAMMA.sum()
    outputs = [pt.log(squares), total, X / pt.sqrt(squares)]
    function = synk.function([X], outputs, mode=PY, statistics="local")
    synk.broadcast(GAMMA, np.ones(3))

    def scaled(parts):
        return np.vstack([p / np.sqrt((p**2).mean(axis=0)) for p in parts])

    of_all = np.log((rows**2).mean(axis=0)), np.log(np.exp(rows).sum()) + 3
    assert_close(function(rows), [*of_all, scaled(cut(rows, 2))])
    found = function(unlike(8), num_slices=2)[2]  # every slice has its own
    np.testing.assert_allclose(found, scaled(cut(unlike(8), 4)))


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
