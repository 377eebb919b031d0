"""Log-densities as PyMC 5 writes them, with priors, and gradients of all of it.

Its logp functions check parameters by an Op around rows, ``Check{sigma > 0}(logp)``,
have -inf outside of a density's support, and give what they return the shape of the
data by ``Alloc``.
"""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
from placement_cases import LABELS, X, Y
from pytensor.raise_op import CheckAndRaise

MU = pytensor.shared(0.2, "mu")
LOG_SIGMA = pytensor.shared(-0.3, "log_sigma")
SLOPES = pytensor.shared(np.array([0.4, -0.2, 0.3]), "slopes")
PACKED = pytensor.shared(np.array([0.2, -0.4, 0.3, 0.5, -0.1, 0.1]), "packed")
LOGITS = pytensor.shared(np.array([0.3, -0.5]), "logits")
CUTS = pytensor.shared(np.array([-0.7, 0.1]), "cuts")

SIGMA = pt.exp(LOG_SIGMA)
ETA = X @ SLOPES


def densities():
    """Yield each density with its prior and gradients, in one vector; and some rows."""
    yield "normal density of rows", _as_long(normal(Y, MU, SIGMA))
    yield "mixture density of rows", mixture(Y, pt.as_tensor([0.4, 0.6, 0.0]))
    priors = normal(MU, 0.0, 10.0) + half_normal(SIGMA) + LOG_SIGMA
    slopes = normal(SLOPES, 0.0, 1.0).sum()
    weights, stick = _simplex(LOGITS)
    for name, of_rows, prior, params in [
        ("normal", _as_long(normal(Y, MU, SIGMA)), priors, [MU, LOG_SIGMA]),
        ("student-t", _as_long(student_t(Y, SIGMA + 2)), priors, [MU, LOG_SIGMA]),
        ("beta-binomial", beta_binomial(LABELS, SIGMA), priors, [MU, LOG_SIGMA]),
        (
            "negative binomial",
            _as_long(negative_binomial(LABELS, pt.exp(ETA), SIGMA)),
            slopes + half_normal(SIGMA) + LOG_SIGMA,
            [SLOPES, LOG_SIGMA],
        ),
        ("multivariate normal", _as_long(by_cholesky()), slopes, [SLOPES, PACKED]),
        (
            "mixture of normals",
            mixture(Y, weights),
            dirichlet(weights, np.ones(3)) + stick + slopes,
            [SLOPES, LOGITS, LOG_SIGMA],
        ),
        (
            "mixture with a weight of zero",
            mixture(Y, pt.as_tensor([0.4, 0.6, 0.0])),
            slopes,
            [SLOPES, LOG_SIGMA],
        ),
        ("ordered logistic", _as_long(ordered_logistic()), slopes, [SLOPES, CUTS]),
    ]:
        yield name, _with_gradients(of_rows.sum() + prior, params)


def of_rows_by_rows():
    """Yield a density with the diagonal of a product of all rows by all rows."""
    cost = by_covariance().sum() + normal(SLOPES, 0.0, 1.0).sum()
    yield "normal of a covariance", _with_gradients(cost, [SLOPES, PACKED])


def _with_gradients(cost, params):
    gradients = pytensor.grad(cost, params)
    return pt.concatenate([cost[None], *(g.flatten() for g in gradients)])


def check(logp, *conditions):
    """Return a log-density, or an error where its parameters have no meaning."""
    holds = pt.all(pt.stack([pt.all(condition) for condition in conditions]))
    return CheckAndRaise(ValueError, "parameters")(logp, holds)


def _as_long(logp):
    """Give a log-density the shape of the data."""
    return pt.alloc(logp, Y.shape[0])


def _log_power(x, m):
    """Return m log(x), and 0 for 0 log(0)."""
    return pt.switch(pt.eq(x, 0), pt.switch(pt.eq(m, 0), 0.0, -np.inf), m * pt.log(x))


def normal(value, mu, sigma):
    logp = -0.5 * ((value - mu) / sigma) ** 2 - pt.log(pt.sqrt(2 * np.pi))
    sigma = pt.as_tensor(sigma)
    return check(logp - pt.log(sigma), sigma > 0)


def half_normal(value):
    logp = -0.5 * value**2 + pt.log(pt.sqrt(2 / np.pi))
    return pt.switch(value >= 0, logp, -np.inf)


def student_t(value, nu):
    lam = pt.sign(SIGMA) * SIGMA**-2.0
    logp = (
        pt.gammaln((nu + 1.0) / 2.0)
        + 0.5 * pt.log(lam / (nu * np.pi))
        - pt.gammaln(nu / 2.0)
        - (nu + 1.0) / 2.0 * pt.log1p(lam * (value - MU) ** 2 / nu)
    )
    return check(logp, lam > 0, nu > 0)


def _log_beta(a, b):
    return pt.gammaln(a) + pt.gammaln(b) - pt.gammaln(a + b)


def beta_binomial(value, alpha):
    n, beta = pt.constant(5), pt.exp(MU)
    logp = (pt.gammaln(n + 1) - pt.gammaln(value + 1) - pt.gammaln(n - value + 1)) + (
        _log_beta(value + alpha, n - value + beta) - _log_beta(alpha, beta)
    )
    logp = pt.switch(pt.or_(value < 0, value > n), -np.inf, logp)
    return check(logp, n >= 0, alpha > 0, beta > 0)


def negative_binomial(value, mu, alpha):
    share = alpha / (mu + alpha)
    logp = (pt.gammaln(value + alpha) - pt.gammaln(value + 1) - pt.gammaln(alpha)) + (
        _log_power(share, alpha) + _log_power(1 - share, value)
    )
    logp = check(pt.switch(value < 0, -np.inf, logp), mu > 0, alpha > 0)
    poisson = _log_power(mu, value) - pt.gammaln(value + 1) - mu
    poisson = check(pt.switch(value < 0, -np.inf, poisson), mu >= 0)
    return pt.switch(alpha > 1e10, poisson, logp)


def _cholesky():
    """Return a lower triangle with a positive diagonal, from a vector."""
    rows, columns = np.tril_indices(3)
    diagonal = pt.cumsum(pt.arange(1, 4)) - 1
    packed = pt.set_subtensor(PACKED[diagonal], pt.exp(PACKED[diagonal]))
    return pt.set_subtensor(pt.zeros((3, 3))[rows, columns], packed)


def by_cholesky():
    """A multivariate normal density, from the factor of its covariance."""
    lower = _cholesky()
    chol = pt.linalg.cholesky((lower @ lower.T)[None])
    scaled = pt.linalg.solve_triangular(chol, X - SLOPES, lower=True, b_ndim=1)
    diagonal = pt.diagonal(chol, axis1=-2, axis2=-1)
    size = pt.cast(X.shape[-1], "float64")
    logp = -0.5 * size * np.log(2 * np.pi) - 0.5 * (scaled**2).sum(axis=-1)
    return check(logp - pt.log(diagonal).sum(axis=-1), pt.all(diagonal > 0, axis=-1))


def by_covariance():
    """The same from the covariance, with the diagonal of a product of rows by rows."""
    lower = _cholesky()
    covariance = lower @ lower.T
    delta = X - SLOPES
    squares = pt.diagonal(delta @ pt.linalg.inv(covariance) @ delta.T)
    log_det = pt.linalg.slogdet(covariance)[1]
    return -0.5 * (3 * np.log(2 * np.pi) + squares + log_det)


def mixture(value, weights):
    of_parts = normal(value[:, None], SLOPES, SIGMA)
    of_parts = pt.alloc(of_parts, value.shape[0], 3)
    logp = pt.logsumexp(pt.log(weights) + of_parts, axis=-1)
    is_one = pt.isclose(weights.sum(), 1.0)
    return check(logp, weights >= 0, weights <= 1, is_one)


def dirichlet(value, a):
    a = pt.as_tensor(a)
    logp = (_log_power(value, a - 1) - pt.gammaln(a)).sum() + pt.gammaln(a.sum())
    outside = pt.any(pt.or_(value < 0, value > 1))
    return check(pt.switch(outside, -np.inf, logp), a > 0)


def _simplex(logits):
    """Return weights that add up to one, and what their density gains by that."""
    whole = pt.concatenate([logits, -logits.sum(keepdims=True)])
    weights = pt.special.softmax(whole)
    return weights, np.log(3) + pt.log(weights).sum()


def ordered_logistic():
    increasing = pt.empty(CUTS.shape)
    increasing = pt.set_subtensor(increasing[0], CUTS[0])
    increasing = pt.set_subtensor(increasing[1:], pt.exp(CUTS[1:]))
    below = pt.sigmoid(pt.cumsum(increasing) - ETA[:, None])
    ends = [pt.zeros_like(below[:, 0])[:, None], pt.ones_like(below[:, 0])[:, None]]
    below = pt.concatenate([ends[0], below, ends[1]], axis=-1)
    p = below[:, 1:] - below[:, :-1]
    classes = pt.clip(LABELS, 0, p.shape[-1] - 1)[:, None]
    logp = pt.log(pt.take_along_axis(p, classes, axis=-1)[:, 0])
    logp = pt.switch(pt.or_(LABELS < 0, p.shape[-1] - 1 < LABELS), -np.inf, logp)
    return check(logp, p >= 0, p <= 1, pt.isclose(p.sum(axis=-1), 1.0))
