"""Models of ``pymc.dims``, whose variables are xtensors."""

import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyTensor calls its xtensors experimental
    import pymc.dims as pmd
    import pytensor.xtensor as ptx
    import pytensor.xtensor.signal  # noqa: F401

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


def made(build) -> pm.Model:
    with pm.Model(coords=COORDS) as model:
        build()
    return model
