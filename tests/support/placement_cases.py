"""Graphs as users write them, without a word of synk's: statistics, losses, updates."""

from __future__ import annotations

import lasagne
import numpy as np
import pytensor
import pytensor.tensor as pt
from lasagne import layers as L
from pytensor.raise_op import CheckAndRaise

X, Y = pt.dmatrix("x"), pt.dvector("y")
LABELS = pt.lvector("labels")
INPUTS = [X, Y, LABELS]

W = pytensor.shared(np.array([0.5, -0.3, 0.2]), "w")
SCALE = pytensor.shared(1.5, "scale")
BEFORE = pytensor.shared(np.eye(3) * 0.3 + 0.1, "before")
OF = pytensor.shared(np.eye(3) * 0.5, "of")
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
    yield "corrected variance", Y.var(corrected=1)
    yield "mean and a constant by rows", Y.mean() + 3.0 / N
    yield "standard error", Y.std() / pt.sqrt(N)
    yield "range", Y.max() - Y.min()
    yield "correlation", _correlation(X[:, 0], X[:, 1])
    yield "covariance", CENTRED.T @ CENTRED / (N - 1)
    yield "R squared", 1 - ((Y - X @ W) ** 2).sum() / ((Y - Y.mean()) ** 2).sum()
    yield "log-sum-exp", pt.logsumexp(Y)
    yield "log-mean-exp", pt.log(pt.exp(Y).mean())
    yield "softmax along the rows", pt.special.softmax(Y)
    yield "log-softmax along the rows", pt.special.log_softmax(X, axis=0)
    yield "centred", CENTRED
    yield "scaled to 0 and 1", (X - X.min(axis=0)) / (X.max(axis=0) - X.min(axis=0))
    yield "batch normalised", batch_normalised()
    yield "third moment", ((Y - Y.mean()) ** 3).mean() / Y.std() ** 3
    yield "normal equations", pt.linalg.solve(X.T @ X, X.T @ Y)
    yield "ridge", pt.linalg.solve(X.T @ X + 0.1 * pt.eye(3), X.T @ Y)
    yield "log-determinant", pt.linalg.slogdet(CENTRED.T @ CENTRED)[1]
    yield "class counts", pt.eq(LABELS[:, None], pt.arange(3)[None]).sum(axis=0)
    yield "means of classes", _means_of_classes()
    yield "balanced loss", _balanced()
    yield "label smoothing", _smoothed()
    yield "contrastive", _contrastive()
    yield "histogram", pt.inc_subtensor(pt.zeros(3)[LABELS], 1.0)
    yield "norm of all", pt.sqrt((X**2).sum())
    yield "clipped by the norm", X * pt.minimum(1, 2 / pt.sqrt((X**2).sum()))
    yield "product of means", X.mean() * Y.mean()
    yield "sum of sums and means", X.sum() + Y.mean() + N
    yield "rows and their mean", (Y[:, None] - Y.mean() + MEAN).sum(axis=1)
    yield "Gini's mean difference", pt.abs(Y[:, None] - Y[None, :]).mean()
    yield "products of rows", X @ X.T
    yield "kernel", pt.exp(-((Y[:, None] - Y[None, :]) ** 2)).sum(axis=1)


def gathered():
    """Yield what needs all rows at once."""
    yield "mean of selected rows", Y[MASK].mean()
    yield "mean of the rows that are found", X[MASK.nonzero()].mean(axis=0)
    yield "largest of selected rows", Y[MASK].max()
    yield "sort", pt.sort(Y)
    yield "order", pt.argsort(Y)
    yield "ranks", pt.argsort(pt.argsort(Y))
    yield "median", pt.median(Y)
    yield "sorted times unsorted", (pt.sort(Y) * Y).sum()
    yield "cumulative sum", pt.cumsum(X, axis=0)
    yield "differences", Y[1:] - Y[:-1]
    yield "reversed", X[::-1]
    yield "transposed", X.T
    yield "first rows", X[:2]
    yield "pseudo-inverse", pt.linalg.pinv(X)
    yield "row numbers", (Y * pt.arange(N)).sum()
    yield "numbered rows", Y + pt.arange(N)
    yield "running mean", _running_mean()
    yield "argmax", Y.argmax()


def gradients():
    """Yield gradients by plain ``pytensor.grad``."""
    of_mean = ((Y - X @ W) ** 2).mean()
    normed = (pt.tanh(batch_normalised() @ W) * Y).mean()
    for name, cost in {
        "a mean": of_mean,
        "a sum": likelihood(),
        "a sum and a prior": posterior(),
        "a mean and a penalty": of_mean + 0.1 * (W**2).sum(),
        "batch normalisation": normed,
        "batch normalisation and a penalty": normed + (W**2).sum(),
        "a masked mean": (Y * MASK * (X @ W)).sum() / MASK.sum(),
        "a standard deviation": (X @ W).std(),
        "log-sum-exp": pt.logsumexp(X @ W),
        "a correlation": _correlation(X @ W, Y),
        "softmax along the rows": (pt.special.softmax(X @ W) * Y).sum(),
        "a root of a mean": pt.sqrt(of_mean),
        "a ratio": of_mean / ((Y - Y.mean()) ** 2).mean(),
        "a contrastive loss": _contrastive(),
        "a balanced loss": _balanced(),
        "sorted values": (pt.sort(X @ W) * Y).sum(),
        "a median": pt.median(X @ W),
    }.items():
        yield f"gradient of {name}", pytensor.grad(cost, W)
    yield "gradient by a scale", pytensor.grad(posterior(), SCALE)
    yield "Hessian", pytensor.gradient.hessian(posterior(), W)
    for name, param in {"before": BEFORE, "of": OF}.items():
        graph = pytensor.grad(_masked_recurrence(), param)
        yield f"gradient of a weight {name} a masked recurrence", graph
    yield "clipped gradient", _clipped(pytensor.grad(of_mean, W))


def _correlation(a, b):
    a, b = a - a.mean(), b - b.mean()
    return (a * b).mean() / pt.sqrt((a**2).mean() * (b**2).mean())


def _one_hot():
    return pt.cast(pt.eq(LABELS[:, None], pt.arange(3)[None]), "float64")


def _means_of_classes():
    return (_one_hot().T @ X) / pt.maximum(_one_hot().sum(axis=0), 1)[:, None]


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


def _running_mean():
    states = pytensor.scan(
        lambda y, s: 0.9 * s + 0.1 * y,
        sequences=[Y],
        outputs_info=[np.float64(0)],
        return_updates=False,
    )
    return states


def _masked_recurrence():
    """The mean over the steps that a mask has, of rows that are series of three."""
    steps = pt.tanh(X[None] * pt.arange(1, 4)[:, None, None] @ BEFORE)
    mask = pt.gt(steps[:, :, 0].T, 0.1)
    states = pytensor.scan(
        lambda now, state: pt.tanh(now + state @ OF),
        sequences=[steps],
        outputs_info=[pt.zeros((N, 3))],
        return_updates=False,
    )
    return (((states - 1) ** 2).sum(axis=2).T * mask).sum() / mask.sum()


def _clipped(gradient):
    return gradient * pt.minimum(1, 0.1 / pt.sqrt((gradient**2).sum()))


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


TARGET = pt.cast(pt.gt(Y, 0), "float64")
CLASSES, STEPS = 3, 4


# -- networks of Lasagne, trained


class BatchNorm(L.Layer):
    """Batch normalisation in training: by the mean and variance of the batch."""

    def __init__(self, incoming, axes):
        super().__init__(incoming)
        self.axes = axes
        shape = [n for i, n in enumerate(self.input_shape) if i not in axes]
        spec = {"regularizable": False}
        self.beta = self.add_param(np.full(shape, 0.1), shape, "beta", **spec)
        self.gamma = self.add_param(np.full(shape, 0.9), shape, "gamma", **spec)

    def get_output_for(self, input, **options):
        order = iter(range(input.ndim - len(self.axes)))
        pattern = ["x" if i in self.axes else next(order) for i in range(input.ndim)]
        mean, inv_std = input.mean(self.axes), 1 / pt.sqrt(input.var(self.axes) + 1e-4)
        mean, inv_std, beta, gamma = (
            var.dimshuffle(pattern) for var in (mean, inv_std, self.beta, self.gamma)
        )
        return (input - mean) * (gamma * inv_std) + beta


def networks():
    """Yield steps of Lasagne's rules: the loss, and new values of all parameters."""
    lasagne.random.set_rng(np.random.RandomState(5))
    rectify, softmax = (
        getattr(lasagne.nonlinearities, name) for name in ("rectify", "softmax")
    )
    plain = {"b": None, "nonlinearity": None}
    dense = L.DenseLayer(L.InputLayer((None, 3), X), 4, **plain)
    dense = L.NonlinearityLayer(BatchNorm(dense, (0,)), rectify)
    yield "Lasagne: normalised layer", _step(dense, softmax, lasagne.updates.adam)
    image = X[:, None, :, None] * X[:, None, None, :]
    maps = L.Conv2DLayer(L.InputLayer((None, 1, 3, 3), image), 2, 2, **plain)
    maps = L.NonlinearityLayer(BatchNorm(maps, (0, 2, 3)), rectify)
    yield (
        "Lasagne: normalised convolution",
        _step(maps, softmax, lasagne.updates.nesterov_momentum, learning_rate=0.1),
    )


def _step(layer, softmax, rule, **options):
    layer = L.DenseLayer(layer, CLASSES, nonlinearity=softmax)
    p = L.get_output(layer)
    loss = lasagne.objectives.categorical_crossentropy(p, LABELS).mean()
    loss += 0.01 * lasagne.regularization.regularize_network_params(
        layer, lasagne.regularization.l2
    )
    params = L.get_all_params(layer, trainable=True)
    updates = rule(loss, params, **options)
    news = [new.flatten() for new in updates.values()]
    return pt.concatenate([loss[None], *news])


# -- estimators of scikit-learn


def estimators():
    """Yield attributes of estimators that were fitted to rows, as one array."""
    yield "StandardScaler", CENTRED / X.std(axis=0)
    yield "PCA", _principal_components()
    yield "LogisticRegression", _logistic_regression()
    yield "KMeans", _k_means(2)
    yield "GaussianMixture", _gaussian_mixture(2)


def _principal_components():
    """Explained variances, and the components, the largest entries positive."""
    variances, vectors = pt.linalg.eigh(CENTRED.T @ CENTRED / (N - 1))
    components = vectors.T[::-1]
    largest = pt.abs(components).argmax(axis=1)
    signs = pt.sign(components[pt.arange(3), largest])
    return pt.concatenate([variances[::-1][:, None], components * signs[:, None]], 1)


def _logistic_regression():
    """Coefficients by Newton's steps, with half the sum of their squares as penalty."""
    beta = 0 * W
    for _ in range(STEPS):
        p = pt.sigmoid(X @ beta)
        slope = X.T @ (p - TARGET) + beta
        bend = X.T @ ((p * (1 - p))[:, None] * X) + pt.eye(3)
        beta = beta - pt.linalg.solve(bend, slope)
    return beta


def _k_means(steps):
    centres = CENTRES
    for _ in range(steps):
        distances = ((X[:, None, :] - centres[None]) ** 2).sum(axis=2)
        nearest = pt.eq(distances.argmin(axis=1)[:, None], pt.arange(3)[None])
        counts = pt.maximum(nearest.sum(axis=0), 1)
        centres = (nearest.T @ X) / counts[:, None]
    return centres


def _gaussian_mixture(steps):
    """Weights, means and variances by steps of expectation and maximisation."""
    weights, means, variances = pt.ones(3) / 3, CENTRES, pt.ones((3, 3))
    for _ in range(steps):
        scaled = (X[:, None, :] - means[None]) ** 2 / variances[None]
        log_p = -0.5 * (scaled + pt.log(2 * np.pi * variances)[None]).sum(axis=2)
        log_p += pt.log(weights)[None]
        shares = pt.exp(log_p - pt.logsumexp(log_p, axis=1, keepdims=True))
        totals = shares.sum(axis=0) + 10 * np.finfo(float).eps
        means = shares.T @ X / totals[:, None]
        variances = shares.T @ X**2 / totals[:, None] - means**2 + 1e-6
        weights = totals / N
    return pt.concatenate([weights[:, None], means, variances], axis=1)


def of_scikit_learn(x, y):
    """Return what scikit-learn itself has for each of these."""
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA
    from sklearn.linear_model import LogisticRegression
    from sklearn.mixture import GaussianMixture
    from sklearn.preprocessing import StandardScaler

    centres = CENTRES.get_value()
    pca = PCA().fit(x)
    rows = range(3), np.abs(pca.components_).argmax(axis=1)
    components = pca.components_ * np.sign(pca.components_[rows])[:, None]
    mixture = GaussianMixture(
        3,
        covariance_type="diag",
        max_iter=2,
        tol=0,
        weights_init=np.full(3, 1 / 3),
        means_init=centres,
        precisions_init=np.ones((3, 3)),
    ).fit(x)
    found = mixture.weights_[:, None], mixture.means_, mixture.covariances_
    return {
        "StandardScaler": StandardScaler().fit_transform(x),
        "PCA": np.column_stack([pca.explained_variance_, components]),
        "LogisticRegression": LogisticRegression(fit_intercept=False, tol=1e-10)
        .fit(x, y > 0)
        .coef_[0],
        "KMeans": KMeans(3, init=centres, n_init=1, max_iter=2, tol=0)
        .fit(x)
        .cluster_centers_,
        "GaussianMixture": np.column_stack(found),
    }
