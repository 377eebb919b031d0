"""Models whose entries lie in another arrangement than their data.

They are repeated, tiled, flattened, reshaped, rolled, joined from strata, or products
that `einsum` names.
"""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor.tensor as pt

RNG = np.random.default_rng(34)
N, G, K = 44, 11, 4
X, Y = RNG.normal(size=(N, 3)), RNG.normal(size=N)
WIDE = RNG.normal(size=(N, 2, 5))
GROUP = RNG.integers(0, K, N)


def likelihood(mu, seen=Y):
    pm.Normal("y", mu, pm.HalfNormal("s"), observed=seen)


def rows():
    slopes, each = pm.Normal("slopes", shape=3), pm.Normal("each", shape=(3, K))
    theta, panel = pm.Normal("theta", shape=G), pm.Normal("panel", shape=(G, K))
    mu = X @ slopes + pt.repeat(X[:G] @ slopes**2, K) * pt.repeat(theta, K)
    mu = mu + pt.tile(X[:G] @ slopes**3, K) * pt.tile(theta, K)
    mu = mu + (X[:G] @ each + panel).flatten() * (X[:G] @ each).T.flatten()
    likelihood(mu)


def products():
    slopes, each = pm.Normal("slopes", shape=3), pm.Normal("each", shape=(3, 2))
    weights, level = pm.Normal("weights", shape=5), pm.Normal("level", shape=(K, 3))
    mu = pt.einsum("nak,k->na", WIDE, weights) + pt.einsum("nk,kj->nj", X, each)
    mu = mu + pt.einsum("nk,nk->n", X, level[GROUP])[:, None]
    mu = mu + pt.einsum("nak,a,k->n", WIDE, slopes[:2], weights)[:, None]
    likelihood(mu, WIDE[:, :, 0])


def groups():
    """Each of G groups has K rows."""
    slopes, theta = pm.Normal("slopes", shape=3), pm.Normal("theta", shape=G)
    by_group = (X @ slopes).reshape((G, K))
    mu = by_group * theta[:, None] + pm.Normal("column", shape=K)
    mu = mu + by_group.sum(axis=1)[:, None]
    likelihood(mu, Y.reshape(G, K))


def strata():
    """The second has 24 rows; the first is computed by all ranks."""
    slopes, level = pm.Normal("slopes", shape=3), pm.Normal("level", shape=2)
    first, second = X[:20] @ slopes + level[0], pt.exp(X[20:] @ slopes + level[1])
    sigma = pm.HalfNormal("sigma", shape=2)
    spread = pt.concatenate([pt.ones(20) * sigma[0], pt.ones(24) * sigma[1]])
    pm.Normal("y", pt.concatenate([first, second]), spread, observed=Y)


def strata_of_flags():
    slopes, level = pm.Normal("slopes", shape=3), pm.Normal("level", shape=2)
    logits = pt.concatenate([X[:20] @ slopes + level[0], X[20:] @ slopes * level[1]])
    pm.Bernoulli("y", logit_p=logits, observed=Y > 0)


def rolled():
    predicted = X @ pm.Normal("slopes", shape=3)
    likelihood(predicted + 0.3 * pt.roll(predicted, 1))


def partial_likelihood():
    """Cox's: of those who are at risk when a row's event happens, which come after."""
    risk = X @ pm.Normal("slopes", shape=3) + pm.Normal("frailty", shape=K)[GROUP]
    at_risk = pt.cumsum(pt.exp(risk)[::-1])[::-1]
    happened = Y > 0
    pm.Potential("y", (happened * (risk - pt.log(at_risk))).sum())


ROWS = {rows: N, products: N, groups: G, strata: 24, rolled: N - 1}
"""Models that need no rows of others, and how many rows they have."""
