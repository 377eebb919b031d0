"""Models as PyMC's users write them, of few rows.

Each function builds one in its ``with`` block, of N rows, and G groups.
"""

from __future__ import annotations

import warnings

import numpy as np
import pymc as pm
import pytensor.tensor as pt

N, G = 53, 7

RNG = np.random.default_rng(20)
X = RNG.normal(size=(N, 3))
GROUP = RNG.integers(0, G, N)
Y = X @ [0.5, -0.3, 0.2] + 0.3 * RNG.normal(size=N) + 0.1 * GROUP
COUNTS = RNG.poisson(np.exp(0.4 * X[:, 0] + 0.5))
FLAGS = RNG.random(N) < 1 / (1 + np.exp(-X[:, 0]))
LEVELS = RNG.integers(0, 4, N)


def _slopes():
    return pm.Normal("slopes", 0, 2, shape=3)


def logistic():
    pm.Bernoulli("y", logit_p=pm.Normal("a") + X @ _slopes(), observed=FLAGS)


def poisson():
    pm.Poisson("y", pt.exp(X @ _slopes()), observed=COUNTS)


def student_t():
    nu = pm.Gamma("nu", 2, 0.1)
    pm.StudentT("y", nu, X @ _slopes(), sigma=pm.HalfNormal("sigma"), observed=Y)


def negative_binomial():
    alpha = pm.Exponential("alpha", 1.0)
    pm.NegativeBinomial("y", mu=pt.exp(X @ _slopes()), alpha=alpha, observed=COUNTS)


def by_group():
    spread = pm.HalfNormal("spread")
    effects = pm.Normal("effects", 0, spread, shape=G)
    pm.Normal("y", effects[GROUP] + X @ _slopes(), pm.HalfCauchy("s", 1), observed=Y)


def slopes_by_group_correlated():
    chol, _, _ = pm.LKJCholeskyCov(
        "chol", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0)
    )
    raw = pm.Normal("raw", shape=(2, G))
    effects = pt.dot(chol, raw).T
    mu = effects[GROUP, 0] + effects[GROUP, 1] * X[:, 0]
    pm.Normal("y", mu, 0.5, observed=Y)


def with_dims():
    model = pm.modelcontext(None)
    model.add_coords({"row": range(N), "column": list("abc"), "group": range(G)})
    x = pm.Data("x", X, dims=("row", "column"))
    group = pm.Data("group_of", GROUP, dims="row")
    slopes = pm.Normal("slopes", dims="column")
    effects = pm.ZeroSumNormal("effects", dims="group")
    mu = pm.Deterministic("mu", (x * slopes).sum(axis=-1) + effects[group], dims="row")
    pm.Normal("y", mu, pm.HalfNormal("s"), observed=pm.Data("seen", Y), dims="row")


def groups_as_many_as_rows():
    """A covariate of groups, as long as the data: another dimension."""
    z = np.linspace(-1, 1, N)
    effects = pm.Normal("effects", z * pm.Normal("of_z"), 1, shape=N)
    pm.Normal("y", effects[np.minimum(GROUP, N - 1)] + X @ _slopes(), 1, observed=Y)


def latent_per_row():
    z = pm.Normal("z", shape=N)
    pm.Poisson("y", pt.exp(X @ _slopes() + pm.HalfNormal("s") * z), observed=COUNTS)


def several_likelihoods():
    slopes, sigma = _slopes(), pm.HalfNormal("sigma")
    pm.Normal("first", X @ slopes, sigma, observed=Y)
    more = np.random.default_rng(3).normal(size=(31, 3))
    pm.Normal("second", more @ slopes, 2 * sigma, observed=more[:, 0])


def censored():
    latent = pm.Normal.dist(X @ _slopes(), pm.HalfNormal("sigma"))
    pm.Censored("y", latent, lower=-0.5, upper=1.0, observed=np.clip(Y, -0.5, 1.0))


def truncated():
    latent = pm.Normal.dist(X @ _slopes(), pm.HalfNormal("sigma"))
    pm.Truncated("y", latent, lower=-4.0, observed=Y)


def zero_inflated():
    psi = pm.Beta("psi", 2, 2)
    seen = COUNTS * (GROUP > 1)
    pm.ZeroInflatedPoisson("y", psi, pt.exp(X @ _slopes()), observed=seen)


def hurdle():
    psi = pm.Beta("psi", 2, 2)
    pm.HurdlePoisson("y", psi, pt.exp(X @ _slopes()), observed=COUNTS * (GROUP > 1))


def ordinal():
    ordered = pm.distributions.transforms.ordered
    cuts = pm.Normal("cuts", np.arange(3) - 1.0, 2, transform=ordered, shape=3)
    pm.OrderedLogistic("y", eta=X @ _slopes(), cutpoints=cuts, observed=LEVELS)


def categorical():
    slopes = pm.Normal("slopes", shape=(3, 4))
    pm.Categorical("y", logit_p=X @ slopes, observed=LEVELS)


def mixture():
    weights = pm.Dirichlet("weights", np.ones(3))
    means = pm.Normal("means", [-1, 0, 1], 1, shape=3)
    sigma = pm.HalfNormal("sigma", shape=3)
    pm.NormalMixture("y", weights, mu=means, sigma=sigma, observed=Y)


def mixture_of_counts():
    weights = pm.Dirichlet("weights", np.ones(2))
    parts = [
        pm.NegativeBinomial.dist(
            mu=pt.exp(X @ _slopes()), alpha=pm.HalfNormal("alpha")
        ),
        pm.Poisson.dist(pm.Exponential("rate", 1.0)),
    ]
    pm.Mixture("y", weights, parts, observed=pm.Data("seen", COUNTS))


def multivariate():
    chol, _, _ = pm.LKJCholeskyCov(
        "chol", n=3, eta=1.0, sd_dist=pm.Exponential.dist(1.0)
    )
    pm.MvNormal("y", pm.Normal("mu", shape=3), chol=chol, observed=X)


def with_potential():
    slopes = _slopes()
    z = (Y - X @ slopes) / pm.HalfNormal("sigma")
    pm.Potential("huber", -pt.switch(abs(z) < 1, 0.5 * z**2, abs(z) - 0.5))
    pm.Potential("of_slopes", -(slopes**2).sum())


def imputed():
    seen = Y.copy()
    seen[[3, 11, 40]] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pm.Normal("y", X @ _slopes(), pm.HalfNormal("sigma"), observed=seen)


def beta_binomial():
    a, b = pm.HalfNormal("a", 2), pm.HalfNormal("b", 2)
    pm.BetaBinomial("y", a, b, n=20, observed=np.minimum(COUNTS, 20))


def by_row_and_column():
    """Observed values with two axes, of which one has the rows."""
    loadings = pm.Normal("loadings", shape=3)
    scores = pm.Normal("scores", shape=N)
    pm.Normal("y", scores[:, None] * loadings, pm.HalfNormal("s", shape=3), observed=X)


def autoregression():
    """What was seen before is data as well."""
    rho = pm.Uniform("rho", -1, 1)
    pm.AR(
        "y",
        [pm.Normal("level"), rho],
        sigma=pm.HalfNormal("s"),
        constant=True,
        observed=Y,
    )


def weibull_survival():
    alpha, eta = pm.HalfNormal("alpha", 2), pt.exp(X @ _slopes())
    times, died = np.exp(Y), FLAGS
    pm.Weibull("died", alpha, eta[died], observed=times[died])
    pm.Potential("alive", -((times[~died] / eta[~died]) ** alpha))


ALL = (
    *(logistic, poisson, student_t, negative_binomial, by_group),
    *(slopes_by_group_correlated, with_dims, groups_as_many_as_rows, latent_per_row),
    *(several_likelihoods, censored, truncated, zero_inflated, hurdle, ordinal),
    *(categorical, mixture, mixture_of_counts, multivariate, with_potential, imputed),
    *(beta_binomial, by_row_and_column, autoregression, weibull_survival),
)


def made(build) -> pm.Model:
    with pm.Model() as model:
        build()
    return model
