"""Graphs as users write them, without a word of synk's: statistics, losses, updates."""

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.raise_op import CheckAndRaise

from synk import nn

X, Y = pt.dmatrix("x"), pt.dvector("y")
LABELS = pt.lvector("labels")
INPUTS = [X, Y, LABELS]

W = pytensor.shared(np.array([0.5, -0.3, 0.2]), "w")
SCALE = pytensor.shared(1.5, "scale")
BEFORE = pytensor.shared(np.eye(3) * 0.3 + 0.1, "before")
CENTRES = pytensor.shared(np.array([[1.0, 0, 0], [0, 1, 0], [-1, 0, 1]]), "centres")

N = X.shape[0]
MASK = pt.gt(Y, 0)
MEAN = X.mean(axis=0)
CENTRED = X - MEAN


def values(rows: int) -> list[np.ndarray]:
    """Return rows of every input; some of y are greater than 0, some are not."""
    rng = np.random.default_rng(rows)
    y = rng.normal(size=rows)
    y[:2] = 0.7, -0.4
    return [rng.normal(size=(rows, 3)), y, rng.integers(0, 3, rows)]


def assert_equal(name, got, right) -> None:
    """Compare values, to rounding of the largest, and their shapes."""
    assert np.shape(got) == np.shape(right), name
    size = np.max(np.abs(right), initial=0, where=np.isfinite(right))
    np.testing.assert_allclose(got, right, 1e-10, 1e-10 * size, err_msg=name)


def likelihood():
    z = (Y - X @ W) / SCALE
    return (-0.5 * z**2 - pt.log(SCALE)).sum()


def prior():
    return -(W**2).sum() - SCALE**2


def posterior():
    return likelihood() + prior()


def batch_normalised():
    return CENTRED / pt.sqrt(X.var(axis=0) + 1e-5)


def statistics():
    """Yield statistics of rows, and losses."""
    yield "sum and prior", posterior()
    yield "masked mean", (Y * MASK).sum() / MASK.sum()
    yield "weighted mean", (Y * pt.exp(Y)).sum() / pt.exp(Y).sum()
    yield "variance", X.var(axis=0)
    yield "standard deviation", Y.std()
    yield "mean and a constant by rows", Y.mean() + 3.0 / N
    yield "correlation", _correlation(X[:, 0], X[:, 1])
    yield "log-sum-exp", pt.logsumexp(Y)
    yield "log-mean-exp", pt.log(pt.exp(Y).mean())
    yield "softmax along the rows", pt.special.softmax(Y)
    yield "log-softmax along the rows", pt.special.log_softmax(X, axis=0)
    yield "centred", CENTRED
    yield "scaled to 0 and 1", (X - X.min(axis=0)) / (X.max(axis=0) - X.min(axis=0))
    yield "batch normalised", batch_normalised()
    yield "normal equations", pt.linalg.solve(X.T @ X, X.T @ Y)
    yield "balanced loss", _balanced()
    yield "label smoothing", _smoothed()
    yield "contrastive", _contrastive()
    yield "histogram", pt.inc_subtensor(pt.zeros(3)[LABELS], 1.0)
    yield "clipped by the norm", X * pt.minimum(1, 2 / pt.sqrt((X**2).sum()))
    size = pt.sqrt((X**2).sum(axis=0))
    yield "linear in a whole value", (X / size - pt.exp(X) * size).sum(axis=0) ** 2
    yield "sum of sums and means", X.sum() + Y.mean() + N
    yield "rows and their mean", (Y[:, None] - Y.mean() + MEAN).sum(axis=1)
    yield "products of rows", X @ X.T


def gathered():
    """Yield what some of is computed from all rows at once, by every rank."""
    yield "mean of selected rows", Y[MASK].mean()
    yield "mean of the rows that are found", X[MASK.nonzero()].mean(axis=0)
    yield "largest of selected rows", Y[MASK].max()
    yield "sort", pt.sort(Y)
    yield "median", pt.median(Y)
    yield "cumulative sum", pt.cumsum(X, axis=0)
    yield "differences", Y[1:] - Y[:-1]
    yield "pseudo-inverse", pt.linalg.pinv(X)
    yield "numbered rows", Y + pt.arange(N)
    yield "normal of a covariance", by_covariance()


def gradients():
    """Yield gradients by plain ``pytensor.grad``."""
    of_mean = ((Y - X @ W) ** 2).mean()
    normed = (pt.tanh(batch_normalised() @ W) * Y).mean()
    for name, cost in {
        "a sum": likelihood(),
        "a mean and a penalty": of_mean + 0.1 * (W**2).sum(),
        "batch normalisation": normed,
        "a correlation": _correlation(X @ W, Y),
        "softmax along the rows": (pt.special.softmax(X @ W) * Y).sum(),
        "a ratio": of_mean / ((Y - Y.mean()) ** 2).mean(),
        "a contrastive loss": _contrastive(),
        "a median": pt.median(X @ W),
    }.items():
        yield f"gradient of {name}", pytensor.grad(cost, W)
    yield "Hessian", pytensor.gradient.hessian(posterior(), W)
    yield "gradient of a masked recurrence", pytensor.grad(_masked_recurrence(), BEFORE)
    yield "clipped gradient", _clipped(pytensor.grad(of_mean, W))


def _correlation(a, b):
    a, b = a - a.mean(), b - b.mean()
    return (a * b).mean() / pt.sqrt((a**2).mean() * (b**2).mean())


def _one_hot():
    return pt.cast(pt.eq(LABELS[:, None], pt.arange(3)[None]), "float64")


def _log_probabilities():
    return pt.special.log_softmax(X * W + X[:, ::-1], axis=1)


def _balanced():
    """Cross-entropy, in which each class counts alike."""
    of_rows = -(_one_hot() * _log_probabilities()).sum(axis=1)
    weights = 1 / pt.maximum(_one_hot().sum(axis=0), 1)
    return (of_rows * (_one_hot() * weights).sum(axis=1)).sum()


def _smoothed():
    shares = _one_hot().mean(axis=0)
    target = 0.9 * _one_hot() + 0.1 * shares
    return -(target * _log_probabilities()).sum(axis=1).mean()


def _contrastive():
    """Each row's score against those of all rows."""
    scores = X @ W
    return (pt.log(pt.exp(scores).sum()) - scores).mean()


def _masked_recurrence():
    """The mean over the steps that a mask has, of rows that are series of three."""
    steps = pt.tanh(X[None] * pt.arange(1, 4)[:, None, None] @ BEFORE)
    mask = pt.gt(steps[:, :, 0].T, 0.1)
    states = pytensor.scan(
        lambda now, state: pt.tanh(now + 0.5 * state),
        sequences=[steps],
        outputs_info=[pt.zeros((N, 3))],
        return_updates=False,
    )
    return (((states - 1) ** 2).sum(axis=2).T * mask).sum() / mask.sum()


def _clipped(gradient):
    return gradient * pt.minimum(1, 0.1 / pt.sqrt((gradient**2).sum()))


SLOPES = pytensor.shared(np.array([0.4, -0.2, 0.3]), "slopes")
PACKED = pytensor.shared(np.array([0.2, -0.4, 0.3, 0.5, -0.1, 0.1]), "packed")
LOGITS = pytensor.shared(np.array([0.3, -0.5]), "logits")
CUTS = pytensor.shared(np.array([-0.7, 0.1]), "cuts")
FILTERS = pytensor.shared(np.linspace(-1, 1, 8).reshape(2, 1, 2, 2), "filters")
LAST = pytensor.shared(np.linspace(0.5, -0.3, 24).reshape(8, 3), "last")


def fitted():
    """Yield what is fitted to rows: by gradients, all in one vector, or in steps."""
    yield "multivariate normal", _with_gradients(_by_cholesky(), [SLOPES, PACKED])
    yield "mixture of normals", _with_gradients(_mixture(), [SLOPES, LOGITS])
    yield "ordered logistic", _with_gradients(_ordered_logistic(), [SLOPES, CUTS])
    yield "normalised convolution", _with_gradients(_convolution(), [FILTERS, LAST])
    yield "logistic regression", _logistic_regression()
    yield "k-means", _k_means()
    yield "Gaussian mixture", _gaussian_mixture()


def _with_gradients(of_rows, params):
    cost = of_rows.sum() - (SLOPES**2).sum()
    gradients = pytensor.grad(cost, params, disconnected_inputs="ignore")
    return pt.concatenate([cost[None], *(g.flatten() for g in gradients)])


def _check(logp, *conditions):
    """Return a log-density as long as the data, or an error if a condition is not met.

    PyMC puts both into its densities.
    """
    holds = pt.all(pt.stack([pt.all(condition) for condition in conditions]))
    return pt.alloc(CheckAndRaise(ValueError, "parameters")(logp, holds), N)


def _cholesky():
    """Return a lower triangle with a positive diagonal, from a vector."""
    rows, columns = np.tril_indices(3)
    diagonal = pt.cumsum(pt.arange(1, 4)) - 1
    packed = pt.set_subtensor(PACKED[diagonal], pt.exp(PACKED[diagonal]))
    return pt.set_subtensor(pt.zeros((3, 3))[rows, columns], packed)


def _by_cholesky():
    """Return a multivariate normal density, from the factor of its covariance."""
    lower = _cholesky()
    chol = pt.linalg.cholesky((lower @ lower.T)[None])
    scaled = pt.linalg.solve_triangular(chol, X - SLOPES, lower=True, b_ndim=1)
    diagonal = pt.diagonal(chol, axis1=-2, axis2=-1)
    size = pt.cast(X.shape[-1], "float64")
    logp = -0.5 * size * np.log(2 * np.pi) - 0.5 * (scaled**2).sum(axis=-1)
    return _check(logp - pt.log(diagonal).sum(axis=-1), diagonal > 0)


def by_covariance():
    """Return the same from the covariance, by a product of all rows by all rows."""
    covariance = _cholesky() @ _cholesky().T
    delta = X - SLOPES
    squares = pt.diagonal(delta @ pt.linalg.inv(covariance) @ delta.T)
    log_det = pt.linalg.slogdet(covariance)[1]
    density = -0.5 * (3 * np.log(2 * np.pi) + squares + log_det)
    return _with_gradients(density, [SLOPES, PACKED])


def _mixture():
    whole = pt.concatenate([LOGITS, -LOGITS.sum(keepdims=True)])
    weights = pt.special.softmax(whole)
    of_parts = pt.alloc(-0.5 * (Y[:, None] - SLOPES) ** 2, N, 3)
    logp = pt.logsumexp(pt.log(weights) + of_parts, axis=-1)
    return _check(logp, weights >= 0, weights <= 1, pt.isclose(weights.sum(), 1.0))


def _ordered_logistic():
    increasing = pt.empty(CUTS.shape)
    increasing = pt.set_subtensor(increasing[0], CUTS[0])
    increasing = pt.set_subtensor(increasing[1:], pt.exp(CUTS[1:]))
    below = pt.sigmoid(pt.cumsum(increasing) - (X @ SLOPES)[:, None])
    ends = [pt.zeros_like(below[:, 0])[:, None], pt.ones_like(below[:, 0])[:, None]]
    below = pt.concatenate([ends[0], below, ends[1]], axis=-1)
    p = below[:, 1:] - below[:, :-1]
    classes = pt.clip(LABELS, 0, p.shape[-1] - 1)[:, None]
    logp = pt.log(pt.take_along_axis(p, classes, axis=-1)[:, 0])
    logp = pt.switch(pt.or_(LABELS < 0, p.shape[-1] - 1 < LABELS), -np.inf, logp)
    return _check(logp, p >= 0, p <= 1, pt.isclose(p.sum(axis=-1), 1.0))


def _convolution():
    """The loss of a network whose maps are normalised by all rows and places."""
    maps = nn.conv2d(X[:, None, :, None] * X[:, None, None, :], FILTERS)
    spread = pt.sqrt(maps.var((0, 2, 3), keepdims=True) + 1e-4)
    maps = pt.maximum((maps - maps.mean((0, 2, 3), keepdims=True)) / spread, 0)
    return -pt.special.log_softmax(maps.flatten(2) @ LAST, axis=1)[pt.arange(N), LABELS]


def _logistic_regression():
    """Coefficients by Newton's steps, with half the sum of their squares as penalty."""
    beta = 0 * W
    for _ in range(4):
        p = pt.sigmoid(X @ beta)
        slope = X.T @ (p - MASK) + beta
        bend = X.T @ ((p * (1 - p))[:, None] * X) + pt.eye(3)
        beta = beta - pt.linalg.solve(bend, slope)
    return beta


def _k_means():
    centres = CENTRES
    for _ in range(2):
        distances = ((X[:, None, :] - centres[None]) ** 2).sum(axis=2)
        nearest = pt.eq(distances.argmin(axis=1)[:, None], pt.arange(3)[None])
        counts = pt.maximum(nearest.sum(axis=0), 1)
        centres = (nearest.T @ X) / counts[:, None]
    return centres


def _gaussian_mixture():
    """Weights, means and variances by steps of expectation and maximisation."""
    weights, means, variances = pt.ones(3) / 3, CENTRES, pt.ones((3, 3))
    for _ in range(2):
        scaled = (X[:, None, :] - means[None]) ** 2 / variances[None]
        log_p = -0.5 * (scaled + pt.log(2 * np.pi * variances)[None]).sum(axis=2)
        log_p += pt.log(weights)[None]
        shares = pt.exp(log_p - pt.logsumexp(log_p, axis=1, keepdims=True))
        totals = shares.sum(axis=0) + 10 * np.finfo(float).eps
        means = shares.T @ X / totals[:, None]
        variances = shares.T @ X**2 / totals[:, None] - means**2 + 1e-6
        weights = totals / N
    return pt.concatenate([weights[:, None], means, variances], axis=1)
