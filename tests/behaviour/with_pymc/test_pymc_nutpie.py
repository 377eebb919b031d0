"""nutpie samples with a log-density by ranks."""

import os

import numpy as np
import pytest

import synk

pm = pytest.importorskip("pymc", reason="these tests are of synk with PyMC")
nutpie = pytest.importorskip("nutpie", reason="nutpie is not installed")

import arviz as az  # noqa: E402
from comparing import MODE, groups_of  # noqa: E402

IS_NEW = hasattr(pm.sampling.mcmc, "NUTPIE_INSTALLED")
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


def sampled(compiled, draws: int, tune: int = 20, **kwargs):
    given = {"chains": 2, "seed": 4, "progress_bar": False, "save_warmup": False}
    found = nutpie.sample(compiled, draws=draws, tune=tune, **given, **kwargs)
    return found.posterior


def test_nutpie_samples_the_posterior_by_ranks(compiled):
    """That of a normal regression with known noise is a normal distribution."""
    with synk.session(2):
        posterior = sampled(compiled, 150, 150, cores=1)
    covariance = np.linalg.inv(X.T @ X / SIGMA**2 + np.eye(3))
    mean = covariance @ (X.T @ Y / SIGMA**2)
    draws = {name: posterior[name].values for name in posterior.data_vars}
    assert draws["slopes"].shape == (2, 150, 3)
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


def logistic(rows: int):
    x = RNG.normal(size=(rows, 2))
    with pm.Model(coords={"column": ["u", "v"]}) as model:
        scale = pm.Gamma("scale", 3, 3, initval=0.5)
        slopes = pm.Normal("slopes", dims="column")
        pm.Deterministic("twice", 2 * slopes, dims="column")
        seen = RNG.random(rows) < 0.4
        pm.Bernoulli("y", logit_p=x @ slopes + scale, observed=seen)
    return model


def sample(model, **kwargs):
    given = {"draws": 20, "tune": 40, "chains": 2, "random_seed": 5}
    given |= {"progressbar": False, "compute_convergence_checks": False}
    return pm.sample(model=model, **(given | kwargs))


def test_chains_of_a_block_are_those_of_nutpie():
    """PyMC takes nutpie by itself from 6.4 on; its chains are threads, on any cores."""
    model, before = logistic(301), nutpie.compile_pymc_model
    asked = {"nuts_sampler": "nutpie"}
    start = {"initvals": {"scale": 0.7}} if IS_NEW else {}
    expected = sample(model, **asked, **start)
    by_itself = {"cores": 2} if IS_NEW else asked
    with synk.session(2), synk.pymc.parallel(model, serial=False) as how:
        found = sample(model, **asked, **start)
        some = sample(model, **by_itself, **start, var_names=["twice"])
    assert nutpie.compile_pymc_model is before
    assert how.is_serial is False
    assert groups_of(found) == groups_of(expected)
    for idata, names in ((found, set(expected.posterior.data_vars)), (some, {"twice"})):
        assert names <= set(idata.posterior.data_vars)
        for group in ("posterior", "sample_stats"):
            assert idata[group].sizes == expected[group].sizes
        of_steps, stats = (each.sample_stats for each in (expected, idata))
        assert set(stats.data_vars) == set(of_steps.data_vars)
        np.testing.assert_array_equal(stats["n_steps"], of_steps["n_steps"])
        for name in names:
            values = expected.posterior[name]
            assert idata.posterior[name].dims == values.dims
            np.testing.assert_allclose(idata.posterior[name], values, atol=1e-6)
    assert "scale" not in some.posterior


def test_a_mode_that_is_named_computes():
    block = synk.pymc.parallel(logistic(101), serial=False, mode="OF_BLOCK")
    with synk.session(2), block:
        for asked in ("OF_BLOCK", "OF_SAMPLE"):
            given = {"mode": asked} if asked == "OF_SAMPLE" else {}
            with pytest.raises(Exception, match=asked):
                sample(None, nuts_sampler="nutpie", compile_kwargs=given)


def test_chains_side_by_side_by_themselves_have_all_cores(monkeypatch):
    """Ranks are left out for a few sums and products; their cores are nutpie's."""
    cores, seen = os.sched_getaffinity(0), []

    def compile_pymc_model(model, **_):
        seen.append(os.sched_getaffinity(0))
        raise KeyError("this is as far as it goes")

    monkeypatch.setattr(nutpie, "compile_pymc_model", compile_pymc_model)
    values = RNG.normal(size=30_000)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("slope") * values, observed=values)
    block = synk.pymc.parallel(model, mode=MODE)
    stops = pytest.raises(KeyError, match="as far as it goes")
    with synk.session(2), block as how, stops:
        sample(model, nuts_sampler="nutpie", cores=2)
    assert how.is_serial
    assert how.speed_up < 1
    assert seen == [cores]
