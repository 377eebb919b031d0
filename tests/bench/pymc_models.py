"""PyMC's models that are compared, with simulated data."""

from __future__ import annotations

import numpy as np
import pymc as pm

COLUMNS, GROUPS = 20, 500


def build(kind: str, rows: int) -> pm.Model:
    """Return a model of one of the kinds."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, COLUMNS))
    eta = x @ (rng.normal(size=COLUMNS) / COLUMNS**0.5)
    group = rng.integers(0, GROUPS, rows)
    with pm.Model() as model:
        predictor = x @ pm.Normal("slopes", shape=COLUMNS)
        if kind == "logistic":
            pm.Bernoulli("y", logit_p=predictor, observed=rng.random(rows) < 0.5)
        elif kind == "Poisson":
            pm.Poisson("y", pm.math.exp(predictor), observed=rng.poisson(np.exp(eta)))
        elif kind == "Student-t":
            nu, sigma = pm.Gamma("nu", 2, 0.1), pm.HalfNormal("sigma")
            seen = eta + rng.normal(size=rows)
            pm.StudentT("y", nu=nu, mu=predictor, sigma=sigma, observed=seen)
        elif kind == "negative binomial":
            alpha, mu = pm.Exponential("alpha", 1.0), pm.math.exp(predictor)
            seen = rng.poisson(np.exp(eta))
            pm.NegativeBinomial("y", mu=mu, alpha=alpha, observed=seen)
        else:
            effects = pm.Normal("effects", 0, pm.HalfNormal("spread"), shape=GROUPS)
            seen = eta + rng.normal(size=rows)
            mu = effects[group] + predictor
            pm.Normal("y", mu, pm.HalfNormal("sigma"), observed=seen)
    return model
