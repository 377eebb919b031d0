"""Telling mistakes from rounding errors: what is allowed, by what was computed."""

from __future__ import annotations

import numpy as np

from synk.call.rounding import MARGIN, Rounding


def total(*arrays):
    return [sum(array.sum() for array in arrays)]


def test_rounding_errors_are_those_of_what_was_summed():
    values = np.array([1e6 / 3, -1e6 / 3, 0.1])
    of_sum = Rounding(total, [values], total(values))
    one = values[2:]
    steep = Rounding(lambda x: [np.exp(20 * x)], [one], [np.exp(20 * one)])
    for unit in (1e-13, 1e-10, 1e-7):
        # A term x changes by up to 2 * unit * x, and exp(x) by x times its value.
        most = 2 * MARGIN * unit * np.abs(values).sum()
        assert most / 20 < of_sum.allowed(0, unit) <= most
        most = 2 * MARGIN * unit * 2 * np.exp(2)
        assert most / 20 < steep.allowed(0, unit) < 1.01 * most


def test_whole_numbers_integers_and_what_is_not_finite_are_not_rounded_anew():
    exact = [np.array([0.0, 1, -7, 1e5]), np.arange(3), np.array([True]), np.float32(2)]
    assert Rounding(total, exact, total(*exact)).allowed(0, 1e-7) == 0
    edge = np.array([0.5, 1 - 2**-53])
    with np.errstate(invalid="ignore"):
        over = Rounding(lambda x: [np.sqrt(1 - x)], [edge], [np.sqrt(1 - edge)])
        assert 0 < over.allowed(0, 2.0**-52) < 1e-6
