"""Calls that repeat the rows of the last one: what is kept of them is never too old.

Each call's numbers are those of the values that the data has when it is made.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
import threading
import weakref

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.ops import wrap_py
from pytensor.graph import Apply, Op
from reference import PY
from scipy.special import gammaln

import synk

X, Y, W = pt.matrix("x"), pt.vector("y"), pt.vector("w")
ROWS = 10_000  # of fewer nothing is kept
WEIGHTS = np.array([0.3, -0.2])


# -- terms of the data alone


@pytest.fixture
def likelihood(monkeypatch):
    """Return a likelihood whose terms of the data alone are kept, after tuning.

    Terms are kept for one that is not tuned, too, when they have taken longer.
    """
    monkeypatch.setenv("SYNK_ENGINE", "numba")
    eta = X @ W
    logp = (Y * eta - pt.exp(eta) - pt.gammaln(Y + 1)).sum()
    f = synk.function([X, Y], [logp, pt.grad(logp, W)], bcast_inputs=[W])
    with synk.session(2):
        synk.tune(f, *some_data(), WEIGHTS)
        yield f


def some_data():
    rng = np.random.default_rng(1)
    y = rng.poisson(3.0, ROWS).astype(float)
    return synk.data(rng.normal(size=(ROWS, 2)), name="x"), synk.data(y, name="y")


def kept_of(f) -> int:
    """Return the bytes that rank 0 keeps of a function."""
    return f.explain().to_dict()["bytes_kept"]


def check(f, x, y, weights=WEIGHTS, **options) -> None:
    found = f(x, y, weights, **options)
    rows = options.get("batch")
    rows = slice(None) if rows is None else rows
    x, y = np.array(x)[rows], np.array(y)[rows]
    eta = x @ weights
    logp = (y * eta - np.exp(eta) - gammaln(y + 1)).sum()
    gradient = x.T @ (y - np.exp(eta))
    np.testing.assert_allclose(found[0], logp, rtol=1e-10)
    np.testing.assert_allclose(found[1], gradient, rtol=1e-8)


def warm(f, *args, **options) -> None:
    for _ in range(3):
        check(f, *args, **options)


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
    "a slice": lambda x, y: y.__setitem__(slice(3, 6), [1, 2, 3]),
    "x[...]": lambda x, y: y[2:4].fill(2),
    "its data": lambda x, y: y.data.__iadd__(1),
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
    f = likelihood
    x, y = some_data()
    warm(f, x, y)
    assert kept_of(f) == ROWS // 2 * 8
    check(f, x, y, 2 * WEIGHTS)
    for name, write in WRITES.items():
        x, y = some_data()
        warm(f, x, y)
        before = np.array(y)
        write(x, y)
        assert (before != np.array(y)).any(), name
        warm(f, x, y)


def test_what_writes_later_than_the_call_is_seen(likelihood):
    """As long as an array lives that the data gave, its values may change."""
    f = likelihood
    x, y = some_data()
    view = y.data.reshape(4, -1).T[1:][::-1]
    for value in (3.0, 4.0, 5.0):
        view[0, 0] = value
        warm(f, x, y)
    del view
    warm(f, x, y)


def test_terms_are_those_of_the_rows_and_the_data(likelihood):
    f = likelihood
    data, others = some_data(), some_data()
    others[1][:] = np.arange(ROWS) % 11
    first, last = slice(0, ROWS - 7), slice(7, ROWS)
    for rows in (first, last, None, np.random.default_rng(2).permutation(ROWS)):
        for mine in (data, others) * 2:
            warm(f, *mine, batch=rows)
    warm(f, np.array(data[0]), np.array(data[1]))  # arrays that are no data


@wrap_py(itypes=[pt.dvector], otypes=[pt.dvector])
def op_of_the_user(values):
    return values + 1


def test_other_terms_and_updates_have_the_numbers_of_plain_pytensor():
    """One behind a meeting, one that is an output; kept when they have taken long."""
    term = pt.log1p(Y)

    def made(function):
        v = pytensor.shared(np.array(0.5), name="v")
        far = term - term.mean() * v + X[:, 0] * v
        loss = (far**2).mean()
        stable = pt.log(pt.exp(300 * Y) + pt.exp(v)).sum()
        updates = {v: v - 0.1 * pt.grad(loss, v)}
        return function([X, Y], [loss, term, stable], updates=updates, mode=PY), v

    (f, w), (plain, v) = made(synk.function), made(pytensor.function)
    rows = 1_000_000
    x, data = synk.data(np.ones((rows, 2))), synk.data(np.arange(rows) % 7 * 1.0)
    user = synk.function([Y], (op_of_the_user(Y) * pt.gammaln(Y)).mean(), mode=PY)
    before = 0.5
    with synk.session(1):
        for k in range(30):
            found = f(x, data)
            if k in (0, 26, 27, 29):
                assert (kept_of(f) > 0) == (k > 20)
                v.set_value(before)
                expected = plain(np.array(x), np.array(data))
                for one, other in zip(found, expected, strict=True):
                    np.testing.assert_allclose(one, other, rtol=1e-10)
                np.testing.assert_allclose(w.get_value(), v.get_value(), rtol=1e-10)
                found[1][...] = 0  # the caller's
                if k == 27:
                    data[:] = np.array(data) + 1.0
            before = w.get_value()
        for _ in range(2):
            data[5] = data[5] + 1
            values = np.array(data)
            right = ((values + 1) * gammaln(values)).mean()
            np.testing.assert_allclose(user(data), right, rtol=1e-10)


# -- blocks of rows


def test_many_rows_are_computed_in_blocks_where_that_is_faster(monkeypatch):
    """Both ways, and a loop that numba compiles, take turns until one stays."""
    monkeypatch.setenv("SYNK_ENGINE", "auto")
    weights = op_of_the_user(W)  # JAX, which goes through all at once, has no such Op
    loss = ((Y - X @ weights) ** 2).mean()
    f, named = (
        synk.function([X, Y], [loss, pt.grad(loss, weights)], bcast_inputs=[W], mode=m)
        for m in (None, PY)
    )
    rng, rows = np.random.default_rng(3), 180_000  # more than 4 MiB
    x, y = synk.data(rng.normal(size=(rows, 2))), synk.data(rng.normal(size=rows))

    def check(weights):
        value, gradient = f(x, y, weights - 1)
        rest = np.array(x) @ weights - np.array(y)
        np.testing.assert_allclose(value, (rest**2).mean(), rtol=1e-10)
        right = 2 / rows * np.array(x).T @ rest
        np.testing.assert_allclose(gradient, right, rtol=1e-8)

    with synk.session(1):
        for k in range(20):
            check(WEIGHTS * k)
        synk.tune(f, x, y, WEIGHTS)
        check(WEIGHTS)
        facts = f.explain()
        (part,) = facts.to_dict()["in_blocks"]
        assert part["blocks"] in (1, part["tried"])
        assert part["tried"] > 3
        assert "\n  blocks      " in str(facts)
        y[5] = 1000.0
        check(WEIGHTS)
        for _ in range(17):
            named(x, y, WEIGHTS)
        assert named.explain().to_dict()["in_blocks"] == []


# -- the same call again


class NotAboveTen(Op):
    """The value itself; an error, if it is above ten."""

    __props__ = ()

    def make_node(self, value):
        return Apply(self, [value], [value.type()])

    def perform(self, node, inputs, outputs):
        if inputs[0] > 10:
            raise ArithmeticError("above ten")
        outputs[0][0] = inputs[0].copy()


x, y, scale = pt.dvector("x"), pt.dvector("y"), pt.dscalar("scale")


def test_what_changes_between_calls_is_seen(ranks):
    f = synk.function([x, y], (x * y * scale).sum(), [scale], mode=PY)
    a, b = synk.data(np.arange(6.0)), synk.data(np.ones(6))
    other = synk.data(np.arange(6.0) + 10)

    def check(first, second, factor=1.0, batch=None):
        rows = slice(None) if batch is None else batch
        rows = slice(0, rows) if isinstance(rows, int) else rows
        mine, theirs = np.asarray(first)[rows], np.asarray(second)[rows]
        right = factor * (mine * theirs).sum()
        for _ in range(3):
            assert f(first, second, factor, batch=batch) == pytest.approx(right)

    check(a, b)
    check(a, other)
    check(other, a)
    check(a, b, 2.0)
    for rows in (4, slice(1, 5), slice(0, 4), [5, 1], np.array([True, False] * 3)):
        check(a, b, batch=rows)
    chosen = np.array([5, 1])
    check(a, b, batch=chosen)
    chosen[0] = 0
    check(a, b, batch=chosen)
    check(a, b)
    a[2] = 100.0
    check(a, b)
    a.set_value(np.arange(3.0))  # another length
    b.set_value(np.full(3, 2.0))
    check(a, b)
    check(np.arange(4.0), np.arange(4.0) + 1)  # no Data
    check(a, b)
    for args, error in (
        ((a, other, 1.0), ValueError),
        ((a, b), TypeError),
        ((a, b, np.ones(2)), TypeError),
    ):
        with pytest.raises(error):
            f(*args)
        check(a, b)
    synk.close()
    with synk.session(2):
        check(a, b)


def test_data_of_one_call_that_becomes_that_of_a_batch(two_ranks):
    f = synk.function([x, y], (x * y * scale).sum(), [scale], mode=PY)
    a, b = synk.data(np.arange(6.0)), synk.data(np.ones(6))
    f(a, b, 1.0, batch=slice(2, 4))
    b.set_value(np.array([5.0, 7.0]))
    with pytest.raises(ValueError, match="different lengths"):
        f(a, b, 1.0, batch=slice(2, 4))
    b.minibatch = True
    assert f(a, b, 1.0, batch=slice(2, 4)) == 2 * 5 + 3 * 7
    b.minibatch = False
    with pytest.raises(ValueError, match="different lengths"):
        f(a, b, 1.0, batch=slice(2, 4))


def test_calls_without_arguments_see_what_is_set(ranks):
    w = pytensor.shared(np.arange(3.0), "w")
    n = pytensor.shared(np.int64(0), "n")
    f = synk.function([], [(w * 2).sum()], updates=[(n, n + 1)], mode=PY)
    for _ in range(4):
        assert f() == [6.0]
    w.set_value(np.arange(4.0))
    assert f() == [12.0]
    synk.broadcast(w, np.ones(2))
    assert f() == [4.0]
    n.set_value(np.int64(100))
    for k in range(3):
        f()
        assert n.get_value() == 101 + k
    assert [synk.get_value(rank, n) for rank in range(ranks)] == [103] * ranks
    plain = pytensor.function([], [], updates=[(w, w + 1)], mode=PY)
    plain()
    assert f() == [8.0]
    synk.close()
    with synk.session(2):
        assert f() == [8.0]
        assert f() == [8.0]


def test_repeated_calls_see_other_calls_and_variables(ranks):
    w = pytensor.shared(np.zeros(2), "w")
    f = synk.function([x], x.sum() + w.sum(), updates=[(w, w + x.mean())], mode=PY)
    other = synk.function([y], y.sum(), mode=PY)
    a, b = synk.data(np.arange(6.0)), synk.data(np.ones(6))
    total = 0.0

    def check(expected: float, mean: float, *args, **options) -> None:
        nonlocal total
        assert f(*args, **options) == pytest.approx(expected + total)
        total += 2 * mean

    for _ in range(4):
        check(15.0, 2.5, a)
    a[0] = 6.0
    check(21.0, 3.5, a)
    assert other(b) == other(b) == 6.0  # ranks are told another call in between
    check(21.0, 3.5, a)
    check(6.0, 1.0, b)
    check(21.0, 3.5, a)
    for _ in range(3):
        check(9.0, 3.0, a, batch=slice(0, 3))  # of five ranks some are idle
    check(12.0, 4.0, a, batch=slice(3, 6))
    check(21.0, 3.5, a)
    check(21.0, 3.5, x=a)
    check(21.0, 3.5, a, num_slices=2)
    assert f(a, output_subset=[]) == []
    total += 7.0
    check(21.0, 3.5, a, check="serial")
    check(21.0, 3.5, a)
    w.set_value(np.zeros(2))
    total = 0.0
    check(21.0, 3.5, a)
    a.set_value(np.arange(3.0))
    check(3.0, 1.0, a)
    check(3.0, 1.0, a)
    a.free_memory()
    with pytest.raises(ValueError, match="holds nothing"):
        f(a)
    check(6.0, 1.0, b)
    check(6.0, 1.0, b)
    for rank in range(ranks):
        np.testing.assert_allclose(synk.get_value(rank, w), total / 2)


def test_a_value_of_one_rank_is_seen_by_a_repeated_call(two_ranks):
    w = pytensor.shared(np.zeros(2), "w")
    f = synk.function([x], x.sum() + w.sum(), mode=PY)
    a = synk.data(np.arange(6.0))
    for _ in range(3):
        assert f(a) == 15.0
    synk.set_value(0, w, np.ones(2))
    with pytest.raises(synk.SplitError, match="own"):
        f(a)
    synk.broadcast(w, np.ones(2))
    for _ in range(3):
        assert f(a) == 17.0


def test_a_repeated_call_that_fails_is_undone(two_ranks):
    n = pytensor.shared(np.int64(0), "n")
    total = NotAboveTen()(x.sum())  # as told by each rank of its own rows
    f = synk.function([x], (total, "sum"), updates=[(n, n + 1)], mode=PY)
    a = synk.data(np.array([0.0, 1, 2, 3, 4, 3]))
    for made in (3, 6):
        for _ in range(3):
            assert f(a) == 13.0
        a[5] = 7.0  # of rank 1
        with pytest.raises(ArithmeticError, match="above ten"):
            f(a)
        assert [synk.get_value(rank, n) for rank in range(2)] == [made, made]
        a[5] = 3.0


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


def test_no_argument_of_the_last_call_is_held(two_ranks):
    v = pt.dvector("v")
    f = synk.function([x], x.sum() + v.sum(), [v], mode=PY)
    a, theta = synk.data(np.arange(6.0)), np.ones(3)
    for _ in range(4):
        assert f(a, theta) == 18.0
    array = weakref.ref(a.data)
    a.free_memory()
    f(synk.data(np.ones(3)), np.ones(2))
    gc.collect()
    assert array() is None
    assert sys.getrefcount(theta) == 2
