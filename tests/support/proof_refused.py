"""Graphs in which rows meet, and the Ops in the way of the splitting proof."""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
from proof_corpus import (
    BYTES,
    FLAGS,
    LABELS,
    ONE,
    ROWS,
    STATIC,
    STREAM,
    TABLE,
    X3,
    ZERO,
    C,
    V,
    W,
    X,
    Y,
    batch_norm,
    by_step,
    carried,
    layers,
    log_likelihood,
    over_time,
    squares,
    times_weights,
    until_small,
)
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.ifelse import ifelse


def refused():
    """Yield what must be refused, and the name of the Op in the way."""
    yield "variance", X.var(axis=0), "Sub"
    yield "standardised", batch_norm(), "Sub"
    yield "centred", X - X.mean(axis=0), "Sub"
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
    yield "root of the length", X.sum() / pt.sqrt(ROWS), "Sqrt"
    # PyTensor 3.3 asks first whether the maximum is infinite.
    yield "log-sum-exp", pt.logsumexp(X), "Log|Isinf"
    yield "softmax along the rows", pt.special.softmax(X, axis=0), "Softmax"
    yield "sort", pt.sort(Y), "Sort"
    yield "cumulative sum", pt.cumsum(X, axis=0), "Cumsum"
    yield "argmax", X.argmax(axis=0), "Argmax"
    yield "reversed", X[::-1], "from the last"
    yield "reversed and not", X * X[::-1], "Mul"
    yield "reversed by labels", X[::-1][pt.arange(ROWS), LABELS], "AdvancedSub"
    yield "merged and not split", times_weights(X3), "axis 1"
    yield "merged in two ways", X.T.flatten() - X.flatten(), "Sub"
    yield "split in another way", X.T.flatten().reshape((ROWS, -1)), "Reshape"
    yield "blocks that end within rows", _uneven_blocks(), "Reshape"
    yield "blocks of a graph", _blocks_of_graph(), "OpFromGraph|blocks"
    yield "first row", X[0], "Subtensor"
    yield "last row", X[-1], "Subtensor"
    yield "some rows", X[:-1], "Subtensor"
    yield "first rows", X[:2], "Subtensor"
    yield "first n columns", X[:, : Y.shape[0]], "Subtensor"
    yield "differences", pt.diff(Y), "Subtensor"
    yield "masked", X[FLAGS], "AdvancedSubtensor"
    yield "picked rows", X[LABELS], "AdvancedSubtensor"
    yield "non-zero", pt.nonzero(Y)[0], "Nonzero"
    yield "row numbers as places", TABLE[pt.arange(ROWS)], "AdvancedSub"
    yield "short row numbers", X[pt.arange(ROWS, dtype="int8"), LABELS], "ARange"
    yield "added by row number", _added_by_number(), "AdvancedInc"
    for what, pair, op in _steps_and_labels():
        yield f"steps by labels, {what}", pair, op
    yield "rows, or twice as many", ifelse(C > 0, pt.repeat(Y, 2), Y), "if{"
    yield "all pairs", X @ X.T, "Matmul"
    yield "all pairs of numbers", pt.outer(Y, Y), "Dot"
    yield "all differences", Y[:, None] - Y[None, :], "Sub"
    yield "columns of a vector", X * Y, "Mul"
    yield "row numbers", pt.arange(ROWS), "an input|ARange"
    yield "weighted by row numbers", Y * pt.arange(ROWS), "Mul"
    yield "time stamps", pt.arange(1, ROWS + 1), "ARange|Add"
    yield "joined rows", pt.concatenate([X, X], axis=0), "Join"
    yield "stacked in front", pt.stack([Y, Y], axis=0), "Join|rows lie|MakeVector"
    yield "transposed", X.T, "axis 1"
    yield "rolled", pt.roll(X, 1, axis=0), "Subtensor"
    yield "all in one row", X.reshape((1, -1)) @ pt.ones((6, 1)), "Reshape|fixes|Matmul"
    yield "two rows", X.reshape((2, -1)), "Reshape"
    yield "seven rows in one", Y.reshape((-1, 7)).sum(axis=1), "Reshape"
    yield "two rows and a third", STATIC.reshape((-1, 14)), "Reshape"
    yield "flat across rows", X.T.flatten(), "Reshape"
    yield "matrix of fixed length", X + W[:, :3][:1].T, "Add"
    yield "product over fixed length", X.T @ TABLE, "Matmul"
    yield "product of a scaled", (2 * Y).prod() * 3, "Mul"
    yield "product and constant", Y.prod() + 1, "Add"
    yield "log of a product", pt.log(Y.prod()), "Log"
    yield "exp of a sum", pt.exp(Y.sum()), "Exp"
    yield "wrapping sum", BYTES.sum(dtype="uint8") / 2.0, "Sum"
    yield "sum cut to integers", X.sum(dtype="int64") / 2.0, "Sum"
    yield "shape", X.shape, "Shape"
    yield "wrapping product", pt.dot(BYTES, BYTES), "Dot"
    yield "wrapping maximum", BYTES.max() + np.uint8(9), "Add"
    yield "any maximum", pt.any(X.max(axis=0)), "Neq"
    yield (
        "maxima put in one place",
        pt.inc_subtensor(pt.zeros(2)[[0, 0]], X.max(axis=0)[:2]),
        "AdvancedInc",
    )
    yield "two maxima", X.max() + Y.max(), "Add"
    yield "maximum times weights", C * X.max(), "Mul"
    yield "maximum and minimum", X.max() - X.min() * 1.0 + X.max(), "Sub|Add"
    yield "log of a maximum", pt.log(X.max()), "Log"
    yield "smaller of maxima", pt.minimum(X.max(), Y.max()), "Minimum"
    yield "truncated mean", pt.cast(X.mean(), "int64"), "Cast"
    yield "less a sum of bytes", 3 - BYTES.sum().astype("uint64"), "Sub|Cast"
    yield "maximum of unsigned", _bytes(4).max() * np.uint32(2**32 - 3), "Mul"
    less = _bytes(4).sum(dtype="uint32") * np.uint32(2**32 - 3)
    yield "less unsigned", less.astype("float64"), "Cast"
    yield "unsigned times length", (BYTES * ROWS).astype("uint64") / ROWS, "Mul"
    yield "less than no length", (-ROWS).astype("uint64") / ROWS, "Cast"
    yield "less unsigned length", -ROWS.astype("uint64") / ROWS, "Neg"
    yield "mean above a bound", X.mean() > 0, "Gt"
    yield "chosen by a mean", pt.where(X.mean() > 0, X, -X), "Gt|Switch"
    yield "determinant", pt.linalg.det(X.T @ X), "Det"
    yield "solution", pt.linalg.solve(X.T @ X, X.T @ Y), "Solve"
    yield "last of those set", pt.set_subtensor(pt.zeros(7)[LABELS], Y), "AdvancedSet"
    yield "added to a table", pt.inc_subtensor(TABLE[LABELS], X), "AdvancedInc"
    yield "gradient of each row", pytensor.grad(squares(), X), "divided by"
    yield "scan along the rows", _running_sum(), "states of a scan"
    yield "running mean", carried(lambda x, y, s: 0.9 * s + 0.1 * y)[-1], "Scan"
    yield "sum from 1 on", carried(lambda x, y, s: s + y, ONE)[-1], "Scan"
    yield "product from 2 on", carried(lambda x, y, s: s * y, 2 * ONE)[-1], "Scan"
    yield "twice the state", carried(lambda x, y, s: s + s + y)[-1], "Scan"
    yield "signs in turn", carried(lambda x, y, s: y - s)[-1], "Scan"
    yield "squares of the state", carried(lambda x, y, s: s + s * y)[-1], "Scan"
    yield "first of the states", carried(lambda x, y, s: s + y)[0], "states of a scan"
    yield "a row less", carried(lambda x, y, s: s + y, n_steps=ROWS - 1)[-1], "Scan|Sub"
    yield "centred by scan", _centred_by_scan(), "a step|Sub"
    yield "rows from both ends", _from_both_ends(), "Scan"
    yield "a step beside a sum", _running_pair(), "Scan"
    yield (
        "function of sums in a scan",
        over_time(lambda xt, s: pt.tanh(s + xt.sum()), [ZERO]),
        "Tanh",
    )
    yield "sums from 1", over_time(lambda xt, s: s + xt.sum(), [ONE]), "Add"
    yield "mapped from the last", _mapped_backwards(), "from the last"
    yield "means by scan, into rows", layers(X - X.mean()), "Sub"
    yield "means in the step", over_time(lambda xt, s: xt - s.mean(0), [X]), "Sub"
    yield "scan until rows are small", until_small(lambda s: s < X.sum()), "Scan|Lt"
    yield "a step for each row", over_time(lambda s: 2 * s, [C], n_steps=ROWS), "Scan"
    yield "noise alike for all", Y * STREAM.normal(0, 1), "normal"
    yield "an Op of which nothing is known", _Shift()(Y), "_Shift"
    yield (
        "gradient through statistics",
        pytensor.grad((batch_norm() @ V * Y).mean(), V),  # without Y it is 0
        "Sub",
    )
    yield "loss of a standard deviation", (X @ V).std(), "Sub"
    yield "correlation", ((X[:, 0] - X[:, 0].mean()) * Y).mean(), "Sub"


def _bytes(size: int):
    """Return unsigned integers of so many bytes."""
    return BYTES.astype(f"uint{8 * size}")


def _uneven_blocks():
    """Return blocks of three elements for each row as rows of two, and weigh those."""
    blocks = STATIC.transpose(1, 0, 2).reshape((-1, 2))
    return (blocks * np.array([1.0, 2.0])).sum()


def _blocks_of_graph():
    """Put blocks of other numbers together, which have one name in a graph."""
    a = pt.matrix()
    op = OpFromGraph([a], [a.T.flatten()])
    return op(X[:, :2]) - op(X.flatten().reshape((-1, 1)))[: 2 * ROWS]


def _centred_by_scan():
    return pytensor.map(lambda x, m: x - m, [X], [X.mean(0)], return_updates=False)


def _mapped_backwards():
    return pytensor.map(lambda x: 2 * x, [X], go_backwards=True, return_updates=False)


def _from_both_ends():
    return pytensor.map(lambda x, y: x * y, [X, Y[::-1]], return_updates=False)


def _running_pair():
    _, pairs = pytensor.scan(
        lambda y, s: (s + y, s * y),
        sequences=[Y],
        outputs_info=[ZERO, None],
        return_updates=False,
    )
    return pairs


def _running_sum():
    return pytensor.scan(
        lambda y, s: s + y,
        sequences=[Y],
        outputs_info=[np.float64(0)],
        return_updates=False,
    )


class _Shift(Op):
    """Each row gets the next one."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = np.roll(inputs[0], 1)


def _added_by_number():
    return pt.inc_subtensor(pt.zeros(7)[pt.arange(ROWS)], 1.0)


def _steps_and_labels():
    """Yield steps in pairs with labels that are, or may be, others'."""
    p, labels = by_step(X3)
    q, first = by_step(X3, time_first=True)
    s, _ = by_step(STATIC)
    some, every = pt.arange(labels.shape[0]), pt.arange(p.shape[0])
    yield "as many as labels", p[some, labels], "AdvancedSub"
    yield "time first and not", q[every, labels], "AdvancedSub"
    yield "not time first", p[every, first], "AdvancedSub"
    yield "reversed", p[::-1][every, labels], "AdvancedSub"
    yield "labels reversed", p[every, labels[::-1]], "AdvancedSub"
    yield "numbers reversed", s[some[::-1], labels], "Subtensor"
    yield "from 1 on", s[pt.arange(1, labels.shape[0] + 1), labels], "ARange|Add"
    yield "shifted", s[some - 1, labels], "Sub"
    yield "every other", s[pt.arange(0, labels.shape[0], 2), LABELS], "ARange"
    yield "the first n", s[pt.arange(ROWS), LABELS], "AdvancedSub"
    yield "one number, n times", s[pt.arange(ROWS) * 2, LABELS], "Mul"
    yield "more than there are", s[pt.arange(3 * ROWS), 0], "AdvancedSub"
    yield "half of a float", s[pt.arange(ROWS * 2.0).astype("int64"), 0], "ARange"
    yield "numbers twice", s[some, some % 4], "Mod"
    yield "set elsewhere", pt.set_subtensor(q[every, first], pt.repeat(Y, 2)), "Adv"
    yield "numbers", every, "ARange|an input"
    yield "ungathered", q[every, first], "again and again"
