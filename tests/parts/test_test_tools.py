"""What tests are made with: their budget, and ranks as programs in one process."""

import budget
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from in_process import InProcess
from reference import PY

import synk


def test_a_run_fails_that_takes_a_quarter_more_on_a_machine_that_is_not_slow():
    for share, slow, fails in (1.2, 0.9, False), (1.3, 0.9, True), (1.3, 1.1, False):
        found, said = budget.verdict(share * budget.SECONDS, slow)
        assert found is ("take away" in said) is fails


X = pt.dmatrix("x")
VALUES = np.arange(21.0).reshape(7, 3) ** 1.5


def test_what_is_local_differs():
    f = synk.function([X], [(X.sum(), "max"), (X.mean(), None)], mode=PY)
    total, mean = InProcess(f)(2, VALUES, bounds=[0, 6, 7]).outputs
    assert (total, mean) == (VALUES[:6].sum(), VALUES[:6].mean())


def test_draws_and_refused_functions_are_not_for_it():
    rng = pytensor.shared(np.random.default_rng(1))
    drawn = pt.random.normal(rng=rng)
    with pytest.raises(ValueError, match="draws"):
        InProcess(synk.function([X], X.sum() * drawn, mode=PY))
