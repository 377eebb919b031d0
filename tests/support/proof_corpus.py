"""Graphs that people write, and the ops that the splitting proof must find."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.ifelse import ifelse
from pytensor.printing import Print
from pytensor.raise_op import Assert
from pytensor.scan.utils import until
from pytensor.tensor.random.utils import RandomStream

import synk

X, Y = pt.matrix("x"), pt.vector("y")
X3 = pt.tensor3("x3")
STATIC = pt.tensor("static", shape=(None, 2, 3))
LABELS = pt.lvector("labels")
FLAGS = pt.vector("flags", dtype="bool")
BYTES = pt.vector("bytes", dtype="uint8")
INPUTS = [X, Y, X3, LABELS, FLAGS, BYTES, STATIC]


def values_of(rows: int) -> list[np.ndarray]:
    """Return so many rows of every input."""
    rng = np.random.default_rng(5)
    return [
        rng.uniform(-2, 2, (rows, 3)),
        rng.uniform(-2, 2, rows),
        rng.uniform(-2, 2, (rows, 2, 3)),
        rng.integers(0, 3, rows),
        rng.random(rows) < 0.3,
        rng.integers(0, 255, rows).astype("uint8"),
        rng.uniform(-2, 2, (rows, 2, 3)),
    ]


W = pytensor.shared(np.full((3, 4), 0.5), "w")
V = pytensor.shared(np.full(3, 0.5), "v")
B = pytensor.shared(np.full(4, 0.5), "b")
C = pytensor.shared(2.0, "c")
TABLE = pytensor.shared(np.full((7, 3), 0.5), "table")
STREAM = RandomStream(seed=1)

ROWS = X.shape[0]


def softmax_loss():
    p = pt.special.softmax(X @ W + B, axis=1)
    return -pt.log(p)[pt.arange(LABELS.shape[0]), LABELS].mean()


def log_softmax_loss():
    logits = pt.special.log_softmax(X @ W + B, axis=-1)
    return -logits[pt.arange(X.shape[0]), LABELS].mean() + 1e-3 * (W**2).sum()


def squares():
    return ((X @ V - Y) ** 2).mean()


def network():
    hidden = pt.maximum(X @ W + B, 0)
    return pt.mean((hidden.sum(axis=1) - Y) ** 2)


def log_likelihood():
    """A sum over the rows of a normal density, and a prior scaled by nothing."""
    z = (Y - X @ V) / C
    return (-0.5 * z**2 - pt.log(C) - 0.5 * np.log(2 * np.pi)).sum()


def one_hot_loss():
    p = pt.special.softmax(X @ W, axis=1)
    return -(pt.extra_ops.to_one_hot(LABELS, 4) * pt.log(p)).sum(axis=1).mean()


def mixture():
    return pt.logsumexp(-((Y[:, None] - B[None, :]) ** 2), axis=1).sum()


def recurrent():
    """Return the last state of a network over axis 1; rows are along axis 0."""
    states = pytensor.scan(
        lambda xt, h: pt.tanh(xt @ W + h),
        sequences=[X3.dimshuffle(1, 0, 2)],
        outputs_info=[pt.zeros((X3.shape[0], 4))],
        return_updates=False,
    )
    return states[-1]


def over_time(step, initial, **kwargs):
    """Return the last state of a scan over axis 1 of x3; rows are along axis 0."""
    sequences = [] if "n_steps" in kwargs else [X3.dimshuffle(1, 0, 2)]
    states = pytensor.scan(
        step, sequences, outputs_info=initial, return_updates=False, **kwargs
    )
    return states[-1]


def two_taps():
    first = pt.stack([X, X**2], axis=0)
    taps = [{"initial": first, "taps": [-1, -2]}]
    return over_time(lambda xt, a, b: pt.tanh(xt + 0.5 * a - b), taps)


ZERO, ONE = np.float64(0), np.float64(1)


def by_row():
    return pytensor.map(lambda row, v: pt.tanh(row @ v), [X], [V], return_updates=False)


def log_densities():
    """Return the log-density of each row, by a scan."""
    return pytensor.scan(
        lambda x, y, v: -0.5 * (y - x @ v) ** 2 - pt.log(C),
        sequences=[X, Y],
        non_sequences=[V],
        return_updates=False,
    )


def carried(step, start=ZERO, **kwargs):
    """Return the states of a scan over the rows of x and y."""
    return pytensor.scan(
        step, [X, Y], outputs_info=[start], return_updates=False, **kwargs
    )


def accumulated(**kwargs):
    """Return a log-likelihood, summed up in a scan over the rows."""
    return carried(lambda x, y, s, v: s - (y - x @ v) ** 2, **kwargs)[-1]


def summed_up():
    return accumulated(non_sequences=[V])


def dense_over_time(x):
    """Multiply by weights, as ``tensordot`` does: time and rows are one axis."""
    return pt.tensordot(x.transpose(1, 0, 2), W, axes=1)


def looked_up(columns=None):
    """Look up two words for each row, all in one vector, time first."""
    words = pt.stack([LABELS, LABELS + 1])
    shape = (*words.shape, columns or TABLE.shape[1])
    return TABLE[words.flatten()].reshape(shape)


def times_weights(x):
    """Do the same by hand."""
    merged = x.transpose(1, 0, 2).reshape((x.shape[1] * x.shape[0], -1))
    return (merged @ W).reshape((x.shape[1], x.shape[0], W.shape[1]))


def by_step(x, time_first=False):
    """Return probabilities of 4 classes, for each row and step of 2, and labels."""
    labels = pt.stack([LABELS, 2 - LABELS], axis=0 if time_first else 1)
    x = x.transpose(1, 0, 2) if time_first else x
    p = pt.special.softmax(x.reshape((-1, x.shape[2])) @ W, axis=1)
    return p, labels.flatten()


def losses_by_step(x, time_first=False, of_labels=False):
    """Return the cross-entropy of each row and step, as one vector."""
    p, labels = by_step(x, time_first)
    count = (labels if of_labels else p).shape[0]
    return -pt.log(p[pt.arange(count), labels])


def steps_apart():
    return losses_by_step(X3, time_first=True).reshape((X3.shape[1], ROWS))


def increased_by_step():
    p, labels = by_step(X3)
    places = p[pt.arange(p.shape[0]), labels]
    return pt.inc_subtensor(places, pt.repeat(Y, 2))


def reversed_steps():
    p, labels = by_step(X3, time_first=True)
    return p[::-1][pt.arange(p.shape[0]), labels[::-1]]


def square_of_graph():
    a, b = pt.matrix(), pt.vector()
    op = OpFromGraph([a, b], [pt.tanh(a @ b), a.sum(axis=0)])
    return op(X, V)


def batch_norm():
    return (X - X.mean(axis=0)) / pt.sqrt(X.var(axis=0) + 1e-5)


def synchronised():
    mean = synk.ops.all_reduce(X.mean(axis=0))
    variance = synk.ops.all_reduce(((X - mean) ** 2).mean(axis=0))
    return (X - mean) / pt.sqrt(variance + 1e-5)


def accepted():
    """Yield what must be understood, and the op that follows."""
    yield "mean", X.mean(), "avg"
    yield "mean of rows", X.mean(axis=0), "avg"
    yield "kept dims", X.mean(axis=0, keepdims=True), "avg"
    yield "mean of columns", X.mean(axis=1), "gather"
    yield "sum", X.sum(), "sum"
    yield "sum of integers", LABELS.sum(), "sum"
    yield "mean of bytes", BYTES.mean(), "avg"
    yield "mean of bools", FLAGS.mean(), "avg"
    yield "count of bools", FLAGS.sum(), "sum"
    yield "max", X.max(axis=0), "max"
    yield "min", X.min(), "min"
    yield "prod", Y.prod(), "prod"
    yield "any", FLAGS.any(), "max"
    yield "all", (Y > 0).all(), "min"
    yield "none of", ~FLAGS.any(), "min"
    yield "sum by length", X.sum() / ROWS, "avg"
    yield "sum by another's length", X.sum() / Y.shape[0], "avg"
    yield "sum by size", X.sum() / X.size, "avg"
    yield "mean by length", X.mean() * ROWS, "sum"
    yield "length", ROWS, "sum"
    yield "twice the length", 2 * ROWS, "sum"
    yield "length times weights", (Y.shape * V).sum(), "sum"
    yield "columns", X.shape[1], None
    yield "lengths of several axes", (X3.shape * np.array([1, 2, 3]))[1:], None
    yield "rows", X, "gather"
    yield "prediction", X @ W + B, "gather"
    yield "class", (X @ W).argmax(axis=1), "gather"
    yield "hits", pt.eq((X @ W).argmax(axis=1), LABELS).mean(), "avg"
    yield "softmax", pt.special.softmax(X @ W, axis=1), "gather"
    yield "column", X[:, 1], "gather"
    yield "columns taken", X[:, 1:], "gather"
    yield "columns listed", X[:, [2, 0]], "gather"
    yield "last of the middle", X3[:, -1, :], "gather"
    yield "all rows", X[0:], "gather"
    yield "up to the number of rows", X[: X.shape[0]], "gather"
    yield "up to the number of entries", X.flatten()[: X.size], "gather"
    yield "of as many entries", pt.specify_shape(X.flatten(), (X.size,)), "gather"
    yield "row sum", X.sum(axis=1), "gather"
    yield "norm", pt.sqrt((X**2).sum(axis=1)), "gather"
    yield "standard deviation of each row", X.std(axis=1), "gather"
    yield "sorted columns", pt.sort(X, axis=1), "gather"
    yield "cumulated columns", pt.cumsum(X, axis=1), "gather"
    yield "flattened", X3.flatten(2), "gather"
    yield "flat", X.flatten(), "gather"
    yield "reshaped", X3.reshape((X3.shape[0], -1)), "gather"
    yield "reshaped by -1", X.reshape((-1, 3)), "gather"
    yield "mean of what is flat", (X3.flatten() ** 2).mean(), "avg"
    yield "joined", pt.concatenate([X, X**2], axis=1), "gather"
    yield "stacked", pt.stack([Y, Y**2], axis=1), "gather"
    yield "largest of bools", FLAGS.max(), "max"
    yield "places", pt.searchsorted(pt.sort(V), Y), "gather"
    yield "row by row", pt.take_along_axis(X, LABELS[:, None], axis=1), "gather"
    yield "twice contracted", pt.tensordot(STATIC, STATIC, [[0, 1], [0, 1]]), "sum"
    yield "printed", Print("x")(X), "gather"
    yield "checked", Assert()(X, X.max() < 99), "gather"

    yield "split", pt.split(X, [1, 2], axis=1)[1], "gather"
    yield "repeated columns", pt.repeat(X, 2, axis=1), "gather"
    yield "filled", pt.zeros((ROWS, 2)) + Y[:, None], "gather"
    yield "transposed twice", (2 * X.T).T, "gather"
    yield "moments", X.T @ X, "sum"
    yield "outer products", pt.einsum("ni,nj->ij", X, X), "sum"
    yield "squared norms", pt.einsum("ni,ni->n", X, X), "gather"
    yield "dot", pt.dot(Y, X), "sum"
    yield "inner product", pt.dot(Y, Y), "sum"
    yield "tensordot over the rows", pt.tensordot(X3, X, axes=[[0], [0]]), "sum"
    yield "tensordot beside the rows", pt.tensordot(X3, W, axes=1), "gather"
    yield "batched", X3 @ W, "gather"
    yield "batched pairs", X3 @ X3.dimshuffle(0, 2, 1), "gather"
    yield "embedding", TABLE[LABELS], "gather"
    yield "picked", X[pt.arange(ROWS), LABELS], "gather"
    yield "one hot", pt.extra_ops.to_one_hot(LABELS, 4), "gather"
    yield "counts of labels", pt.extra_ops.to_one_hot(LABELS, 4).sum(axis=0), "sum"
    yield "histogram", pt.inc_subtensor(pt.zeros(7)[LABELS], 1.0), "sum"
    yield "set column", pt.set_subtensor(X[:, 0], Y), "gather"
    yield "increased column", pt.inc_subtensor(X[:, 0], 1.0), "gather"
    yield "log-sum-exp of columns", pt.logsumexp(X, axis=1), "gather"
    yield "where", pt.where(X > 0, X, 0.1 * X), "gather"
    yield "where of weights", pt.where(C > 0, X.mean(), Y.mean()), "avg"
    yield "ifelse of weights", ifelse(C > 0, X.sum(), Y.sum()), "sum"
    yield "two means", 0.3 * X.mean() - squares(), "avg"
    yield "two sums", X.sum() + 2 * Y.sum(), "sum"
    yield "regularised mean", squares() + 0.1 * (V**2).sum(), "avg"
    yield "sum and n constants", X.sum() + ROWS * (V**2).sum(), "sum"
    yield "half a sum", 0.5 * X.sum() / C, "sum"
    yield "scaled maximum", 2 * X.max() + 1, "max"
    yield "negative maximum", -X.max(), "min"
    yield "exp of a maximum", pt.exp(X.max()), "max"
    yield "largest of all", pt.maximum(X.max(), Y.max()), "max"
    yield "clipped maximum", pt.maximum(X.max(), C), "max"
    yield "product of products", X.prod() / Y.prod(), "prod"
    yield "row of a mean", X.mean(axis=0)[1:], "avg"
    yield "sorted weights", pt.sort(V) + X.mean(axis=0), "avg"
    yield "cumulated means", pt.cumsum(X.mean(axis=0)), "avg"
    yield "mean through weights", X.mean(axis=0) @ W + B, "avg"
    yield "stacked means", pt.stack([X.mean(), Y.mean(), 1.0]), "avg"
    yield "zeros", (0 * X).sum(), "avg"
    yield "a mean and a scalar of no shape", X.mean() + pt.alloc(0.0), "avg"
    yield "repeated rows", pt.repeat(Y, 2), "gather"
    yield "repeated", pt.repeat(X, 2, axis=0) @ W, "gather"
    yield "ones", pt.ones_like(X).mean(), "avg"
    yield "cross entropy", softmax_loss(), "avg"
    yield "cross entropy by logs", log_softmax_loss(), "avg"
    yield "cross entropy by one hot", one_hot_loss(), "avg"
    yield "network", network(), "avg"
    yield "log-likelihood", log_likelihood(), "sum"
    yield "mixture", mixture(), "sum"
    yield "scan over time", recurrent(), "gather"
    yield "loss of a scan over time", (recurrent().sum(axis=1) - Y).mean(), "avg"
    yield "map over the rows", by_row(), "gather"
    yield "scan of two taps", two_taps(), "gather"
    yield "weights of steps", dense_over_time(X3).transpose(1, 0, 2), "gather"
    yield "merged and split", times_weights(X3).transpose(1, 0, 2), "gather"
    yield "steps as columns", times_weights(X3)[-1], "gather"
    yield "words looked up one by one", looked_up().transpose(1, 0, 2), "gather"
    yield "mean of what is merged", (X.T.flatten() ** 2).mean(), "avg"
    yield "labels of steps", losses_by_step(X3), "gather"
    yield "labels of steps counted", losses_by_step(STATIC, of_labels=True), "gather"
    yield "in rows again", losses_by_step(X3).reshape((ROWS, 2)), "gather"
    yield "labels, time first", steps_apart().T, "gather"
    yield "labels by logs", synk.nn.categorical_crossentropy(*by_step(X3)), "gather"
    yield "steps increased", increased_by_step(), "gather"
    yield "mean of those reversed", reversed_steps().mean(), "avg"
    yield "reversed twice", (2 * X[::-1])[::-1], "gather"
    yield "mean of what is reversed", (X[::-1] * Y[::-1][:, None]).mean(), "avg"
    yield "set from the last", pt.set_subtensor(X[::-1, 0], Y[::-1]), "gather"
    yield "log-densities by scan", log_densities(), "gather"
    yield "their sum", log_densities().sum(), "sum"
    yield "their mean", log_densities().mean(), "avg"
    yield "summed up in a scan", summed_up(), "sum"
    yield "mean by a scan", summed_up() / ROWS, "avg"
    yield (
        "summed up from the last",
        accumulated(non_sequences=[V], go_backwards=True),
        "sum",
    )
    yield (
        "n and more",
        carried(lambda x, y, s: s + y, ROWS.astype("float64"))[-1],
        "sum",
    )
    yield "largest by a scan", carried(lambda x, y, s: pt.maximum(y, s))[-1], "max"
    yield "smallest by a scan", carried(lambda x, y, s: pt.minimum(s, y))[-1], "min"
    yield "product by a scan", carried(lambda x, y, s: s * y, ONE)[-1], "prod"
    yield "steps counted", carried(lambda x, y, s: s + 1.0)[-1], "sum"
    yield "layers by scan", layers(X), "gather"
    yield "sums in a scan", over_time(lambda xt, s: s + xt.sum(), [ZERO]), "sum"
    yield "means in a scan", over_time(lambda xt, s: s + xt.mean(), [ONE]), "avg"
    yield (
        "maxima in a scan",
        over_time(lambda xt, s: pt.maximum(s, xt.max()), [ONE]),
        "max",
    )
    yield "moments in a scan", over_time(_add_moments, [pt.zeros((3, 3))]), "sum"
    yield (
        "scan of weights",
        over_time(lambda s: pt.tanh(2 * s), [C], n_steps=3) * X.mean(),
        "avg",
    )
    yield "scan until weights are small", until_small(lambda s: s < 0.1), "gather"
    yield "graph as an Op, rows", square_of_graph()[0], "gather"
    yield "graph as an Op, sum", square_of_graph()[1], "sum"
    yield "synchronised statistics", synchronised(), "gather"
    yield "all-reduced", synk.ops.all_reduce(X.mean()) ** 2, None
    yield "dropout, a draw", (X * STREAM.binomial(1, 0.5, size=X.shape)).mean(), "avg"
    yield "draw of the rows' size", STREAM.normal(X, 1.0), "gather"
    yield "ignored by the gradient", pytensor.gradient.disconnected_grad(X), "gather"
    for loss, op in [
        (softmax_loss(), "avg"),
        (log_softmax_loss(), "avg"),
        (one_hot_loss(), "avg"),
        (squares(), "avg"),
        (network(), "avg"),
        (log_likelihood(), "sum"),
        (mixture(), "sum"),
        ((recurrent() ** 2).sum(axis=1).mean(), "avg"),
        ((TABLE[LABELS] * X).sum(axis=1).mean(), "avg"),
        ((TABLE[LABELS] * X).sum(), "sum"),
        (pt.sqrt((X @ W) ** 2 + 1).max(axis=1).mean(), "avg"),
        (pt.logsumexp(X @ W, axis=1).mean(), "avg"),
        (((X3 @ W + B) ** 2).mean(), "avg"),
        ((synchronised() @ V).mean(), "avg"),
        (((synchronised() @ V - Y) ** 2).mean(), "avg"),
        (square_of_graph()[0].sum(), "sum"),
        ((times_weights(X3) ** 2).mean(), "avg"),
        ((looked_up() ** 2).sum(axis=(0, 2)).mean(), "avg"),
        ((looked_up(3) ** 2).sum(), "sum"),
        ((dense_over_time(X3) ** 2).sum(), "sum"),
        (losses_by_step(X3).mean(), "avg"),
        (losses_by_step(X3).sum(), "sum"),
        (losses_by_step(X3, time_first=True).mean(), "avg"),
        (losses_by_step(X3, time_first=True).sum(), "sum"),
        (losses_by_step(STATIC, time_first=True, of_labels=True).mean(), "avg"),
        (synk.nn.categorical_crossentropy(*by_step(X3, True)).mean(), "avg"),
        (reversed_steps().mean(), "avg"),
        (log_densities().sum(), "sum"),
        (log_densities().mean(), "avg"),
        (summed_up(), "sum"),
        (summed_up() / ROWS, "avg"),
    ]:
        for of in (W, V, B, C, TABLE):
            gradient = pytensor.grad(loss, of, disconnected_inputs="ignore")
            is_zero = of not in pytensor.graph.traversal.ancestors([loss])
            if not is_zero:
                yield f"gradient of {of} in {loss}", gradient, op


def layers(x):
    return over_time(lambda h: pt.tanh(h @ W[:, :3]) + h, [x], n_steps=3)


def _add_moments(xt, s):
    return s + xt.T @ xt


def until_small(stop):
    """Scale rows until something is small."""
    _, rows = pytensor.scan(
        lambda s, h: ((s / 2, h * s), until(stop(s / 2))),
        outputs_info=[C, X],
        n_steps=9,
        return_updates=False,
    )
    return rows[-1]
