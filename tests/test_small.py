"""Few values of any dtypes and ops are reduced in one meeting, to serial numbers."""

from __future__ import annotations

import numpy as np
import pytensor.tensor as pt
from reference import PY

import synk
from synk.ranks.session import SESSION


def statistics(x):
    """Return reductions of a matrix, of every op and of three dtypes."""
    single, whole = pt.cast(x, "float32"), pt.cast(x, "int64")
    return [
        synk.ops.all_reduce(x.sum(axis=0), "sum"),
        synk.ops.all_reduce(whole.min(), "min"),
        synk.ops.all_reduce(x.mean()),
        synk.ops.all_reduce(single.sum(axis=0), "sum"),
        synk.ops.all_reduce(x.prod(axis=0), "prod"),
        synk.ops.all_reduce(whole.sum(axis=1).sum(), "sum"),
        synk.ops.all_reduce(single.max(axis=0), "max"),
        synk.ops.all_reduce(x.min(axis=0), "min"),
    ]


def serial(x: np.ndarray) -> list[np.ndarray]:
    """Return the same of all rows."""
    single, whole = x.astype("float32"), x.astype("int64")
    return [
        *(x.sum(axis=0), whole.min(), x.mean(), single.sum(axis=0), x.prod(axis=0)),
        *(whole.sum(), single.max(axis=0), x.min(axis=0)),
    ]


def assert_serial(results, x: np.ndarray) -> None:
    """Assert that results are those of all rows, in their dtypes."""
    for got, right in zip(results, serial(x), strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-12)
        assert got.dtype == right.dtype


def test_several_dtypes_and_ops(ranks):
    x = pt.dmatrix("x")
    f = synk.function([x], [(r, None) for r in statistics(x)], mode=PY)
    random = np.random.default_rng(0)
    for rows in (12, 1, 2, 7, 7):  # a rank without rows gives nothing
        values = random.integers(-3, 4, (rows, 3)).astype(float)
        assert_serial(f(values), values)
    # The two sets of slots take turns.
    batches = [slice(start, start + 5) for start in range(9)]
    values = random.integers(-3, 4, (13, 3)).astype(float)
    made = f.run(batches, values)
    for call, batch in enumerate(batches):
        assert_serial([of_output[call] for of_output in made], values[batch])


def test_nan_wins_a_comparison(ranks):
    x = pt.dmatrix("x")
    outputs = [synk.ops.all_reduce(x.min(axis=0), "min"), synk.ops.all_reduce(x.mean())]
    f = synk.function([x], [(r, None) for r in outputs], mode=PY)
    for row in range(5):
        values = np.arange(10.0).reshape(5, 2)
        values[row, 1] = np.nan
        least, mean = f(values)
        np.testing.assert_array_equal(least, [0, np.nan])
        assert np.isnan(mean)


def test_ranks_meet_once(two_ranks, monkeypatch):
    x = pt.dmatrix("x")
    f = synk.function([x], [(r, None) for r in statistics(x)], mode=PY)
    values = np.arange(12.0).reshape(4, 3)
    f(values)
    # As many meetings as a call has whose values are of one kind.
    comm = SESSION.context.comm
    meetings = []
    for_next = comm.next_meeting
    monkeypatch.setattr(
        comm, "next_meeting", lambda: meetings.append(for_next()) or meetings[-1]
    )
    assert_serial(f(values), values)
    assert len(meetings) == 1
    monkeypatch.undo()


def test_values_that_no_longer_fit(ranks):
    x = pt.dmatrix("x")
    outputs = [
        (synk.ops.all_reduce(x.sum(axis=0), "sum"), None),
        (synk.ops.all_reduce(pt.cast(x, "float32").max(axis=0), "max"), None),
    ]
    f = synk.function([x], outputs, mode=PY)
    for width in (3, 5, 2, 300):  # the last is not few
        values = np.arange(4.0 * width).reshape(4, width)
        total, largest = f(values)
        np.testing.assert_array_equal(total, values.sum(axis=0))
        np.testing.assert_array_equal(largest, values[-1])
