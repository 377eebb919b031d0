"""Terms whose entries lie in another arrangement than their data, by ranks.

They are repeated, tiled, flattened, reshaped, rolled, joined from strata, or products
that `einsum` names.
"""

from __future__ import annotations

import numpy as np
import pytest

pm = pytest.importorskip("pymc", reason="these tests are of synk with PyMC")

import pytensor.tensor as pt  # noqa: E402
from comparing import assert_equal, density, plain, points  # noqa: E402

import synk  # noqa: E402

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


MODELS = {
    rows: N,
    products: N,
    groups: G,
    strata: 24,
    rolled: N - 1,
    partial_likelihood: N,
}


@pytest.fixture(scope="module")
def made():
    found = []
    for build, n in MODELS.items():
        with pm.Model() as model:
            build()
        found.append((build, density(model), plain(model), n))
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_what_is_arranged_anew_goes_by_rows(made, ranks):
    with synk.session(ranks):
        for build, by_ranks, serial, n in made:
            assert not by_ranks.refused
            if build is partial_likelihood:  # the sums up to each row are of all rows
                assert "Cumsum" in by_ranks.exchanged[0]
            else:
                assert not by_ranks.exchanged
            assert by_ranks.rows == n
            assert_equal(by_ranks, serial, points(by_ranks.start, 3), rtol=1e-11)
