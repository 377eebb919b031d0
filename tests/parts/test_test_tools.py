"""What tests are made with: their budget, and ranks as programs in one process."""

from __future__ import annotations

from collections import Counter

import budget
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from in_process import COUNTS, InProcess
from reference import PY

import synk

SECONDS = Counter(
    {
        "tests/behaviour/test_a.py": 30.0,
        "tests/whole/nodes/test_b.py": 60.0,
        "tests/parts/test_c.py": 0.5,
        "synk/ops.py": 0.25,
    }
)


def test_seconds_are_printed_by_floor_and_by_file():
    lines = [line.split(maxsplit=1) for line in budget.lines(SECONDS)]
    assert lines == [
        ["60.0", "tests/whole"],
        ["30.0", "tests/behaviour"],
        ["0.5", "tests/parts"],
        ["0.2", "doctests and others"],
        [],
        ["60.0", "tests/whole/nodes/test_b.py"],
        ["30.0", "tests/behaviour/test_a.py"],
        ["0.8", "2 other files"],
        ["90.8", "all, of all workers"],
    ]


def test_a_run_fails_that_takes_a_quarter_more_on_a_machine_that_is_not_slow():
    for share, slow, fails in (1.2, 0.9, False), (1.3, 0.9, True), (1.3, 1.1, False):
        found, said = budget.verdict(share * budget.SECONDS, slow)
        assert found is ("take away" in said) is fails


X = pt.dmatrix("x")
VALUES = np.arange(21.0).reshape(7, 3) ** 1.5


def test_a_call_is_that_of_all_rows_however_they_are_divided():
    total = pytensor.shared(np.zeros(3), "total")
    outputs = [X.var(axis=0), X - X.mean(axis=0), X.shape[0] * X.max()]
    outputs.append(pt.sort(X[:, 0]))
    updates = {total: total + X.sum(axis=0)}
    with pytest.warns(synk.SplitWarning, match="all rows at once"):
        f = synk.function([X], outputs, updates=updates, mode=PY)
    right = pytensor.function([X], outputs, mode=PY)(VALUES)
    ranks = InProcess(f)
    for n in COUNTS:
        for bounds in (None, [0] * n + [7], [0, *[7] * n], [0, *[1] * (n - 1), 7]):
            got = ranks(n, VALUES, bounds=bounds)
            for value, expected in zip(got.outputs, right, strict=True):
                np.testing.assert_allclose(value, expected, 1e-12)
            for (new,) in got.updates:  # of ranks without rows, too
                np.testing.assert_allclose(new, VALUES.sum(axis=0), 1e-12)


def test_what_is_local_differs():
    f = synk.function([X], [(X.sum(), "max"), (X.mean(), None)], mode=PY)
    total, mean = InProcess(f)(2, VALUES, bounds=[0, 6, 7]).outputs
    assert (total, mean) == (VALUES[:6].sum(), VALUES[:6].mean())


def test_draws_and_refused_functions_are_not_for_it():
    rng = pytensor.shared(np.random.default_rng(1))
    drawn = pt.random.normal(rng=rng)
    with pytest.raises(ValueError, match="draws"):
        InProcess(synk.function([X], X.sum() * drawn, mode=PY))
