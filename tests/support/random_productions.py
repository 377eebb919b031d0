"""Productions of random graphs: each makes a value of values that are there, or None.

Some couple rows on purpose.
"""

import numpy as np
import pytensor.tensor as pt
from random_graphs import Graph, N, Term

UNARY = [
    *[pt.neg, pt.exp, pt.tanh, pt.sigmoid, pt.abs, pt.sqr, pt.floor, pt.sign],
    *[pt.zeros_like, pt.ones_like],
    lambda v: pt.sqrt(pt.abs(v)),
    lambda v: pt.log1p(pt.abs(v)),
    lambda v: 0.5 * v,
    lambda v: -2.0 * v,
    lambda v: v + 1.5,
    lambda v: v**3,
    lambda v: 1.5 - v,
    lambda v: v / -2.0,
    lambda v: 1.0 / (v + 4.0),
    lambda v: pt.cast(v, "complex128").real,
    lambda v: pt.cast(v, "int64").astype("float64"),
    lambda v: (v > 0.5).astype("float64"),
    lambda v: pt.switch(v > 0, v, 0.1 * v),
    lambda v: pt.clip(v, -1, 1),
]
BINARY = [
    *[pt.add, pt.sub, pt.mul, pt.maximum, pt.minimum, pt.second],
    lambda a, b: a / (pt.abs(b) + 1.0),
    lambda a, b: a / b,
    lambda a, b: pt.switch(a > b, a, b),
    lambda a, b: pt.switch(a > 0, a, b),
]


def _without(term: Term, *axes: int) -> tuple:
    """Return the shape of a term without some axes."""
    return tuple(dim for i, dim in enumerate(term.dims) if i not in axes)


def _with(term: Term, axis: int, dim, of_more: int = 0) -> tuple:
    """Return the shape with another length of an axis, or with one more axis."""
    return (*term.dims[:axis], dim, *term.dims[axis + 1 - of_more :])


def unary(g: Graph) -> Term | None:
    term = g.all_floats()
    return Term(g.choice.of(UNARY)(term.var), term.dims)


def _broadcast(a: Term, b: Term) -> tuple | None:
    """Return the shape of both together, where PyTensor sees that they fit."""
    dims = []
    for i in range(1, max(a.ndim, b.ndim) + 1):
        one = a.dims[-i] if i <= a.ndim else 1
        two = b.dims[-i] if i <= b.ndim else 1
        for term, dim in ((a, one), (b, two)):
            if i <= term.ndim and dim == 1 and term.var.type.shape[-i] != 1:
                return None
        if one != two and 1 not in (one, two):
            return None
        dims.append(two if one == 1 else one)
    return tuple(reversed(dims))


def binary(g: Graph) -> Term | None:
    a = g.all_floats()
    b = g.all_floats(lambda term: _broadcast(a, term) is not None)
    return Term(g.choice.of(BINARY)(a.var, b.var), _broadcast(a, b))


def pairs(g: Graph) -> Term | None:
    """Pair every row with every other one, or with itself."""
    a, b = g.of_dims((N,)), g.of_dims((N,))
    function = g.choice.of([pt.mul, pt.sub])
    if g.choice.maybe():
        return Term(function(a.var[:, None], b.var[None, :]), (N, N))
    return Term(function(a.var[:, None], b.var[:, None]), (N, 1))


def reduce(g: Graph) -> Term | None:
    term = g.all_floats(lambda term: term.ndim)
    name = g.choice.of([*["sum", "mean"] * 3, *["max", "min", "prod"] * 2, "var"])
    axis = g.choice.of([None, *range(term.ndim)])
    keep = g.choice.maybe()
    var = getattr(term.var, name)(axis=axis, keepdims=keep)
    axes = range(term.ndim) if axis is None else [axis]
    kept = tuple(1 if i in axes else dim for i, dim in enumerate(term.dims))
    return Term(var, kept if keep else _without(term, *axes))


def rows_reduced(g: Graph) -> Term | None:
    """Reduce over the rows, so that there are many folds."""
    term = g.floats(lambda term: N in term.dims)
    axis = term.dims.index(N)
    name = g.choice.of(["sum", "mean", "max", "min", "prod"])
    return Term(getattr(term.var, name)(axis=axis), _without(term, axis))


def any_or_all(g: Graph) -> Term | None:
    term = g.floats(lambda term: term.ndim)
    name = g.choice.of(["any", "all"])
    return Term(getattr(term.var > 0.3, name)().astype("float64"), ())


def scaled(g: Graph) -> Term | None:
    """Multiply or divide by the number of rows, or of something else."""
    term = g.all_floats()
    of = g.some(lambda other: other.ndim and None not in other.dims)
    size = of.var.shape[g.choice.below(of.ndim)].astype("float64")
    var = term.var * size if g.choice.maybe() else term.var / size
    return Term(var, term.dims)


def length(g: Graph) -> Term | None:
    of = g.some(lambda other: other.ndim and None not in other.dims)
    size = g.choice.of([of.var.size, *of.var.shape])
    return Term(size.astype("float64"), ())


def matmul(g: Graph) -> Term | None:
    a = g.all_floats(lambda term: term.ndim in (1, 2))
    b = g.all_floats(lambda term: term.ndim in (1, 2) and term.dims[0] == a.dims[-1])
    return Term(a.var @ b.var, (*a.dims[:-1], *b.dims[1:]))


def batched(g: Graph) -> Term | None:
    a = g.floats(lambda term: term.ndim == 3)
    b = g.floats(lambda b: b.dims[-2:-1] == a.dims[-1:] and b.ndim in (2, 3))
    if b.ndim == 3 and b.dims[0] != a.dims[0]:
        return None
    return Term(a.var @ b.var, (*a.dims[:2], b.dims[-1]))


def tensordot(g: Graph) -> Term | None:
    a = g.floats(lambda term: term.ndim)
    axis = g.choice.below(a.ndim)
    b = g.floats(lambda term: term.ndim and a.dims[axis] in term.dims)
    other = b.dims.index(a.dims[axis])
    dims = _without(a, axis) + _without(b, other)
    if len(dims) > 3:
        return None
    return Term(pt.tensordot(a.var, b.var, axes=[[axis], [other]]), dims)


def transpose(g: Graph) -> Term | None:
    term = g.all_floats(lambda term: term.ndim > 1)
    order = g.choice.of([(1, 0, 2), (2, 0, 1), (0, 2, 1), (2, 1, 0)])
    order = order if term.ndim == 3 else (1, 0)
    return Term(term.var.transpose(*order), tuple(term.dims[i] for i in order))


def expand(g: Graph) -> Term | None:
    term = g.all_floats(lambda term: term.ndim < 3)
    axis = g.choice.below(term.ndim + 1)
    return Term(pt.expand_dims(term.var, axis), _with(term, axis, 1, 1))


def slices(g: Graph) -> Term | None:
    term = g.floats(lambda term: term.ndim)
    axis = g.choice.below(term.ndim)
    less = [slice(1, None), slice(None, -1)]
    entry = g.choice.of([slice(None), slice(None, None, -1), 0, *less])
    var, dim = term.var[(*[slice(None)] * axis, entry)], term.dims[axis]
    if entry == 0:
        return Term(var, _without(term, axis))
    if entry in less:
        dim = None if dim == N else dim - 1
    if dim in (0, 1):
        return None  # its type does not say so, and it must not be broadcast
    return Term(var, _with(term, axis, dim))


def picked(g: Graph) -> Term | None:
    """For each row, an element that the labels tell."""
    term, k = g.of_dims((N, 3), (N, 4), (3, 3), (3, 4), (4, 3)), g.inputs[3]
    if term.dims[0] == N:
        return Term(term.var[pt.arange(k.shape[0]), k], (N,))
    return Term(term.var[k], (N, term.dims[1]))


def picked_columns(g: Graph) -> Term | None:
    term = g.floats(lambda term: term.ndim > 1 and term.dims[1] in (3, 4))
    var = g.choice.of([term.var[:, [2, 0]], term.var[:, [1, 1]]])
    return Term(var, _with(term, 1, 2))


def sliced_set(g: Graph) -> Term | None:
    term = g.floats(lambda term: term.ndim > 1 and term.dims[1] in (3, 4))
    other = g.of_dims((), (term.dims[0],))
    if term.ndim == 3 and other.dims:
        return None
    put = g.choice.of([pt.set_subtensor, pt.inc_subtensor])
    return Term(put(term.var[:, 1], other.var), term.dims)


def scattered_inc(g: Graph) -> Term | None:
    """Each row adds to a place of its own choice."""
    term, other = g.of_dims((3, 3), (4, 3)), g.of_dims((N, 3), (3,), ())
    put = g.choice.of([pt.inc_subtensor, pt.inc_subtensor, pt.set_subtensor])
    zeros = pt.zeros_like(term.var) if g.choice.maybe() else term.var
    return Term(put(zeros[g.inputs[3]], other.var), term.dims)


ALONG = [pt.special.softmax, pt.special.log_softmax, pt.cumsum, pt.sort]
"""Functions along an axis, which keep it."""
OVER = [
    lambda v, axis: v.argmax(axis=axis).astype("float64"),
    lambda v, axis: pt.logsumexp(pt.tanh(v), axis=axis),
]


def along(g: Graph) -> Term | None:
    term = g.all_floats(lambda term: term.ndim)
    axis = g.choice.below(term.ndim)
    return Term(g.choice.of(ALONG)(term.var, axis=axis), term.dims)


def over(g: Graph) -> Term | None:
    term = g.all_floats(lambda term: term.ndim)
    axis = g.choice.below(term.ndim)
    return Term(g.choice.of(OVER)(term.var, axis), _without(term, axis))


def joined(g: Graph) -> Term | None:
    a = g.floats(lambda term: term.ndim)
    axis = g.choice.below(a.ndim)
    b = g.floats(lambda b: b.ndim == a.ndim and _without(b, axis) == _without(a, axis))
    if 1 in a.dims or 1 in b.dims:
        return None
    both = a.dims[axis], b.dims[axis]
    dims = _with(a, axis, None if N in both else sum(both))
    return Term(pt.concatenate([a.var, b.var], axis=axis), dims)


def stacked(g: Graph) -> Term | None:
    a = g.floats(lambda term: term.ndim < 3)
    b, axis = g.of_dims(a.dims), g.choice.below(a.ndim + 1)
    return Term(pt.stack([a.var, b.var], axis=axis), _with(a, axis, 2, 1))


def flattened(g: Graph) -> Term | None:
    term = g.floats(lambda term: term.ndim > 1)
    first, *rest = term.dims
    if N in rest:
        return Term(term.var.flatten(), (None,))
    size = int(np.prod(rest))
    if g.choice.maybe():
        return Term(term.var.reshape((term.var.shape[0], -1)), (first, size))
    return Term(term.var.flatten(), (None,) if first == N else (first * size,))


def reshaped(g: Graph) -> Term | None:
    term = g.of_dims((N, 2, 3), (2, 3), (N, 3, 2))
    if term.ndim == 2:
        return Term(term.var.reshape((3, 2)), (3, 2))
    shape = term.var.shape
    n = shape[0]
    new, dims = g.choice.of(
        [
            ((n, 3, 2), (N, 3, 2)),
            ((-1, 6), (N, 6)),
            ((6, -1), (6, None)),
            ((n * shape[1], shape[2]), (None, term.dims[2])),
        ]
    )
    return Term(term.var.reshape(new), dims)


def reduced_unknown(g: Graph) -> Term | None:
    """Reduce what has a length that is neither n nor a number."""
    term = g.some(lambda term: None in term.dims)
    return Term(getattr(term.var, g.choice.of(["sum", "mean", "max"]))(), ())


def allocated(g: Graph) -> Term | None:
    term = g.floats(lambda term: term.ndim < 3)
    n = g.inputs[0].shape[0]
    dims, n = g.choice.of([((N, *term.dims), n), ((2, *term.dims), 2)])
    return Term(pt.alloc(term.var, n, *term.var.shape), dims)


def gradient(g: Graph) -> Term | None:
    cost = g.all_floats(lambda term: term.ndim == 0 and term in g.made)
    return g.slope(cost.var, null_gradients="return")


def loss_gradient(g: Graph) -> Term | None:
    """The gradient of a mean or sum of something over the rows."""
    term = g.all_floats(lambda term: N in term.dims)
    cost = g.choice.of([term.var.mean(), term.var.sum(), (term.var**2).mean()])
    g.terms.append(Term(cost, ()))
    return gradient(g)


PRODUCTIONS = [
    *[unary, binary, rows_reduced] * 5,
    *[reduce, scaled, matmul, transpose, loss_gradient] * 2,
    *[gradient, any_or_all, pairs, length, batched, tensordot, expand, slices],
    *[picked, picked_columns, sliced_set, scattered_inc, along, over, over],
    *[joined, stacked, flattened, reshaped, reduced_unknown, allocated],
]


# -- statistics of all rows that meet rows again ---------------------------------------


def met_again(g: Graph) -> Term | None:
    """Rows less their mean, over their sum, their largest, or the like."""
    term = g.floats(lambda term: term.dims.count(N) == 1)
    var, along = term.var, {"axis": term.dims.index(N), "keepdims": True}
    made = [
        lambda: var - var.mean(**along),
        lambda: (var - var.mean(**along)) / pt.sqrt(var.var(**along) + 0.1),
        lambda: pt.special.softmax(pt.tanh(var), axis=along["axis"]),
        lambda: pt.special.log_softmax(pt.tanh(var), axis=along["axis"]),
        lambda: var / (1 + pt.abs(var).max(**along)),
        lambda: var / (1 + pt.abs(var).sum(**along)),
        # Not the mean itself: where all rows are alike, rounding would decide.
        lambda: pt.gt(var, var.mean(**along) + 0.013).astype("float64"),
    ]
    return Term(g.choice.of(made)(), term.dims)


def weighted_mean(g: Graph) -> Term | None:
    """A mean by weights, or of the rows of a mask."""
    term = g.floats(lambda term: term.dims[:1] == (N,) and N not in term.dims[1:])
    weights = g.of_dims((N,)).var
    weights = g.choice.of(
        [pt.sigmoid(weights), (weights > -0.5).astype("float64"), pt.ones_like(weights)]
    )
    over = weights.reshape((-1, *[1] * (term.ndim - 1))) * term.var
    return Term(over.sum(axis=0) / (weights.sum() + 0.1), term.dims[1:])


def statistic(g: Graph) -> Term | None:
    """A function of sums and means that is no sum."""
    var = g.floats(lambda term: term.dims.count(N) == 1).var
    made = [
        lambda: var.std(),
        lambda: pt.logsumexp(pt.tanh(var)),
        lambda: (var**2).mean() / (1 + (var**2).mean()),
        lambda: var.mean() * var.sum(),
        lambda: var.sum() + (g.shared[1] ** 2).sum(),
    ]
    return Term(g.choice.of(made)(), ())


def gradient_of_all(g: Graph) -> Term | None:
    """The gradient of all that there is, by a parameter or by the rows."""
    costs = [term.var for term in g.made if term.var.dtype == "float64"]
    if not costs:
        return None
    return g.slope(pt.add(*(pt.tanh(cost).mean() for cost in costs), 0.0))


def filled(g: Graph) -> Term | None:
    """One value for all rows."""
    term = g.floats(lambda term: term.ndim < 3 and N not in term.dims)
    n = g.inputs[0].shape[0]
    return Term(pt.alloc(term.var, n, *term.var.shape), (N, *term.dims))


STATISTICS = [
    *[met_again, weighted_mean, statistic] * 4,
    *[unary, binary, rows_reduced] * 4,
    *[reduce, scaled, loss_gradient] * 2,
    *[gradient_of_all] * 2,
    *[any_or_all, batched, expand],
    *[picked, picked_columns, sliced_set],
    *[over, stacked, filled],
]
"""Without what needs all rows in their order, as sorting does, or pairs of rows."""
