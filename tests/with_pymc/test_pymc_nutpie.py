"""nutpie samples with a log-density by ranks."""

from __future__ import annotations

import numpy as np
import pytest

import synk

pm = pytest.importorskip("pymc", reason="these tests are of synk with PyMC")
nutpie = pytest.importorskip("nutpie", reason="nutpie is not installed")

import arviz as az  # noqa: E402

MODE = "FAST_COMPILE"
COLUMNS, SIGMA = list("abc"), 0.5
RNG = np.random.default_rng(8)
X = RNG.normal(size=(101, 3))
Y = X @ [0.5, -0.3, 0.2] + SIGMA * RNG.normal(size=101)


@pytest.fixture(scope="module")
def compiled():
    with pm.Model(coords={"column": COLUMNS}) as model:
        model.add_coord("row", length=101)
        slopes = pm.Normal("slopes", dims="column")
        scale = pm.Uniform("scale", 0, 1)  # its posterior is its prior
        pm.Deterministic("twice", 2 * scale)
        mu = pm.Deterministic("mu", X @ slopes, dims="row")
        pm.Normal("y", mu, SIGMA, observed=Y, dims="row")
    return synk.pymc.nutpie_model(model, mode=MODE)


def sampled(compiled, draws: int, **kwargs):
    given = {"chains": 2, "seed": 4, "progress_bar": False, "save_warmup": False}
    found = nutpie.sample(compiled, draws=draws, tune=200, **given, **kwargs)
    return found.posterior


def test_nutpie_samples_the_posterior_by_ranks(compiled):
    """That of a normal regression with known noise is a normal distribution."""
    with synk.session(2):
        posterior = sampled(compiled, 250, cores=1)
    covariance = np.linalg.inv(X.T @ X / SIGMA**2 + np.eye(3))
    mean = covariance @ (X.T @ Y / SIGMA**2)
    draws = {name: posterior[name].values for name in posterior.data_vars}
    assert draws["slopes"].shape == (2, 250, 3)
    for i in range(3):
        assert_normal(draws["slopes"][..., i], mean[i], covariance[i, i] ** 0.5)
    assert_normal(draws["scale"], 0.5, 1 / 12**0.5)
    assert posterior["slopes"].coords["column"].values.tolist() == COLUMNS
    np.testing.assert_array_equal(draws["twice"], 2 * draws["scale"])
    np.testing.assert_allclose(draws["mu"], draws["slopes"] @ X.T, atol=1e-12)


def assert_normal(draws, mean: float, deviation: float) -> None:
    """Compare a mean with one that is known: less than four standard errors away."""
    effective = float(az.ess(draws))
    assert effective > 100
    assert abs(draws.mean() - mean) < 4 * deviation / effective**0.5


def test_chains_that_are_threads_wait_for_each_other(compiled):
    with synk.session(2):
        one_by_one, together = (sampled(compiled, 20, cores=n) for n in (1, 2))
    for name in ("slopes", "scale"):
        np.testing.assert_array_equal(one_by_one[name].values, together[name].values)


def test_an_error_of_ranks_comes_out_of_nutpie(compiled):
    with pytest.raises(RuntimeError, match=r"StateError\('synk is (closed|not forked)"):
        sampled(compiled, 20, cores=1)


def test_discrete_variables_are_refused():
    with pm.Model() as model:
        k = pm.Poisson("k", 2.0)
        pm.Normal("y", X @ pm.Normal("b", shape=3) + k, 1.0, observed=Y)
    with pytest.raises(TypeError, match="no steps for discrete variables: k"):
        synk.pymc.nutpie_model(model, mode=MODE)
