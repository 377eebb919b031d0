"""Ranks as programs in one process: as uneven as wanted, and seen where they differ."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from in_process import COUNTS, InProcess
from reference import PY

import synk

X = pt.dmatrix("x")
VALUES = np.arange(21.0).reshape(7, 3) ** 1.5


def test_a_call_is_that_of_all_rows_however_they_are_divided():
    total = pytensor.shared(np.zeros(3), "total")
    outputs = [
        X.var(axis=0),
        X - X.mean(axis=0),
        X.shape[0] * X.max(),
        pt.sort(X[:, 0]),
    ]
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
    outputs = InProcess(f)(2, VALUES, bounds=[0, 6, 7]).outputs
    assert [float(value) for value in outputs] == [
        VALUES[:6].sum(),
        VALUES[:6].mean(),
    ]


def test_draws_and_refused_functions_are_not_for_it():
    rng = pytensor.shared(np.random.default_rng(1))
    drawn = pt.random.normal(rng=rng)
    with pytest.raises(ValueError, match="draws"):
        InProcess(synk.function([X], X.sum() * drawn, mode=PY))
