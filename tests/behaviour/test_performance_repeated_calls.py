"""Calls that repeat the rows of the last one: what is kept of them is never too old.

Each call's numbers are those of the values that the data has when it is made.
"""

import contextlib
import ctypes
import functools
import os
import re
import threading

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from on_ranks import assert_on_ranks, by_rank, one_and_three_ranks
from processes import Act, board, note
from reference import PY
from scipy.special import gammaln

import synk

X, Y, W = pt.matrix("x"), pt.vector("y"), pt.vector("w")
ROWS = 10_000  # of fewer nothing is kept
WEIGHTS = np.array([0.3, -0.2])


# -- terms of the data alone


class Likelihood:
    """A likelihood with terms of the data alone, beside the same in numpy.

    One of the terms goes through a meeting, to outputs by rows, and to an update.
    """

    def __init__(self) -> None:
        self.seen = pytensor.shared(0.0, "seen")
        eta, term = X @ W, pt.gammaln(Y + 1)
        logp = (Y * eta - pt.exp(eta) - term).sum()
        self.f = synk.function(
            [X, Y],
            [logp, pt.grad(logp, W), term - term.mean()],
            bcast_inputs=[W],
            updates=[(self.seen, term.sum())],
        )

    def check(self, x, y, weights=WEIGHTS, batch=None) -> None:
        """Call it some times, as what is kept is used from the second time on."""
        rows = slice(None) if batch is None else batch
        mine, counts = np.array(x)[rows], np.array(y)[rows]
        eta, term = mine @ weights, gammaln(counts + 1)
        right = (counts * eta - np.exp(eta) - term).sum()
        gradient = mine.T @ (counts - np.exp(eta))
        for _ in range(3):
            found = self.f(x, y, weights, batch=batch)
            np.testing.assert_allclose(found[0], right, rtol=1e-10)
            np.testing.assert_allclose(found[1], gradient, rtol=1e-8)
            np.testing.assert_allclose(found[2], term - term.mean(), atol=1e-10)
            assert self.seen.get_value() == pytest.approx(term.sum())
            found[2][...] = 0  # the caller's


likelihood_compiled_once = functools.cache(Likelihood)


@pytest.fixture
def likelihood(monkeypatch):
    """Return one whose terms are kept, as it is tuned."""
    monkeypatch.setenv("SYNK_ENGINE", "numba")
    made = likelihood_compiled_once()
    with synk.session(2):
        synk.tune(made.f, *some_data(), WEIGHTS)
        yield made


def some_data():
    rng = np.random.default_rng(1)
    y = rng.poisson(3.0, ROWS).astype(float)
    return synk.data(rng.normal(size=(ROWS, 2)), name="x"), synk.data(y, name="y")


def by_a_thread(x, y):
    thread = threading.Thread(target=y.__setitem__, args=(2, 7.0))
    thread.start()
    thread.join()


def by_a_child(x, y):
    """A child of the script's has the same memory, and says nothing."""
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            y[3] = 9
        os._exit(0)
    os.waitpid(pid, 0)


def by_an_address(x, y):
    """Whoever does this is told to read `data` afterwards."""
    address = y.data.ctypes.data
    ctypes.c_double.from_address(address).value = 6.0
    assert len(y.data) == ROWS


WRITES = {
    "an element": lambda x, y: y.__setitem__(0, 40),
    "x[...]": lambda x, y: y[2:4].fill(2),
    "numpy": lambda x, y: np.copyto(np.asarray(y), np.arange(ROWS) % 9),
    "a memoryview": lambda x, y: memoryview(y.data).__setitem__(0, 3.0),
    "a reshaped view": lambda x, y: y.data.reshape(4, -1)[1].fill(1),
    "set_value": lambda x, y: y.set_value(np.arange(ROWS) % 7 + 2.0),
    "other data": lambda x, y: y.set_value(synk.data(np.ones(ROWS))),
    "a length and back": lambda x, y: (y.set_length(5), y.set_length(ROWS)),
    "new memory": lambda x, y: (y.free_memory(), y.set_value(np.ones(ROWS))),
    "a thread": by_a_thread,
    "an address": by_an_address,
    "a child": by_a_child,  # the last: from here on nothing is kept of it
}


def test_a_term_is_kept_and_what_is_written_is_seen(likelihood):
    x, y = some_data()
    likelihood.check(x, y)
    assert likelihood.f.explain().to_dict()["bytes_kept"] >= ROWS // 2 * 8
    likelihood.check(x, y, 2 * WEIGHTS)
    for name, write in WRITES.items():
        x, y = some_data()
        likelihood.check(x, y)
        before = np.array(y)
        write(x, y)
        assert (before != np.array(y)).any(), name
        likelihood.check(x, y)


def test_what_writes_later_than_the_call_is_seen(likelihood):
    """As long as an array lives that the data gave, its values may change."""
    x, y = some_data()
    view = y.data.reshape(4, -1).T[1:][::-1]
    for value in (3.0, 4.0, 5.0):
        view[0, 0] = value
        likelihood.check(x, y)
    del view
    likelihood.check(x, y)


def test_terms_are_those_of_the_rows_and_the_data(likelihood):
    data, others = some_data(), some_data()
    others[1][:] = np.arange(ROWS) % 11
    first, last = slice(0, ROWS - 7), slice(7, ROWS)
    for rows in (first, last, None, np.random.default_rng(2).permutation(ROWS)):
        for mine in (data, others) * 2:
            likelihood.check(*mine, batch=rows)
    likelihood.check(np.array(data[0]), np.array(data[1]))  # arrays that are no data


# -- blocks of rows


def test_many_rows_are_computed_in_blocks(monkeypatch):
    monkeypatch.setenv("SYNK_ENGINE", "auto")
    weights = W + 0.0 * (W.shape[0] // 2)  # JAX, which does not, gets no such division
    loss = ((Y - X @ weights) ** 2).mean()
    outputs = [loss, pt.grad(loss, weights)]
    f = synk.function([X, Y], outputs, bcast_inputs=[W])
    rng, rows = np.random.default_rng(3), 140_000
    x, y = synk.data(rng.normal(size=(rows, 2))), synk.data(rng.normal(size=rows))

    def check(weights):
        value, gradient = f(x, y, weights)
        rest = np.array(x) @ weights - np.array(y)
        np.testing.assert_allclose(value, (rest**2).mean(), rtol=1e-10)
        right = 2 / rows * np.array(x).T @ rest
        np.testing.assert_allclose(gradient, right, rtol=1e-8)

    with synk.session(1):
        for k in range(4):
            check(WEIGHTS * k)
        facts = f.explain()
        size = re.search("blocks of ([0-9,]+) rows", str(facts))[1].replace(",", "")
        blocks = -(-rows // int(size))
        assert blocks > 2
        assert facts.to_dict()["in_blocks"] == {"blocks": blocks, "is_compiled": True}
        assert f"\n  blocks      {blocks} on rank 0, in a compiled loop" in str(facts)
        check(WEIGHTS)
        y[5] = 1000.0
        check(WEIGHTS)


# -- the same call again


FAILS = 7  # a place on the board that all ranks share


def fail_if_told() -> None:
    if board(FAILS):
        raise ArithmeticError("as told")


x, y, scale = pt.dvector("x"), pt.dvector("y"), pt.dscalar("scale")


@one_and_three_ranks
def test_what_changes_between_calls_is_seen(ranks):
    w = pytensor.shared(np.zeros(2), "w")
    cost, updates = (x * y * scale).sum() + w.sum(), [(w, w + x.mean())]
    f = synk.function([x, y], cost, [scale], updates=updates, mode=PY)
    a, b = synk.data(np.arange(6.0)), synk.data(np.ones(6))
    other = synk.data(np.arange(6.0) + 10)
    total = 0.0

    def check(first, second, factor=1.0, batch=None, **options):
        nonlocal total
        rows = slice(None) if batch is None else batch
        rows = slice(0, rows) if isinstance(rows, int) else rows
        mine, theirs = np.asarray(first)[rows], np.asarray(second)[rows]
        for _ in range(3):
            found = f(first, second, factor, batch=batch, **options)
            assert found == pytest.approx(factor * (mine * theirs).sum() + total)
            total += 2 * mine.mean()

    for given in ((a, b), (a, other), (other, a), (a, b, 2.0)):
        check(*given)
    for rows in (4, slice(1, 5), slice(0, 2), [5, 1], np.array([True, False] * 3)):
        check(a, b, batch=rows)
    chosen = np.array([5, 1])
    check(a, b, batch=chosen)
    chosen[0] = 0
    check(a, b, batch=chosen)
    check(a, b, num_slices=2)
    check(a, b, check="serial")
    assert synk.function([y], y.sum(), mode=PY)(b) == 6.0  # ranks are told another call
    a[2] = 100.0
    check(a, b)
    w.set_value(np.zeros(2))
    total = 0.0
    check(a, b)
    assert f(a, b, 1.0, output_subset=[]) == []
    total += 2 * np.mean(a)
    a.set_value(np.arange(3.0))  # another length
    b.set_value(np.full(3, 2.0))
    check(a, b)
    check(np.arange(4.0), np.arange(4.0) + 1)  # no Data
    for args in ((a, other, 1.0), (a, b), (a, b, np.ones(2))):
        with pytest.raises(ValueError if args[1] is other else TypeError):
            f(*args)
        check(a, b)
    # Data of all rows that becomes that of a batch, and back.
    check(a, b, batch=slice(1, 3))
    b.set_value(np.array([5.0, 7.0]))
    with pytest.raises(ValueError, match="different lengths"):
        f(a, b, 1.0, batch=slice(1, 3))
    b.minibatch = True
    assert f(a, b, 1.0, batch=slice(1, 3)) == pytest.approx(1 * 5 + 2 * 7 + total)
    total += 2 * 1.5
    b.minibatch = False
    with pytest.raises(ValueError, match="different lengths"):
        f(a, b, 1.0, batch=slice(1, 3))
    b.set_value(np.ones(3))
    assert_on_ranks(w, np.full(2, total / 2))
    synk.close()
    with synk.session(2):
        check(a, b)
    a.free_memory()
    with synk.session(1), pytest.raises(ValueError, match="holds nothing"):
        f(a, b, 1.0)


def test_repeated_calls_that_fail_are_undone(two_ranks):
    n, w = pytensor.shared(np.int64(0), "n"), pytensor.shared(np.zeros(2), "w")
    outputs = [(Act(1, fail_if_told)(x.sum()), "sum"), w.sum()]
    f = synk.function([x], outputs, updates=[(n, n + 1)], mode=PY)
    a = synk.data(np.array([0.0, 1, 2, 3, 4, 3]))
    for made in (3, 6):
        for _ in range(3):
            assert f(a) == [13.0, 0.0]
        note(FAILS, 1)
        with pytest.raises(ArithmeticError, match="as told"):
            f(a)
        note(FAILS, 0)
        assert by_rank(n) == [made, made]
    synk.set_value(0, w, np.ones(2))
    with pytest.raises(synk.SplitError, match="own"):
        f(a)
    synk.broadcast(w, np.ones(2))
    for _ in range(3):
        assert f(a) == [13.0, 2.0]


@one_and_three_ranks
def test_values_of_broadcast_inputs_may_be_others_in_each_call(ranks):
    v, u = pt.dvector("v"), pt.dvector("u")
    f = synk.function([x], (x.sum() * v).sum() * scale, [v, scale], mode=PY)
    g = synk.function([x], x.sum() + u.sum(), [u], mode=PY)
    a, b = synk.data(np.arange(6.0)), synk.data(np.arange(3.0))
    theta = np.ones(3)
    for k in range(4):
        theta[1] = k  # the same array with other values
        assert f(a, np.arange(3.0) + k, 2.0) == 15 * (3 + 3 * k) * 2
        assert f(a, theta, k) == 15 * (2 + k) * k
        assert f(a, [1, 2], 1) == 45  # another length
        assert g(a, theta) == 17 + k  # theirs go to the same memory
        assert g(a, np.ones(300)) == 315
        assert f(a, b, 1.0) == 45  # Data
    with pytest.raises(TypeError, match="v"):
        f(a, np.ones((2, 2)), 1.0)
    with pytest.raises(TypeError, match="misses a value"):
        f(a, theta)
    for k in range(3):
        assert f(a, theta, float(k)) == 15 * 5 * k
