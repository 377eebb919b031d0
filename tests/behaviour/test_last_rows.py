"""Calls that repeat the rows of the last one: nothing else is taken for them."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph import Apply, Op
from reference import PY

import synk
from synk.call import last_rows
from synk.workers import channel

x, y, scale = pt.dvector("x"), pt.dvector("y"), pt.dscalar("scale")


def function():
    return synk.function([x, y], (x * y * scale).sum(), [scale], mode=PY)


def test_what_changes_between_calls_is_seen(ranks):
    f = function()
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
    check(a, b, batch=4)
    check(a, b, batch=slice(1, 5))
    check(a, b, batch=slice(0, 4))
    check(a, b, batch=np.array([5, 1]))
    check(a, b, batch=np.array([True, False] * 3))
    check(a, b)
    a[2] = 100.0
    check(a, b)
    a.set_value(np.arange(3.0))  # another length
    b.set_value(np.full(3, 2.0))
    check(a, b)
    check(np.arange(4.0), np.arange(4.0) + 1)  # no Data
    check(a, b)
    with pytest.raises(ValueError, match="different lengths"):
        f(a, other, 1.0)
    check(a, b)
    synk.close()
    with synk.session(2):
        check(a, b)


def test_data_of_one_call_that_becomes_that_of_a_batch(two_ranks):
    f = function()
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


def test_repeated_rows_are_not_looked_at_again(two_ranks, monkeypatch):
    f = synk.function([x], x.sum(), mode=PY)
    a = synk.data(np.arange(6.0))
    f(a)
    f(a)  # since the first call it is known where the data lies
    for name in ("gather_rows", "stage"):
        monkeypatch.setattr(last_rows, name, None)
    assert f(a) == 15.0
    with pytest.raises(TypeError):
        f(a, batch=3)
    monkeypatch.undo()


def test_no_memory_is_held(two_ranks):
    f = synk.function([x], x.sum(), mode=PY)
    a = synk.data(np.arange(6.0))
    f(a)
    f(a)
    array = a._held()
    a.free_memory()
    f(synk.data(np.ones(3)))
    gc.collect()
    assert sys.getrefcount(array) == 2


class NotAboveTen(Op):
    """The value itself; an error, if it is above ten."""

    __props__ = ()

    def make_node(self, value):
        """Apply the Op to a scalar."""
        return Apply(self, [value], [value.type()])

    def perform(self, node, inputs, outputs):
        """Compute it."""
        if inputs[0] > 10:
            raise ArithmeticError("above ten")
        outputs[0][0] = inputs[0].copy()


def is_prepared(f: synk.Function) -> bool:
    """Tell whether the last call was prepared to be made again."""
    return f._again is not None


def test_calls_without_arguments_are_prepared_and_see_what_is_set(ranks):
    w = pytensor.shared(np.arange(3.0), "w")
    n = pytensor.shared(np.int64(0), "n")
    f = synk.function([], [(w * 2).sum()], updates=[(n, n + 1)], mode=PY)
    for _ in range(4):
        assert f() == [6.0]
        assert is_prepared(f)
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


def test_a_prepared_call_sees_what_changes(ranks):
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
    assert is_prepared(f) == (ranks > 1)  # one rank alone is told nothing
    a[0] = 6.0
    check(21.0, 3.5, a)
    assert other(b) == other(b) == 6.0  # ranks are told another call in between
    check(21.0, 3.5, a)
    check(6.0, 1.0, b)
    check(21.0, 3.5, a)
    check(9.0, 3.0, a, batch=slice(0, 3))
    check(9.0, 3.0, a, batch=slice(0, 3))
    check(9.0, 3.0, a, batch=slice(0, 3))
    assert is_prepared(f) == (1 < ranks < 5)  # of five some are idle
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


def test_a_prepared_call_sees_how_variables_are_held(two_ranks):
    w = pytensor.shared(np.zeros(2), "w")
    f = synk.function([x], x.sum() + w.sum(), mode=PY)
    a = synk.data(np.arange(6.0))
    for _ in range(3):
        assert f(a) == 15.0
    assert is_prepared(f)
    synk.set_value(0, w, np.ones(2))  # a value of rank 0's own
    with pytest.raises(synk.SplitError, match="own"):
        f(a)
    synk.broadcast(w, np.ones(2))
    for _ in range(3):
        assert f(a) == 17.0


def test_ranks_are_told_no_more_than_that_it_is_the_same_call(two_ranks, monkeypatch):
    f = synk.function([x], x.sum(), mode=PY)
    g = synk.function([x], x.sum() * scale, [scale], mode=PY)
    a = synk.data(np.arange(6.0))
    dumps = channel.dumps
    gc.collect()  # of what goes, ranks are told with the next command
    for call in (lambda k: f(a), lambda k: g(a, float(k)) / k):
        for k in range(1, 5):  # from the second on it is known that it repeats
            call(k)
        monkeypatch.setattr(channel, "dumps", None)
        assert call(7) == 15.0
        monkeypatch.setattr(channel, "dumps", dumps)


def test_nothing_is_prepared_while_engines_are_compared(two_ranks, monkeypatch):
    f = synk.function([x], x.sum(), mode=PY)
    a = synk.data(np.arange(6.0))
    for _ in range(3):
        f(a)
    assert f._again.is_known
    monkeypatch.setattr(f._engines, "is_alone", True)
    assert not f._again.is_known
    monkeypatch.undo()
    assert f._again.is_known
    monkeypatch.setattr(type(f._engines), "is_waiting", False)
    assert not f._again.is_known
    f._again = None
    f(a)
    assert not is_prepared(f)


def test_prepared_calls_count_for_engines_that_wait(two_engines, two_ranks):
    f = synk.function([x], x.sum())
    a = synk.data(np.arange(6.0))
    f(a)
    (tried, _), *_ = f._engines._trials.values()
    untried = tried.candidates[1]
    untried.expected = 1e9
    tried.computed = 1.0  # from then on it is asked again at twice as much
    for _ in range(5):
        f(a)
    assert is_prepared(f)
    before, times = tried.computed, len(tried.best.times)
    assert f(a) == 15.0
    assert tried.computed > before
    assert len(tried.best.times) == times + 1
    untried.expected = tried._due = 0.0
    assert f(a) == 15.0
    assert untried.has_made_calls
    assert not is_prepared(f)


def test_a_prepared_call_that_fails_is_undone_and_prepared_anew(two_ranks):
    n = pytensor.shared(np.int64(0), "n")
    total = NotAboveTen()(x.sum())  # as told by each rank of its own rows
    f = synk.function([x], (total, "sum"), updates=[(n, n + 1)], mode=PY)
    a = synk.data(np.array([0.0, 1, 2, 3, 4, 3]))
    for _ in range(3):
        assert f(a) == 13.0
    assert is_prepared(f)
    a[5] = 7.0  # of rank 1
    with pytest.raises(ArithmeticError, match="above ten"):
        f(a)
    assert not is_prepared(f)
    assert [synk.get_value(rank, n) for rank in range(2)] == [3, 3]
    a[5] = 3.0
    for _ in range(3):
        assert f(a) == 13.0
    assert is_prepared(f)


def test_values_of_broadcast_inputs_of_a_prepared_call(ranks):
    v, u = pt.dvector("v"), pt.dvector("u")
    f = synk.function([x], (x.sum() * v).sum() * scale, [v, scale], mode=PY)
    g = synk.function([x], x.sum() + u.sum(), [u], mode=PY)
    a, b = synk.data(np.arange(6.0)), synk.data(np.arange(3.0))
    for k in range(4):
        assert f(a, np.arange(3.0) + k, 2.0) == 15 * (3 + 3 * k) * 2
    assert is_prepared(f) == (ranks > 1)
    theta = np.ones(3)
    for k in range(4):
        theta[1] = k  # the same array with other values
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


def test_values_of_a_prepared_call_are_not_held(two_ranks):
    v = pt.dvector("v")
    f = synk.function([x], x.sum() + v.sum(), [v], mode=PY)
    a, theta = synk.data(np.arange(6.0)), np.ones(3)
    for _ in range(4):
        assert f(a, theta) == 18.0
    assert is_prepared(f)
    array = a._held()
    a.free_memory()
    gc.collect()
    assert sys.getrefcount(theta) == sys.getrefcount(array) == 2


def test_a_rank_takes_adjacent_rows_once_and_reads_what_is_written_there(two_ranks):
    f = synk.function([x], x.sum(), mode=PY)
    a = synk.data(np.arange(6.0))
    for k in range(6):
        a[5] = 10.0 * k  # of rank 1
        assert f(a) == 10.0 + 10.0 * k
    a.set_value(np.arange(4.0))
    for _ in range(3):
        assert f(a) == 6.0
    rows = np.array([1, 3])  # gathered anew in each call
    for k in range(5):
        a[3] = float(k)
        assert f(a, batch=rows) == 1.0 + k
        assert f(a, batch=slice(0, 4, 3)) == float(k)
