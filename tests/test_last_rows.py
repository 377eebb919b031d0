"""Calls that repeat the rows of the last one: nothing else is taken for them."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytensor.tensor as pt
import pytest
from reference import PY

import synk
from synk.call import last_rows

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
