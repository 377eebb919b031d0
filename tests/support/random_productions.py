"""Productions of random graphs: each makes a value of values that are there, or None.

Some couple rows on purpose.
"""

from __future__ import annotations

import numpy as np
import pytensor
import pytensor.tensor as pt
from random_graphs import Graph, N, Term

UNARY = [
    pt.neg,
    pt.exp,
    pt.tanh,
    pt.sigmoid,
    pt.abs,
    pt.sqr,
    pt.floor,
    pt.sign,
    lambda v: pt.sqrt(pt.abs(v)),
    lambda v: pt.log1p(pt.abs(v)),
    lambda v: 0.5 * v,
    lambda v: -2.0 * v,
    lambda v: v + 1.5,
    lambda v: v**3,
    lambda v: 1.5 - v,
    lambda v: v / -2.0,
    lambda v: 1.0 / (v + 4.0),
    pt.zeros_like,
    pt.ones_like,
    lambda v: pt.cast(v, "complex128").real,
    lambda v: pt.cast(v, "int64").astype("float64"),
    lambda v: (v > 0.5).astype("float64"),
    lambda v: pt.switch(v > 0, v, 0.1 * v),
    lambda v: pt.clip(v, -1, 1),
]
BINARY = [
    pt.add,
    pt.sub,
    pt.mul,
    pt.maximum,
    pt.minimum,
    lambda a, b: a / (pt.abs(b) + 1.0),
    lambda a, b: a / b,
    lambda a, b: pt.switch(a > b, a, b),
    lambda a, b: pt.switch(a > 0, a, b),
    pt.second,
]


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
    if b is None:
        return None
    return Term(g.choice.of(BINARY)(a.var, b.var), _broadcast(a, b))


def pairs(g: Graph) -> Term | None:
    """Pair every row with every other one, or with itself."""
    a = g.floats(lambda term: term.dims == (N,))
    b = g.floats(lambda term: term.dims == (N,))
    function = g.choice.of([pt.mul, pt.sub])
    if g.choice.maybe():
        return Term(function(a.var[:, None], b.var[None, :]), (N, N))
    return Term(function(a.var[:, None], b.var[:, None]), (N, 1))


def reduce(g: Graph) -> Term | None:
    term = g.all_floats(lambda term: term.ndim)
    name = g.choice.of(["sum", "mean", "sum", "mean", "max", "min", "prod", "var"])
    axis = g.choice.of([None, *range(term.ndim)])
    keep = g.choice.maybe()
    if name == "var" and g.choice.maybe():
        name = "mean"
    var = getattr(term.var, name)(axis=axis, keepdims=keep)
    axes = range(term.ndim) if axis is None else [axis]
    dims = [1 if i in axes else dim for i, dim in enumerate(term.dims)]
    if not keep:
        dims = [dim for i, dim in enumerate(term.dims) if i not in axes]
    return Term(var, tuple(dims))


def rows_reduced(g: Graph) -> Term | None:
    """Reduce over the rows, so that there are many folds."""
    term = g.floats(lambda term: N in term.dims)
    axis = term.dims.index(N)
    name = g.choice.of(["sum", "mean", "max", "min", "prod"])
    dims = tuple(dim for i, dim in enumerate(term.dims) if i != axis)
    return Term(getattr(term.var, name)(axis=axis), dims)


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
    if b is None:
        return None
    return Term(a.var @ b.var, (*a.dims[:-1], *b.dims[1:]))


def batched(g: Graph) -> Term | None:
    a = g.floats(lambda term: term.ndim == 3)
    b = g.floats(
        lambda term: (
            term.ndim in (2, 3)
            and term.dims[-2] == a.dims[-1]
            and (term.ndim == 2 or term.dims[0] == a.dims[0])
        )
    )
    if b is None:
        return None
    return Term(a.var @ b.var, (*a.dims[:2], b.dims[-1]))


def tensordot(g: Graph) -> Term | None:
    a = g.floats(lambda term: term.ndim)
    axis = g.choice.below(a.ndim)
    b = g.floats(lambda term: term.ndim and a.dims[axis] in term.dims)
    other = b.dims.index(a.dims[axis])
    dims = [d for i, d in enumerate(a.dims) if i != axis]
    dims += [d for i, d in enumerate(b.dims) if i != other]
    if len(dims) > 3:
        return None
    return Term(pt.tensordot(a.var, b.var, axes=[[axis], [other]]), tuple(dims))


def transpose(g: Graph) -> Term | None:
    term = g.all_floats(lambda term: term.ndim > 1)
    order = g.choice.of([(1, 0, 2), (2, 0, 1), (0, 2, 1), (2, 1, 0)])
    order = order if term.ndim == 3 else (1, 0)
    return Term(term.var.transpose(*order), tuple(term.dims[i] for i in order))


def expand(g: Graph) -> Term | None:
    term = g.all_floats(lambda term: term.ndim < 3)
    axis = g.choice.below(term.ndim + 1)
    dims = list(term.dims)
    dims.insert(axis, 1)
    return Term(pt.expand_dims(term.var, axis), tuple(dims))


def slices(g: Graph) -> Term | None:
    term = g.floats(lambda term: term.ndim)
    axis = g.choice.below(term.ndim)
    entry, after = g.choice.of(
        [
            (slice(None), lambda dim: dim),
            (slice(None, None, -1), lambda dim: dim),
            (0, None),
            (slice(1, None), lambda dim: dim - 1 if dim != N else None),
            (slice(None, -1), lambda dim: dim - 1 if dim != N else None),
            (slice(0, 1), lambda dim: 1),
        ]
    )
    if term.dims[axis] == 1 and after is not None:
        return None
    index = (*[slice(None)] * axis, entry)
    dims = list(term.dims)
    if after is None:
        del dims[axis]
    else:
        dims[axis] = after(dims[axis])
    var = term.var[index]
    if dims and after is not None and dims[axis] == 1:
        return None  # its type does not say so, and it must not be broadcast
    return Term(var, tuple(dims))


def picked(g: Graph) -> Term | None:
    """For each row, an element that the labels tell."""
    term = g.floats(
        lambda term: (
            term.ndim == 2 and term.dims[0] in (N, 3, 4) and term.dims[1] in (3, 4)
        )
    )
    k = g.inputs[3]
    if term.dims[0] == N:
        return Term(term.var[pt.arange(k.shape[0]), k], (N,))
    return Term(term.var[k], (N, term.dims[1]))


def picked_columns(g: Graph) -> Term | None:
    term = g.floats(lambda term: term.ndim > 1 and term.dims[1] in (3, 4))
    var = g.choice.of([term.var[:, [2, 0]], term.var[:, [1, 1]]])
    return Term(var, (term.dims[0], 2, *term.dims[2:]))


def sliced_set(g: Graph) -> Term | None:
    term = g.floats(lambda term: term.ndim > 1 and term.dims[1] in (3, 4))
    other = g.floats(lambda other: other.dims in ((), (term.dims[0],)))
    if term.ndim == 3 and other.dims:
        return None
    put = g.choice.of([pt.set_subtensor, pt.inc_subtensor])
    return Term(put(term.var[:, 1], other.var), term.dims)


def scattered_inc(g: Graph) -> Term | None:
    """Each row adds to a place of its own choice."""
    term = g.floats(lambda term: term.dims in ((3, 3), (4, 3)))
    other = g.floats(lambda other: other.dims in ((N, 3), (3,), ()))
    put = g.choice.of([pt.inc_subtensor, pt.inc_subtensor, pt.set_subtensor])
    zeros = pt.zeros_like(term.var) if g.choice.maybe() else term.var
    return Term(put(zeros[g.inputs[3]], other.var), term.dims)


def along(g: Graph) -> Term | None:
    term = g.all_floats(lambda term: term.ndim)
    axis = g.choice.below(term.ndim)
    function = g.choice.of(
        [pt.special.softmax, pt.special.log_softmax, pt.cumsum, pt.sort]
    )
    return Term(function(term.var, axis=axis), term.dims)


def argmax(g: Graph) -> Term | None:
    term = g.all_floats(lambda term: term.ndim)
    axis = g.choice.below(term.ndim)
    dims = tuple(dim for i, dim in enumerate(term.dims) if i != axis)
    return Term(term.var.argmax(axis=axis).astype("float64"), dims)


def logsumexp(g: Graph) -> Term | None:
    term = g.all_floats(lambda term: term.ndim)
    axis = g.choice.below(term.ndim)
    dims = tuple(dim for i, dim in enumerate(term.dims) if i != axis)
    return Term(pt.logsumexp(pt.tanh(term.var), axis=axis), dims)


def joined(g: Graph) -> Term | None:
    a = g.floats(lambda term: term.ndim)
    axis = g.choice.below(a.ndim)

    def fits(term):
        return term.ndim == a.ndim and all(
            term.dims[i] == a.dims[i] for i in range(a.ndim) if i != axis
        )

    b = g.floats(fits)
    if 1 in a.dims or 1 in b.dims:
        return None
    dims = list(a.dims)
    dims[axis] = (
        None if N in (a.dims[axis], b.dims[axis]) else dims[axis] + b.dims[axis]
    )
    return Term(pt.concatenate([a.var, b.var], axis=axis), tuple(dims))


def stacked(g: Graph) -> Term | None:
    a = g.floats(lambda term: term.ndim < 3)
    b = g.floats(lambda term: term.dims == a.dims)
    axis = g.choice.below(a.ndim + 1)
    dims = list(a.dims)
    dims.insert(axis, 2)
    return Term(pt.stack([a.var, b.var], axis=axis), tuple(dims))


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
    term = g.floats(lambda term: term.dims in ((N, 2, 3), (2, 3), (N, 3, 2)))
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
    if term is None:
        return None
    return Term(getattr(term.var, g.choice.of(["sum", "mean", "max"]))(), ())


def allocated(g: Graph) -> Term | None:
    term = g.floats(lambda term: term.ndim < 3)
    n = g.inputs[0].shape[0]
    dims, n = g.choice.of([((N, *term.dims), n), ((2, *term.dims), 2)])
    return Term(pt.alloc(term.var, n, *term.var.shape), dims)


def gradient(g: Graph) -> Term | None:
    cost = g.all_floats(lambda term: term.ndim == 0 and term in g.made)
    if cost is None:
        return None
    of = g.choice.of([*g.shared, g.inputs[0]])
    dims = next(term.dims for term in g.terms if term.var is of)
    try:
        var = pytensor.grad(
            cost.var, of, disconnected_inputs="ignore", null_gradients="return"
        )
    except (NotImplementedError, TypeError, pytensor.gradient.NullTypeGradError):
        return None
    return Term(var, dims) if getattr(var, "dtype", "") == "float64" else None


def loss_gradient(g: Graph) -> Term | None:
    """The gradient of a mean or sum of something over the rows."""
    term = g.all_floats(lambda term: N in term.dims)
    cost = g.choice.of([term.var.mean(), term.var.sum(), (term.var**2).mean()])
    g.terms.append(Term(cost, ()))
    return gradient(g)


PRODUCTIONS = [
    *[unary, binary, rows_reduced] * 5,
    *[reduce, scaled, matmul, transpose, loss_gradient] * 2,
    gradient,
    any_or_all,
    pairs,
    length,
    batched,
    tensordot,
    expand,
    slices,
    picked,
    picked_columns,
    sliced_set,
    scattered_inc,
    along,
    argmax,
    logsumexp,
    joined,
    stacked,
    flattened,
    reshaped,
    reduced_unknown,
    allocated,
]
