"""The same bits on any number of ranks, of what blocks of rows are combined to."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from reference import PY, assert_same
from scipy.special import gammaln, logsumexp, softmax

import synk

ROWS, COLUMNS = 70_003, 4
RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(ROWS, COLUMNS)), RNG.normal(size=ROWS)
WEIGHTS = np.linspace(-0.3, 0.3, COLUMNS)
X, Y, W = pt.dmatrix("X"), pt.dvector("Y"), pt.dvector("W")

pytestmark = [
    pytest.mark.filterwarnings("ignore::synk.OversubscriptionWarning"),
    pytest.mark.usefixtures("rules"),
]


@pytest.fixture
def rules(monkeypatch):
    """Have plans chosen by the rules, as scripts have it."""
    monkeypatch.setenv("SYNK_ENGINE", "auto")


def on_any_ranks(compute: Callable[[], list]) -> list:
    """Return what a function gives on one rank and on three, which is the same."""
    first: list = []
    for ranks in 1, 3:
        with synk.session(ranks):
            found = [np.asarray(value) for value in compute()]
        first = first or found
        for i, (value, expected) in enumerate(zip(found, first, strict=True)):
            assert value.tobytes() == expected.tobytes(), f"value {i}, {ranks} ranks"
    return first


def bits(f: synk.Function) -> set[str]:
    """Return on what the bits of a function's outputs and updates depend."""
    told = f.explain().to_dict()
    return {each["bits"]["on"] for each in (*told["outputs"], *told["updates"])}


def test_a_likelihood_has_the_same_bits_however_it_is_called():
    eta, some = X @ W, RNG.integers(0, ROWS, 50_000)
    terms = pt.abs(Y) * eta - pt.exp(eta) - pt.gammaln(pt.abs(Y) + 1)
    f = synk.function([X, Y], [terms.sum(), pt.grad(terms.mean(), W)], [W])

    def compute() -> list:
        data = synk.data(A), synk.data(B)
        of_all = [f(A, B, WEIGHTS), f(*data, WEIGHTS), f(*data, WEIGHTS)]
        of_all += [f(*data, WEIGHTS, num_slices=7)]
        whole, mean = f.run([slice(0, ROWS), some], *data, WEIGHTS)
        of_all += [(whole[0], mean[0])]
        for each in of_all[1:]:  # arrays, kept terms, slices, runs
            for value, first in zip(each, of_all[0], strict=True):
                assert_same(value, first, 0)
        assert_same(f(*data, WEIGHTS, batch=some)[1], mean[1], 0)
        assert bits(f) == {"any ranks"}
        return [*of_all[0], whole[1], mean[1]]

    value, gradient, *_ = on_any_ranks(compute)
    eta, counts = A @ WEIGHTS, np.abs(B)
    terms = counts * eta - np.exp(eta) - gammaln(counts + 1)
    assert_same(value, terms.sum(), 1e4)
    assert_same(gradient, A.T @ (counts - np.exp(eta)) / ROWS, 1e5)


def test_what_needs_all_rows_on_the_way_has_them_too():
    eta = X @ W
    centred = (Y - Y.mean()) / Y.std()  # the spread of blocks' own means, too
    outputs = [pt.logsumexp(eta), Y.var(), pt.grad((centred * eta**2).mean(), W)]
    shares = pt.special.softmax(X * W, axis=1)  # of which a later stage takes rows
    outputs += [eta.max(), Y.shape[0], shares.var(axis=0)]
    f = synk.function([X, Y], outputs, bcast_inputs=[W])

    def compute() -> list:
        found = f(A, B, WEIGHTS)
        assert bits(f) == {"any ranks"}
        return found

    found = on_any_ranks(compute)
    assert_same(found[0], logsumexp(A @ WEIGHTS), 100)
    assert_same(found[1], B.var(), 100)
    assert found[4] == ROWS
    assert_same(found[5], softmax(A * WEIGHTS, axis=1).var(axis=0), 100)


def test_a_fit_in_float32_parts_from_itself_nowhere():
    x, w = pt.fmatrix("x"), pytensor.shared(np.zeros(COLUMNS, "f4"))
    speed = pytensor.shared(np.zeros(COLUMNS, "f4"))
    loss = pt.softplus(-pt.dot(x, w)).mean()
    new = 0.9 * speed - 0.1 * pt.grad(loss, w)
    updates = [(speed, pt.cast(new, "float32")), (w, pt.cast(w + new, "float32"))]
    total = pytensor.shared(np.zeros((), "f4"))
    updates += [(total, pt.cast(total + loss, "float32"))]  # an output is reduced twice
    per_row = pt.exp(pt.dot(x, w) * 1e-4)
    outputs = [loss, per_row.prod(), per_row]
    f = synk.function([x], outputs, updates=updates, mode="NUMBA")
    rows = A.astype("f4")

    def compute() -> list:
        for var in (w, speed, total):
            var.set_value(np.zeros_like(var.get_value()))
        made: list[Any] = []
        for k in range(3):
            made += f(rows[k:])
        f.run([slice(k, 60_000) for k in range(3)], rows)
        assert bits(f) == {"any ranks"}
        return [*made, *(var.get_value() for var in (w, speed, total))]

    on_any_ranks(compute)


def test_what_draws_for_rows_and_for_all_has_them_too():
    """A fit with dropped inputs, noise on the data and noise on the weights."""
    w, stream = map(pytensor.shared, (np.zeros(COLUMNS), np.random.default_rng(0)))
    draw = functools.partial(pt.random.normal, return_next_rng=True)
    kept = pt.random.bernoulli(0.8, size=X.shape, rng=stream, return_next_rng=True)
    after, noise = draw(0, 0.1, size=Y.shape, rng=kept[0])
    after, step = draw(0, 0.01, size=(COLUMNS,), rng=after)
    loss = (((X * kept[1] / 0.8) @ w - Y + noise) ** 2).mean()
    updates = [(w, w - 0.1 * pt.grad(loss, w) + step), (stream, after)]
    f = synk.function([X, Y], loss, updates=updates, mode="NUMBA")

    def compute() -> list:
        w.set_value(np.zeros(COLUMNS))
        stream.set_value(np.random.default_rng(0))
        losses = [f(A, B), f(A, B, num_slices=3), f(A[:9], B[:9])]
        losses += list(f.run([slice(0, 40_000), slice(5, ROWS)], A, B))
        assert bits(f) == {"any ranks"}
        return [*losses, w.get_value(), stream.get_value().normal()]

    on_any_ranks(compute)


def test_few_rows_are_one_block_that_rank_0_has():
    shared = pytensor.shared(np.zeros(COLUMNS))
    outputs, new = [(X @ W * Y).sum(), X.sum(axis=0)], shared + X.mean(axis=0)
    f = synk.function([X, Y], outputs, [W], {shared: new}, mode="NUMBA")
    # Of many rows averages meet in a tree, and maxima by themselves.
    scaled = (X - X.mean(axis=0)) / X.max()
    h = synk.function([X], (scaled**2).sum(axis=0), mode="NUMBA")

    def compute() -> list:
        shared.set_value(np.zeros(COLUMNS))
        found: list[Any] = []
        for rows in (9, 2, 1, 101):
            found += f(A[:rows], B[:rows], WEIGHTS)
        assert bits(f) == {"any ranks"}
        return [*found, shared.get_value(), h(A[:40]), h(A), h(A[:40])]

    on_any_ranks(compute)


def test_the_error_of_a_sum_is_that_of_pairs_and_float32_is_rounded_once():
    x, y = pt.fvector("x"), pt.dvector("y")
    f = synk.function([x, y], [x.sum(), x.mean(), y.sum()], mode="NUMBA")
    small = np.full(3_000_000, 0.1)
    with synk.session(2):
        found = f(small.astype("f4"), small)
    exact = small.astype("f4").sum(dtype="f8")
    assert found[0] == np.float32(exact)
    assert found[1] == np.float32(exact / small.size)
    assert abs(found[2] - 300_000) < 1e-7  # one after the other it is off by 3e-6


def test_what_is_asked_to_have_any_bits_has_them_or_is_an_error():
    rows, hidden = 500, 2_500
    start = [RNG.normal(size=(COLUMNS, hidden)), RNG.normal(size=hidden) / hidden]
    params = [pytensor.shared(value) for value in start]
    loss = ((pt.tanh(X @ params[0]) @ params[1] - Y) ** 2).mean()
    updates = synk.updates.sgd(loss, params, 1e-4)
    f = synk.function([X, Y], loss, updates=updates, bits="any")

    def compute() -> list:
        for var, value in zip(params, start, strict=True):
            var.set_value(value)
        losses = [f(A[:rows], A[:rows, 0]) for _ in range(3)]
        assert losses[-1] < losses[0]
        return [*losses, *(var.get_value() for var in params)]

    on_any_ranks(compute)
    refused = {
        "random numbers are drawn": (pt.random.normal(X[:, 0]) @ Y, PY),
        "does not follow from blocks": (((X.sum(), None), Y), "NUMBA"),
    }
    with synk.session(2):
        for why, (outputs, mode) in refused.items():
            g = synk.function([X, Y], outputs, bits="any", mode=mode)
            with pytest.raises(synk.SplitError, match=f"bits='any'.*output 0.*{why}"):
                g(A, B)
        g = synk.function([X, Y], (X @ W * Y).mean(), [W], bits="any", mode="JAX")
        with pytest.raises(synk.SplitError, match="all rows of a rank at once"):
            g(A, B, WEIGHTS)
    with pytest.raises(ValueError, match="bits must be one of"):
        synk.function([X], X.sum(), bits="all")


def test_explain_says_what_depends_on_ranks_and_why():
    wide, steps = pytensor.shared(np.zeros(9_000)), pytensor.shared(np.zeros(()))
    updates = [(wide, wide + X.sum(axis=0)), (steps, steps + 1)]
    f = synk.function([X], X.sum(axis=0), updates=updates, mode="NUMBA")
    assert f.explain().to_dict()["outputs"][0]["bits"] is None
    with synk.session(2):
        f(np.ones((100, 9_000)))
        told = f.explain()
    why = "more than 64 KiB are added up"
    assert f"these ranks of output 0, {wide}, as {why}" in " ".join(str(told).split())
    assert [each["bits"]["on"] for each in told.to_dict()["updates"]] == [
        "these ranks",
        "any ranks",
    ]
