"""Any string is a name of data or of a variable in a model."""

from __future__ import annotations

import numpy as np
import pytest

import synk

pm = pytest.importorskip("pymc", reason="these tests are of synk with PyMC")

import pytensor.tensor as pt  # noqa: E402
from comparing import assert_equal, density, plain, points  # noqa: E402

NAMES = [
    *("long", "half", "float32", "bool", "floatX", "object", "point", "self", "args"),
    *("p(k, n)", "censored(y, c)", "truncated(y, lb=0)", "weighted(y, w)", "a:b[2]"),
    *("", "two words", "{x}", "%s", "*", "größe", "line\nbreak", "rows_0"),
]
N = 40


def of_each(made):
    return sum(made(name) for name in NAMES)


KINDS = {
    "data": lambda y: of_each(lambda n: pm.Data(n, y)) * pm.Normal("b"),
    "whole": lambda y: of_each(lambda n: pm.Normal(n) * y),
    "by rows": lambda y: of_each(lambda n: pm.Normal(n, shape=N)),
    # Its values are whole on each rank, of any length.
    "walk": lambda y: pt.cumsum(of_each(lambda n: pm.Normal(n, shape=N))),
}


@pytest.mark.parametrize("kind", KINDS)
def test_any_string_is_a_name(kind):
    y = np.random.default_rng(1).normal(size=N)
    with pm.Model() as model:
        pm.Normal("censored(obs)", KINDS[kind](y), observed=y)
    with synk.session(2):
        by_ranks = density(model)
        assert by_ranks.parts
        assert_equal(by_ranks, plain(model), points(by_ranks.start, 3), rtol=1e-11)


def test_any_string_is_a_name_of_a_data_dimension_and_of_what_is_sampled():
    """In `pm.sample`: what is recorded has the names that PyMC gives."""
    y = np.random.default_rng(2).normal(size=N)
    with pm.Model(coords={"p(k, n)": np.arange(N)}) as model:
        long = pm.Data("long", y**2, dims="p(k, n)")
        half = pm.HalfNormal("half")
        pm.Normal("censored(y, c)", long, half, observed=y, dims="p(k, n)")
    with synk.session(2), synk.pymc.parallel(model, serial=False, quiet=True) as how:
        idata = pm.sample(
            draws=20,
            tune=20,
            cores=1,
            chains=1,
            progressbar=False,
            nuts_sampler="pymc",
            compute_convergence_checks=False,
        )
    assert not how.is_serial
    assert list(idata.posterior.data_vars) == ["half"]
    assert "long" in idata.constant_data
