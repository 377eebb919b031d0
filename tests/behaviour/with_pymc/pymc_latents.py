"""Models with latent values along the rows: walks, columns of length 1, discrete ones.

Some need all rows of a state at once, on every rank; what follows from it goes by rows.
"""

from __future__ import annotations

import numpy as np
import pymc as pm
import pytensor
import pytensor.sparse as ps
import pytensor.tensor as pt
import scipy.sparse

N, G = 12, 3
RNG = np.random.default_rng(11)
X, Y = RNG.normal(size=(N, 3)), RNG.normal(size=N)
COUNTS = RNG.poisson(2, N)
GROUP = np.sort(RNG.integers(0, G, N))


def _s(name="s"):
    return pm.HalfNormal(name)


def local_level(n=N):
    pm.Normal("y", pt.cumsum(pm.Normal("e", shape=n)), _s(), observed=Y[:n])


def walk(n=N):
    start = pm.Normal.dist(0, 1)
    state = pm.GaussianRandomWalk("w", sigma=_s("sw"), init_dist=start, shape=n)
    pm.Normal("y", state, _s(), observed=Y[:n])


def panel_with_time_last():
    steps = pm.Normal("e", shape=(3, N))
    pm.Normal("y", pt.cumsum(steps, axis=1) * _s("sw"), _s(), observed=X.T)


def autoregression():
    rho = pm.Normal("rho", 0, 0.3, shape=2)
    first = pm.Normal.dist(0, 1, shape=2)
    state = pm.AR("state", rho, sigma=_s("sa"), init_dist=first, shape=N)
    pm.Normal("y", state, _s(), observed=Y)


def repeated_by_counts():
    effects = pm.Normal("effects", shape=G)
    repeated = pt.repeat(effects, np.bincount(GROUP, minlength=G))
    pm.Normal("y", repeated, _s(), observed=Y)


def picked_by_a_sparse_matrix():
    entries = np.ones(N), (np.arange(N), GROUP)
    picks = ps.as_sparse_variable(scipy.sparse.csr_matrix(entries, shape=(N, G)))
    effects = pm.Normal("effects", shape=(G, 1))
    pm.Normal("y", ps.structured_dot(picks, effects)[:, 0], _s(), observed=Y)


def column_added_up():
    state = pt.cumsum(pm.Normal("z", shape=(N, 1)), axis=0)
    pm.Normal("y", state * X, _s(), observed=X)


def column_of_two_added_up():
    state = pt.cumsum(pm.Normal("z", shape=(N, 2, 1)), axis=0)
    seen = RNG.normal(size=(N, 2, 3))
    pm.Normal("y", state + X[:, None], _s(), observed=seen)


def classes(n=N):
    of_row = pm.Bernoulli("k", pm.Beta("p", 1, 1), shape=n)
    pm.Normal("y", pm.Normal("m", shape=2)[of_row], _s(), observed=Y[:n])


def occupancy():
    chance = pm.math.invlogit(X @ pm.Normal("b", shape=3))
    of_row = pm.Bernoulli("z", chance[:, None], shape=(N, 1))
    seen = RNG.random((N, 4)) < 0.4
    pm.Bernoulli("y", of_row * pm.Beta("p", 1, 1) * 0.9 + 0.01, observed=seen)


def classes_added_up():
    """What has been seen of a discrete value so far: all rows are needed."""
    of_row = pm.Bernoulli("k", 0.4, shape=(N, 1))
    pm.Normal("y", pt.cumsum(of_row, axis=0) * X * pm.Normal("m"), _s(), observed=X)


def effects_that_add_up_to_zero(n=N):
    pm.Normal("y", pm.ZeroSumNormal("z", _s("sz"), shape=n), _s(), observed=Y[:n])


def effects_that_add_up_to_zero_in_each_row():
    pm.Normal("y", pm.ZeroSumNormal("z", _s("sz"), shape=(N, 3)), _s(), observed=X)


def shares_of_all_rows():
    shares = pm.Dirichlet("shares", np.ones(N) * pm.HalfNormal("alpha"))
    pm.Poisson("y", shares * pm.HalfNormal("all", 20), observed=COUNTS)


def _neighbours() -> np.ndarray:
    beside = np.eye(N, k=1)
    return beside + beside.T


def areas_beside_each_other():
    given = {"alpha": pm.Beta("alpha", 1, 1), "tau": pm.Gamma("tau", 2, 1)}
    of_row = pm.CAR("f", mu=np.zeros(N), W=_neighbours(), **given)
    rate = pt.exp(of_row * _s() + X @ pm.Normal("b", shape=3))
    pm.Poisson("y", rate, observed=COUNTS)


def covariances_by_row():
    roots = RNG.normal(size=(N, 3, 3))
    cov = roots @ roots.transpose(0, 2, 1) + np.eye(3)
    mu = pm.Normal("mu", shape=3)
    pm.MvNormal("y", mu=mu, cov=cov + _s() * np.eye(3), observed=X)


def _scanned(step, sequences, first, others):
    found = pytensor.scan(step, sequences, [first], others)
    return found[0] if isinstance(found, (tuple, list)) else found


def learning_of_subjects():
    """Trials come one after the other, subjects lie beside each other."""
    chosen, rewards = RNG.integers(0, 2, (2, 5, N))

    def step(choice, reward, values, rate):
        is_chosen = pt.stack([1 - choice, choice], axis=1)
        return values + rate[:, None] * is_chosen * (reward[:, None] - values)

    given = pt.as_tensor(chosen), pt.as_tensor(rewards)
    rate = pm.Beta("rate", 1, 1, shape=N)
    values = _scanned(step, given, pt.zeros((N, 2), dtype="float64"), [rate])
    odds = (values[:-1, :, 1] - values[:-1, :, 0]) * _s("steep")
    pm.Bernoulli("y", logit_p=odds, observed=chosen[1:])


def variances_of_series():
    seen = RNG.normal(size=(5, N))
    weight, base = pm.Beta("weight", 1, 1, shape=N), pm.HalfNormal("base")

    def step(before, variance, weight, base):
        return base + weight * before**2 + 0.3 * variance

    first = pt.ones(N, dtype="float64")
    found = _scanned(step, [pt.as_tensor(seen[:-1])], first, [weight, base])
    pm.Normal("y", 0, pt.sqrt(found), observed=seen[1:])


def hidden_states_of_subjects():
    """The forward algorithm, of as many subjects at a time as there are rows."""
    seen = RNG.normal(size=(5, N))
    means, moves = pm.Normal("means", shape=2), pm.Dirichlet("moves", np.ones((2, 2)))
    fits = -0.5 * (pt.as_tensor(seen)[:, :, None] - means) ** 2

    def step(fit, before, moves):
        return fit + pt.logsumexp(before[:, :, None] + moves[None], axis=1)

    found = _scanned(step, [fits[1:]], fits[0] - np.log(2), [pt.log(moves)])
    pm.Potential("y", pt.logsumexp(found[-1], axis=1).sum())


ALL = (
    *(local_level, column_added_up),
    *(classes, shares_of_all_rows, effects_that_add_up_to_zero),
    *(effects_that_add_up_to_zero_in_each_row, learning_of_subjects),
    *(variances_of_series, hidden_states_of_subjects),
    *(areas_beside_each_other, covariances_by_row),
    *(walk, panel_with_time_last, autoregression),
    *(repeated_by_counts, picked_by_a_sparse_matrix, column_of_two_added_up),
    *(occupancy, classes_added_up),
)
