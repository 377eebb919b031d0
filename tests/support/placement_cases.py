"""Graphs as users write them, without a word of synk's: statistics, losses, updates."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt

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
