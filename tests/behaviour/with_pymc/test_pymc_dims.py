"""Models of ``pymc.dims``, whose variables are xtensors, by ranks."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

pm = pytest.importorskip("pymc", reason="these tests are of synk with PyMC")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyTensor calls its xtensors experimental
    pmd = pytest.importorskip("pymc.dims")
    import pytensor.xtensor as ptx
    import pytensor.xtensor.signal  # noqa: F401

import pytensor.tensor as pt  # noqa: E402
from comparing import MODE, assert_equal, density, plain, points  # noqa: E402

import synk  # noqa: E402

DATES, GEOS = 53, ["north", "south", "east", "west"]
RNG = np.random.default_rng(34)
SPENT = RNG.random((DATES, len(GEOS), 3))
SOLD = RNG.normal(size=(DATES, len(GEOS)))
COORDS = {
    "date": np.arange(DATES),
    "geo": GEOS,
    "channel": ["tv", "radio", "web"],
    "season": ["sin", "cos"],
}


def saturated(x, slope):
    return (1 - ptx.math.exp(-slope * x)) / (1 + ptx.math.exp(-slope * x))


def carried_over(x, kept, weeks=4):
    """Geometric adstock: what was spent in a week works on in the next ones."""
    lags = ptx.as_xtensor(pt.arange(weeks, dtype="float64"), dims=("lag",))
    before = ptx.as_xtensor(pt.zeros(weeks - 1), dims=("date",))
    padded = ptx.concat([before, x], dim="date")
    weights = kept**lags / (kept**lags).sum("lag")
    return ptx.signal.convolve1d(padded, weights, dims=("date", "lag"), mode="valid")


def one_market():
    spent = pmd.Data("spent", SPENT[:, 0], dims=("date", "channel"))
    slope = pmd.Gamma("slope", alpha=3, beta=1, dims="channel")
    spent = carried_over(spent, pmd.Beta("kept", alpha=1, beta=3, dims="channel"))
    media = pmd.HalfNormal("gain", dims="channel") * saturated(spent, slope)
    season = pmd.Data("seasons", SOLD[:, :2], dims=("date", "season"))
    mu = media.sum("channel") + ptx.dot(season, pmd.Normal("g", dims="season"))
    seen = pmd.Data("seen", SOLD[:, 0], dims="date")
    pmd.StudentT("y", nu=4, mu=mu, sigma=pmd.HalfNormal("s"), observed=seen)


def panel():
    spent = pmd.Data("spent", SPENT, dims=("date", "geo", "channel"))
    kept = pmd.Beta("kept", alpha=1, beta=3, dims=("geo", "channel"))
    spent = carried_over(saturated(spent, 2.0), kept)
    spread = pmd.HalfNormal("spread", dims="channel")
    gain = pmd.Normal("gain", 0, spread, dims=("geo", "channel"))
    level = pmd.ZeroSumNormal("level", core_dims="geo", dims="geo")
    mu = level + ptx.dot(spent, gain, dim="channel")
    seen = pmd.as_xtensor(SOLD.T, dims=("geo", "date"))
    pmd.Normal("y", mu.transpose("geo", "date"), 0.5, observed=seen)


def groups_and_a_latent_of_each_row():
    where = pmd.Data("where", RNG.integers(0, 4, DATES), dims="date")
    noise = pmd.Normal("noise", dims="date")
    level = pmd.Normal("level", dims="geo").isel(geo=where)
    seen = pmd.Data("times", RNG.exponential(2, DATES), dims="date")
    pmd.Exponential("y", ptx.math.exp(level + 0.1 * noise), observed=seen)


def categories():
    spent = pmd.Data("spent", SPENT[:, 0], dims=("date", "channel"))
    logits = ptx.dot(spent, pmd.Normal("b", dims=("channel", "geo")), dim="channel")
    chosen = pmd.as_xtensor(RNG.integers(0, 4, DATES), dims=("date",))
    pmd.Categorical("y", logit_p=logits, core_dims="geo", observed=chosen)


MODELS = one_market, panel, groups_and_a_latent_of_each_row, categories


@pytest.fixture(scope="module")
def made():
    models = []
    for build in MODELS:
        with pm.Model(coords=COORDS) as model:
            build()
        models.append(model)
    return [(density(model), plain(model), model) for model in models]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_models_of_dims_go_by_their_dates(made, ranks):
    with synk.session(ranks):
        for by_ranks, serial, _ in made:
            assert not by_ranks.refused
            assert not by_ranks.exchanged
            assert by_ranks.rows == DATES
            assert_equal(by_ranks, serial, points(by_ranks.start, 3))


def test_data_of_dims_that_are_set_anew_are_followed(made):
    by_ranks, serial, model = made[0]
    rng = np.random.default_rng(1)
    with synk.session(2), model:
        for n in (20, DATES):
            new = {"spent": rng.random((n, 3)), "seasons": rng.normal(size=(n, 2))}
            pm.set_data(new | {"seen": rng.normal(size=n)}, coords={"date": range(n)})
            assert_equal(by_ranks, serial, points(by_ranks.start, 3))
            assert by_ranks.rows == n


def test_steps_of_pymc_get_the_density_of_a_model_of_dims(made):
    _, serial, model = made[0]
    with synk.session(2), synk.pymc.parallel(model, serial=False, quiet=True) as how:
        found = model.logp_dlogp_function(ravel_inputs=True, mode=MODE)
        assert how.is_serial is False
        for point in points(np.zeros(12), 3):
            (logp, gradient), (expected, right) = found(point), serial(point)
            np.testing.assert_allclose(logp, expected, rtol=1e-12)
            np.testing.assert_allclose(gradient, right, rtol=1e-10)
