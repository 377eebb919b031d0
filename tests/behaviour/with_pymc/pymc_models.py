"""Models as PyMC's users write them, of few rows.

Each function builds one in its ``with`` block, of N rows and G groups; those with
latent values along the rows are of M rows, and arranged ones of groups of K.
"""

import warnings

import numpy as np
import pymc as pm
import pytensor
import pytensor.sparse as ps
import pytensor.tensor as pt
import scipy.sparse

N, G = 53, 7

RNG = np.random.default_rng(20)
X = RNG.normal(size=(N, 3))
GROUP = RNG.integers(0, G, N)
Y = X @ [0.5, -0.3, 0.2] + 0.3 * RNG.normal(size=N) + 0.1 * GROUP
COUNTS = RNG.poisson(np.exp(0.4 * X[:, 0] + 0.5))
FLAGS = RNG.random(N) < 1 / (1 + np.exp(-X[:, 0]))
LEVELS = RNG.integers(0, 4, N)


def made(build) -> pm.Model:
    with warnings.catch_warnings(), pm.Model() as model:
        warnings.simplefilter("ignore")  # PyMC tells of imputed values
        build()
    return model


def _slopes():
    return pm.Normal("slopes", 0, 2, shape=3)


def _s(name="s"):
    return pm.HalfNormal(name)


def logistic():
    pm.Bernoulli("y", logit_p=pm.Normal("a") + X @ _slopes(), observed=FLAGS)


def poisson():
    pm.Poisson("y", pt.exp(X @ _slopes()), observed=COUNTS)


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


def censored():
    latent = pm.Normal.dist(X @ _slopes(), _s())
    pm.Censored("y", latent, lower=-0.5, upper=1.0, observed=np.clip(Y, -0.5, 1.0))


def truncated():
    latent = pm.Normal.dist(X @ _slopes(), _s())
    pm.Truncated("y", latent, lower=-4.0, observed=Y)


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
    pm.Normal("y", X @ _slopes(), _s(), observed=seen)


def imputed_in_a_matrix():
    seen = np.where(RNG.random((N, 3)) < 0.2, np.nan, X)
    loadings = pm.Normal("loadings", shape=(3, 3))
    pm.Normal("x", X @ loadings, pm.HalfNormal("s", shape=3), observed=seen)


def by_row_and_column():
    """Observed values with two axes, of which one has the rows."""
    loadings = pm.Normal("loadings", shape=3)
    scores = pm.Normal("scores", shape=N)
    pm.Normal("y", scores[:, None] * loadings, pm.HalfNormal("s", shape=3), observed=X)


def of_ones_own():
    logp = lambda value, mu: -((value - mu) ** 2)  # noqa: E731
    pm.CustomDist("y", X @ _slopes(), logp=logp, observed=Y)


def process_of_basis_functions():
    cov = pm.gp.cov.ExpQuad(1, ls=pm.HalfNormal("length"))
    process = pm.gp.HSGP(m=[5], c=1.5, cov_func=cov)
    pm.Poisson("y", pt.exp(process.prior("f", X=X[:, :1])), observed=COUNTS)


def weibull_survival():
    alpha, eta = pm.HalfNormal("alpha", 2), pt.exp(X @ _slopes())
    times, died = np.exp(Y), FLAGS
    pm.Weibull("died", alpha, eta[died], observed=times[died])
    pm.Potential("alive", -((times[~died] / eta[~died]) ** alpha))


USERS = (
    *(logistic, poisson, by_group, slopes_by_group_correlated, with_dims),
    *(groups_as_many_as_rows, latent_per_row, censored, truncated, hurdle, ordinal),
    *(categorical, mixture, mixture_of_counts, multivariate, with_potential, imputed),
    *(by_row_and_column, of_ones_own, process_of_basis_functions, weibull_survival),
    imputed_in_a_matrix,
)


# -- latent values along the rows: walks, columns of length 1, discrete ones
#
# Some need all rows of a state at once, on every rank; what follows from it goes by
# rows.

M = 13
XM, YM, SEEN = X[:M], Y[:M], COUNTS[:M]
OF_ROW = np.sort(RNG.integers(0, 3, M))


def local_level(n=M):
    pm.Normal("y", pt.cumsum(pm.Normal("e", shape=n)), _s(), observed=YM[:n])


def walk():
    start = pm.Normal.dist(0, 1)
    state = pm.GaussianRandomWalk("w", sigma=_s("sw"), init_dist=start, shape=M)
    pm.Normal("y", state, _s(), observed=YM)


def autoregression():
    rho = pm.Normal("rho", 0, 0.3, shape=2)
    first = pm.Normal.dist(0, 1, shape=2)
    state = pm.AR("state", rho, sigma=_s("sa"), init_dist=first, shape=M)
    pm.Normal("y", state, _s(), observed=YM)


def repeated_by_counts():
    effects = pm.Normal("effects", shape=3)
    repeated = pt.repeat(effects, np.bincount(OF_ROW, minlength=3))
    pm.Normal("y", repeated, _s(), observed=YM)


def season():
    each = pm.Normal("each", shape=4)
    pm.Normal("y", pt.tile(each, 4)[:M] + XM @ _slopes(), _s(), observed=YM)


def picked_by_a_sparse_matrix():
    entries = np.ones(M), (np.arange(M), OF_ROW)
    picks = ps.as_sparse_variable(scipy.sparse.csr_matrix(entries, shape=(M, 3)))
    effects = pm.Normal("effects", shape=(3, 1))
    pm.Normal("y", ps.structured_dot(picks, effects)[:, 0], _s(), observed=YM)


def column_added_up():
    state = pt.cumsum(pm.Normal("z", shape=(M, 1)), axis=0)
    pm.Normal("y", state * XM, _s(), observed=XM)


def classes(n=M):
    of_row = pm.Bernoulli("k", pm.Beta("p", 1, 1), shape=n)
    pm.Normal("y", pm.Normal("m", shape=2)[of_row], _s(), observed=YM[:n])


def occupancy():
    chance = pm.math.invlogit(XM @ pm.Normal("b", shape=3))
    of_row = pm.Bernoulli("z", chance[:, None], shape=(M, 1))
    seen = RNG.random((M, 4)) < 0.4
    pm.Bernoulli("y", of_row * pm.Beta("p", 1, 1) * 0.9 + 0.01, observed=seen)


def effects_that_add_up_to_zero():
    pm.Normal("y", pm.ZeroSumNormal("z", _s("sz"), shape=M), _s(), observed=YM)


def effects_that_add_up_to_zero_in_each_row():
    pm.Normal("y", pm.ZeroSumNormal("z", _s("sz"), shape=(M, 3)), _s(), observed=XM)


def shares_of_all_rows():
    shares = pm.Dirichlet("shares", np.ones(M) * pm.HalfNormal("alpha"))
    pm.Poisson("y", shares * pm.HalfNormal("all", 20), observed=SEEN)


def areas_beside_each_other():
    beside = np.eye(M, k=1) + np.eye(M, k=-1)
    given = {"alpha": pm.Beta("alpha", 1, 1), "tau": pm.Gamma("tau", 2, 1)}
    of_row = pm.CAR("f", mu=np.zeros(M), W=beside, **given)
    rate = pt.exp(of_row * _s() + XM @ pm.Normal("b", shape=3))
    pm.Poisson("y", rate, observed=SEEN)


def covariances_by_row():
    roots = RNG.normal(size=(M, 3, 3))
    cov = roots @ roots.transpose(0, 2, 1) + np.eye(3)
    mu = pm.Normal("mu", shape=3)
    pm.MvNormal("y", mu=mu, cov=cov + _s() * np.eye(3), observed=XM)


def learning_of_subjects():
    """Trials come one after the other, subjects lie beside each other."""
    chosen, rewards = RNG.integers(0, 2, (2, 5, M))

    def step(choice, reward, values, rate):
        is_chosen = pt.stack([1 - choice, choice], axis=1)
        return values + rate[:, None] * is_chosen * (reward[:, None] - values)

    given = pt.as_tensor(chosen), pt.as_tensor(rewards)
    rate = pm.Beta("rate", 1, 1, shape=M)
    found = pytensor.scan(step, given, [pt.zeros((M, 2), dtype="float64")], [rate])
    values = found[0] if isinstance(found, (tuple, list)) else found
    odds = (values[:-1, :, 1] - values[:-1, :, 0]) * _s("steep")
    pm.Bernoulli("y", logit_p=odds, observed=chosen[1:])


LATENTS = (
    *(local_level, column_added_up, classes, shares_of_all_rows),
    *(effects_that_add_up_to_zero, effects_that_add_up_to_zero_in_each_row),
    *(learning_of_subjects, areas_beside_each_other, covariances_by_row),
    *(autoregression, repeated_by_counts, picked_by_a_sparse_matrix, occupancy),
    season,
)


# -- entries in another arrangement than their data
#
# They are repeated, tiled, flattened, reshaped, rolled, joined from strata, or products
# that `einsum` names.

P, K = 11, 4
XP, YP = X[: P * K], Y[: P * K]
WIDE = RNG.normal(size=(P * K, 2, 5))
OF_FOUR = RNG.integers(0, K, P * K)


def likelihood(mu, seen=YP):
    pm.Normal("y", mu, _s(), observed=seen)


def rows():
    slopes, each = pm.Normal("slopes", shape=3), pm.Normal("each", shape=(3, K))
    theta, panel = pm.Normal("theta", shape=P), pm.Normal("panel", shape=(P, K))
    mu = XP @ slopes + pt.repeat(XP[:P] @ slopes**2, K) * pt.repeat(theta, K)
    mu = mu + pt.tile(XP[:P] @ slopes**3, K) * pt.tile(theta, K)
    mu = mu + (XP[:P] @ each + panel).flatten() * (XP[:P] @ each).T.flatten()
    likelihood(mu)


def products():
    slopes, each = pm.Normal("slopes", shape=3), pm.Normal("each", shape=(3, 2))
    weights, level = pm.Normal("weights", shape=5), pm.Normal("level", shape=(K, 3))
    mu = pt.einsum("nak,k->na", WIDE, weights) + pt.einsum("nk,kj->nj", XP, each)
    mu = mu + pt.einsum("nk,nk->n", XP, level[OF_FOUR])[:, None]
    mu = mu + pt.einsum("nak,a,k->n", WIDE, slopes[:2], weights)[:, None]
    likelihood(mu, WIDE[:, :, 0])


def groups():
    """Each of P groups has K rows."""
    slopes, theta = pm.Normal("slopes", shape=3), pm.Normal("theta", shape=P)
    by_group = (XP @ slopes).reshape((P, K))
    mu = by_group * theta[:, None] + pm.Normal("column", shape=K)
    mu = mu + by_group.sum(axis=1)[:, None]
    likelihood(mu, YP.reshape(P, K))


def strata():
    """The second has 24 rows; the first is computed by all ranks."""
    slopes, level = pm.Normal("slopes", shape=3), pm.Normal("level", shape=2)
    first, second = XP[:20] @ slopes + level[0], pt.exp(XP[20:] @ slopes + level[1])
    sigma = pm.HalfNormal("sigma", shape=2)
    spread = pt.concatenate([pt.ones(20) * sigma[0], pt.ones(24) * sigma[1]])
    pm.Normal("y", pt.concatenate([first, second]), spread, observed=YP)


def rolled():
    predicted = XP @ pm.Normal("slopes", shape=3)
    likelihood(predicted + 0.3 * pt.roll(predicted, 1))


def partial_likelihood():
    """Cox's: of those who are at risk when a row's event happens, which come after."""
    risk = XP @ pm.Normal("slopes", shape=3) + pm.Normal("frailty", shape=K)[OF_FOUR]
    at_risk = pt.cumsum(pt.exp(risk)[::-1])[::-1]
    happened = YP > 0
    pm.Potential("y", (happened * (risk - pt.log(at_risk))).sum())


ARRANGED = {rows: P * K, products: P * K, groups: P, strata: 24, rolled: P * K - 1}
"""Models that need no rows of others, and how many rows they have."""
