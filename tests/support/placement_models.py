"""Training steps of networks, and estimators as scikit-learn computes them."""

from __future__ import annotations

import lasagne
import numpy as np
import pytensor.tensor as pt
from lasagne import layers as L
from placement_cases import CENTRED, CENTRES, LABELS, N, W, X, Y

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
