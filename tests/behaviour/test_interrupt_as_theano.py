"""An interrupt of `as_theano` at any line of synk: all of it is made, or nothing.

The compiled code makes its updates itself. So what is undone afterwards must be all of
them, or ranks hold what the master does not, and nothing tells.
"""

from __future__ import annotations

import contextlib

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from interrupted import InterruptedAt
from pytensor.compile import Mode
from reference import PY

import synk

ROWS = np.arange(12.0).reshape(4, 3)
IN_PLACE = Mode("py", "fast_run")


def all_of(w):
    x = pt.dmatrix("x")
    return x, w - 0.5 * x.sum(axis=0)


def one_of(w):
    x = pt.dmatrix("x")
    return x, pt.set_subtensor(w[1], x.sum())


@pytest.mark.parametrize(
    ("updated", "mode"),
    [(all_of, PY), (one_of, IN_PLACE)],
    ids=["new values", "in place"],
)
def test_an_interrupted_run_in_the_master_is_made_or_undone(two_ranks, updated, mode):
    first = np.arange(3.0)
    w, calls = pytensor.shared(first, "w"), pytensor.shared(0.0, "calls")
    x, new_w = updated(w)
    updates = [(w, new_w), (calls, calls + 1)]
    f = synk.function([x], [w.sum(), (x @ w).sum()], updates=updates, mode=mode)
    f.as_theano(ROWS)
    w.set_value(first)
    after = pytensor.function([x], new_w, mode=PY)(ROWS)
    made = set()
    for k in range(1, 1000):
        w.set_value(first)
        calls.set_value(0.0)
        synk.get_value(1, [w, calls])  # all ranks have them
        suppressed = contextlib.suppress(KeyboardInterrupt)
        with InterruptedAt(k) as trace, suppressed:
            f.as_theano(ROWS)
        (value, n), (other, of_other) = [synk.get_value(r, [w, calls]) for r in (0, 1)]
        where = str(trace.raised_at)
        np.testing.assert_array_equal(other, value, where)
        assert of_other == n, where
        np.testing.assert_array_equal(value, after if n else first, where)
        made.add((bool(trace.raised_at), float(n)))
        if not trace.raised_at:
            break
    assert k > 60
    assert made >= {(True, 0.0), (False, 1.0)}
