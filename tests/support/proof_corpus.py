"""Graphs that people write, and what the splitting proof must say of them.

That is the op that follows; or, where rows meet, the Op that is in the way.
"""

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors
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


def log_likelihood():
    """A sum over the rows of a normal density, and a prior scaled by nothing."""
    z = (Y - X @ V) / C
    return (-0.5 * z**2 - pt.log(C) - 0.5 * np.log(2 * np.pi)).sum()


def recurrent():
    """Return the last state of a network over axis 1; rows are along axis 0."""
    return over_time(lambda xt, h: pt.tanh(xt @ W + h), [pt.zeros((X3.shape[0], 4))])


def over_time(step, initial, **kwargs):
    """Return the last state of a scan over axis 1 of x3; rows are along axis 0."""
    sequences = [] if "n_steps" in kwargs else [X3.dimshuffle(1, 0, 2)]
    states = pytensor.scan(
        step, sequences, outputs_info=initial, return_updates=False, **kwargs
    )
    return states[-1]


ZERO, ONE = np.float64(0), np.float64(1)


def log_densities():
    """Return the log-density of each row, by a scan."""
    return pytensor.scan(
        lambda x, y, v: -0.5 * (y - x @ v) ** 2 - pt.log(C),
        sequences=[X, Y],
        non_sequences=[V],
        return_updates=False,
    )


def carried(step, **kwargs):
    """Return the states of a scan over the rows of x and y."""
    return pytensor.scan(
        step, [X, Y], outputs_info=[ZERO], return_updates=False, **kwargs
    )


def looked_up():
    """Look up two words for each row, all in one vector, time first."""
    words = pt.stack([LABELS, LABELS + 1])
    return TABLE[words.flatten()].reshape((*words.shape, 3))


def times_weights(x):
    """Multiply by weights, as ``tensordot`` does: time and rows are one axis."""
    merged = x.transpose(1, 0, 2).reshape((x.shape[1] * x.shape[0], -1))
    return (merged @ W).reshape((x.shape[1], x.shape[0], W.shape[1]))


def by_step(x, time_first=False):
    """Return probabilities of 4 classes, for each row and step of 2, and labels."""
    labels = pt.stack([LABELS, 2 - LABELS], axis=0 if time_first else 1)
    x = x.transpose(1, 0, 2) if time_first else x
    p = pt.special.softmax(x.reshape((-1, x.shape[2])) @ W, axis=1)
    return p, labels.flatten()


def losses_by_step(x):
    """Return the cross-entropy of each row and step, as one vector."""
    p, labels = by_step(x)
    return -pt.log(p[pt.arange(p.shape[0]), labels])


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
    yield "sum", X.sum(), "sum"
    yield "mean of bytes", BYTES.mean(), "avg"
    yield "max", X.max(axis=0), "max"
    yield "min", X.min(), "min"
    yield "prod", Y.prod(), "prod"
    yield "any", FLAGS.any(), "max"
    yield "all", (Y > 0).all(), "min"
    yield "none of", ~FLAGS.any(), "min"
    yield "length", ROWS, "sum"
    yield "length times weights", (Y.shape * V).sum(), "sum"
    yield "columns", X.shape[1], None
    yield "lengths of several axes", (X3.shape * np.array([1, 2, 3]))[1:], None
    yield "rows", X, "gather"
    yield "hits", pt.eq((X @ W).argmax(axis=1), LABELS).mean(), "avg"
    yield "softmax", pt.special.softmax(X @ W, axis=1), "gather"
    yield "columns listed", X[:, [2, 0]], "gather"
    yield "up to the number of entries", X.flatten()[: X.size], "gather"
    yield "of as many entries", pt.specify_shape(X.flatten(), (X.size,)), "gather"
    yield "cumulated columns", pt.cumsum(X, axis=1), "gather"
    yield "flattened", X3.flatten(2), "gather"
    yield "reshaped by -1", X.reshape((-1, 3)), "gather"
    yield "twice contracted", pt.tensordot(STATIC, STATIC, [[0, 1], [0, 1]]), "sum"
    yield "places", pt.searchsorted(pt.sort(V), Y), "gather"
    yield "row by row", pt.take_along_axis(X, LABELS[:, None], axis=1), "gather"
    yield "printed", Print("x")(X), "gather"
    yield "checked", Assert()(X, X.max() < 99), "gather"
    yield "split", pt.split(X, [1, 2], axis=1)[1], "gather"
    yield "repeated columns", pt.repeat(X, 2, axis=1), "gather"
    yield "moments", X.T @ X, "sum"
    yield "outer products", pt.einsum("ni,nj->ij", X, X), "sum"
    yield "tensordot beside the rows", pt.tensordot(X3, W, axes=1), "gather"
    yield "histogram", pt.inc_subtensor(pt.zeros(7)[LABELS], 1.0), "sum"
    yield "where", pt.where(X > 0, X, 0.1 * X), "gather"
    yield "where of weights", pt.where(C > 0, X.mean(), Y.mean()), "avg"
    yield "ifelse of weights", ifelse(C > 0, X.sum(), Y.sum()), "sum"
    yield "two sums", X.sum() + 2 * Y.sum(), "sum"
    yield "sum and n constants", X.sum() + ROWS * (V**2).sum(), "sum"
    yield "scaled maximum", 2 * X.max() + 1, "max"
    yield "exp of a maximum", pt.exp(X.max()), "max"
    yield "largest of all", pt.maximum(X.max(), Y.max()), "max"
    yield "product of products", X.prod() / Y.prod(), "prod"
    yield "cumulated means", pt.cumsum(X.mean(axis=0)), "avg"
    yield "stacked means", pt.stack([X.mean(), Y.mean(), 1.0]), "avg"
    yield "zeros", (0 * X).sum(), "avg"
    by_row = pytensor.map(lambda x, v: pt.tanh(x @ v), [X], [V], return_updates=False)
    yield "map over the rows", by_row, "gather"
    yield "their mean", log_densities().mean(), "avg"
    yield "their sum", log_densities().sum(), "sum"
    yield "means in a scan", over_time(lambda xt, s: s + xt.mean(), [ONE]), "avg"
    largest = over_time(lambda xt, s: pt.maximum(s, xt.max()), [ONE])
    yield "maxima in a scan", largest, "max"
    of_weights = over_time(lambda s: pt.tanh(2 * s), [C], n_steps=3)
    yield "scan of weights", of_weights * X.mean(), "avg"
    yield "scan until weights are small", until_small(lambda s: s < 0.1), "gather"
    yield "dropout, a draw", (X * STREAM.binomial(1, 0.5, size=X.shape)).mean(), "avg"
    yield "draw of the rows' size", STREAM.normal(X, 1.0), "gather"
    yield "ignored by the gradient", pytensor.gradient.disconnected_grad(X), "gather"
    for loss, op in [
        (log_softmax_loss(), "avg"),
        (log_likelihood(), "sum"),
        ((recurrent() ** 2).sum(axis=1).mean(), "avg"),
        (pt.sqrt((X @ W) ** 2 + 1).max(axis=1).mean(), "avg"),
        (((X3 @ W + B) ** 2).mean(), "avg"),
        ((synchronised() @ V).mean(), "avg"),
        (square_of_graph()[0].sum(), "sum"),
        ((times_weights(X3) ** 2).mean(), "avg"),
        ((looked_up() ** 2).sum(axis=(0, 2)).mean(), "avg"),
        ((looked_up() ** 2).sum(), "sum"),
        (losses_by_step(X3).mean(), "avg"),
        (losses_by_step(X3).sum(), "sum"),
        (reversed_steps().mean(), "avg"),
    ]:
        below = set(ancestors([loss]))
        for of in filter(below.__contains__, (W, V, B, C, TABLE)):
            yield f"gradient of {of} in {loss}", pytensor.grad(loss, of), op


def layers(x):
    return over_time(lambda h: pt.tanh(h @ W[:, :3]) + h, [x], n_steps=3)


def until_small(stop):
    """Scale rows until something is small."""
    _, rows = pytensor.scan(
        lambda s, h: ((s / 2, h * s), until(stop(s / 2))),
        outputs_info=[C, X],
        n_steps=9,
        return_updates=False,
    )
    return rows[-1]


def refused():
    """Yield what must be refused, and the name of the Op in the way."""
    yield "square of a mean", X.mean() ** 2, "Pow"
    yield "root of a mean", pt.sqrt(squares()), "Sqrt"
    yield "product of means", X.mean() * Y.mean(), "Mul"
    yield "ratio of sums", X.sum() / Y.sum(), "True_div"
    yield "sum and constant", X.sum() + 1.0, "Add"
    yield "sum and mean", X.sum() + Y.mean(), "Add"
    yield "sum and prior", log_likelihood() - (V**2).sum(), "Sub"
    yield "mean and length", X.mean() + ROWS, "Add"
    yield "square of the length", ROWS**2, "Pow"
    yield "length less one", X.sum() / (ROWS - 1), "Sub"
    # PyTensor 3.3 asks first whether the maximum is infinite.
    yield "log-sum-exp", pt.logsumexp(X), "Log|Isinf"
    yield "sort", pt.sort(Y), "Sort"
    yield "cumulative sum", pt.cumsum(X, axis=0), "Cumsum"
    yield "argmax", X.argmax(axis=0), "Argmax"
    yield "reversed and not", X * X[::-1], "Mul"
    yield "reversed by labels", X[::-1][pt.arange(ROWS), LABELS], "AdvancedSub"
    yield "merged and not split", times_weights(X3), "axis 1"
    yield "split in another way", X.T.flatten().reshape((ROWS, -1)), "Reshape"
    yield "blocks that end within rows", _uneven_blocks(), "Reshape"
    yield "blocks of a graph", _blocks_of_graph(), "OpFromGraph|blocks"
    yield "first row", X[0], "Subtensor"
    yield "first n columns", X[:, : Y.shape[0]], "Subtensor"
    yield "masked", X[FLAGS], "AdvancedSubtensor"
    yield "picked rows", X[LABELS], "AdvancedSubtensor"
    yield "non-zero", pt.nonzero(Y)[0], "Nonzero"
    yield "row numbers as places", TABLE[pt.arange(ROWS)], "AdvancedSub"
    yield "short row numbers", X[pt.arange(ROWS, dtype="int8"), LABELS], "ARange"
    by_number = pt.inc_subtensor(pt.zeros(7)[pt.arange(ROWS)], 1.0)
    yield "added by row number", by_number, "AdvancedInc"
    for what, pair, op in _steps_and_labels():
        yield f"steps by labels, {what}", pair, op
    yield "rows, or twice as many", ifelse(C > 0, pt.repeat(Y, 2), Y), "if{"
    yield "all pairs", X @ X.T, "Matmul"
    yield "all pairs of numbers", pt.outer(Y, Y), "Dot"
    yield "all differences", Y[:, None] - Y[None, :], "Sub"
    yield "columns of a vector", X * Y, "Mul"
    yield "weighted by row numbers", Y * pt.arange(ROWS), "Mul"
    yield "time stamps", pt.arange(1, ROWS + 1), "ARange|Add"
    yield "joined rows", pt.concatenate([X, X], axis=0), "Join"
    yield "stacked in front", pt.stack([Y, Y], axis=0), "Join|rows lie|MakeVector"
    yield "rolled", pt.roll(X, 1, axis=0), "Subtensor"
    yield "all in one row", X.reshape((1, -1)) @ pt.ones((6, 1)), "Reshape|fixes|Matmul"
    yield "two rows", X.reshape((2, -1)), "Reshape"
    yield "seven rows in one", Y.reshape((-1, 7)).sum(axis=1), "Reshape"
    yield "matrix of fixed length", X + W[:, :3][:1].T, "Add"
    yield "product and constant", Y.prod() + 1, "Add"
    yield "log of a product", pt.log(Y.prod()), "Log"
    yield "exp of a sum", pt.exp(Y.sum()), "Exp"
    yield "sum cut to integers", X.sum(dtype="int64") / 2.0, "Sum"
    yield "shape", X.shape, "Shape"
    yield "wrapping product", pt.dot(BYTES, BYTES), "Dot"
    yield "wrapping maximum", BYTES.max() + np.uint8(9), "Add"
    yield "any maximum", pt.any(X.max(axis=0)), "Neq"
    one_place = pt.inc_subtensor(pt.zeros(2)[[0, 0]], X.max(axis=0)[:2])
    yield "maxima put in one place", one_place, "AdvancedInc"
    yield "maximum times weights", C * X.max(), "Mul"
    yield "maximum and minimum", X.max() - X.min() * 1.0 + X.max(), "Sub|Add"
    yield "log of a maximum", pt.log(X.max()), "Log"
    yield "smaller of maxima", pt.minimum(X.max(), Y.max()), "Minimum"
    yield "truncated mean", pt.cast(X.mean(), "int64"), "Cast"
    yield "less a sum of bytes", 3 - BYTES.sum().astype("uint64"), "Sub|Cast"
    words = BYTES.astype("uint32")
    less = words.sum(dtype="uint32") * np.uint32(2**32 - 3)
    yield "maximum of unsigned", words.max() * np.uint32(2**32 - 3), "Mul"
    yield "less unsigned", less.astype("float64"), "Cast"
    yield "unsigned times length", (BYTES * ROWS).astype("uint64") / ROWS, "Mul"
    yield "less than no length", (-ROWS).astype("uint64") / ROWS, "Cast"
    yield "less unsigned length", -ROWS.astype("uint64") / ROWS, "Neg"
    yield "chosen by a mean", pt.where(X.mean() > 0, X, -X), "Gt|Switch"
    yield "determinant", pt.linalg.det(X.T @ X), "Det"
    yield "solution", pt.linalg.solve(X.T @ X, X.T @ Y), "Solve"
    yield "last of those set", pt.set_subtensor(pt.zeros(7)[LABELS], Y), "AdvancedSet"
    yield "added to a table", pt.inc_subtensor(TABLE[LABELS], X), "AdvancedInc"
    yield "gradient of each row", pytensor.grad(squares(), X), "divided by"
    yield "scan along the rows", carried(lambda x, y, s: s + y), "Scan|Add"
    yield "running mean", carried(lambda x, y, s: 0.9 * s + 0.1 * y)[-1], "Scan|Add"
    yield "largest by a scan", carried(lambda x, y, s: pt.maximum(y, s))[-1], "Scan|Add"
    slope = pytensor.grad(log_densities().sum(), V)
    yield "summed up by a gradient", slope, "Scan|Add"
    yield "a row less", carried(lambda x, y, s: s + y, n_steps=ROWS - 1)[-1], "Scan|Sub"
    yield "centred by scan", _mapped(lambda x, m: x - m, [X], [X.mean(0)]), "a step|Sub"
    yield "a step beside a sum", _running_pair(), "Scan|Add"
    tanh_of_sums = over_time(lambda xt, s: pt.tanh(s + xt.sum()), [ZERO])
    yield "function of sums in a scan", tanh_of_sums, "Tanh"
    yield "sums from 1", over_time(lambda xt, s: s + xt.sum(), [ONE]), "Add"
    yield (
        "mapped from the last",
        _mapped(lambda x: 2 * x, [X], go_backwards=True),
        "from the last",
    )
    yield "means by scan, into rows", layers(X - X.mean()), "Sub"
    yield "means in the step", over_time(lambda xt, s: xt - s.mean(0), [X]), "Sub"
    yield "scan until rows are small", until_small(lambda s: s < X.sum()), "Scan|Lt"
    yield "a step for each row", over_time(lambda s: 2 * s, [C], n_steps=ROWS), "Scan"
    yield "noise alike for all", Y * STREAM.normal(0, 1), "normal"
    yield "an Op of which nothing is known", _Shift()(Y), "_Shift"
    of_statistics = pytensor.grad((batch_norm() @ V * Y).mean(), V)
    yield "gradient through statistics", of_statistics, "Sub"


def _uneven_blocks():
    """Return blocks of three elements for each row as rows of two, and weigh those."""
    blocks = STATIC.transpose(1, 0, 2).reshape((-1, 2))
    return (blocks * np.array([1.0, 2.0])).sum()


def _blocks_of_graph():
    """Put blocks of other numbers together, which have one name in a graph."""
    a = pt.matrix()
    op = OpFromGraph([a], [a.T.flatten()])
    return op(X[:, :2]) - op(X.flatten().reshape((-1, 1)))[: 2 * ROWS]


def _mapped(step, rows, others=(), **options):
    return pytensor.map(step, rows, list(others), return_updates=False, **options)


def _running_pair():
    return pytensor.scan(
        lambda y, s: (s + y, s * y), [Y], [ZERO, None], return_updates=False
    )[1]


class _Shift(Op):
    """Each row gets the next one."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.roll(inputs[0], 1)


def _steps_and_labels():
    """Yield steps in pairs with labels that are, or may be, others'."""
    p, labels = by_step(X3)
    q, first = by_step(X3, time_first=True)
    s, _ = by_step(STATIC)
    some, every = pt.arange(labels.shape[0]), pt.arange(p.shape[0])
    yield "numbers reversed", s[some[::-1], labels], "Subtensor"
    yield "set elsewhere", pt.set_subtensor(q[every, first], pt.repeat(Y, 2)), "Adv"
    yield "ungathered", q[every, first], "again and again"
