"""Productions of random graphs in which statistics of all rows meet rows again."""

from __future__ import annotations

import pytensor
import pytensor.tensor as pt
import random_productions as productions
from random_graphs import Graph, N, Term


def _of_rows(g: Graph) -> Term | None:
    return g.floats(lambda term: term.dims.count(N) == 1)


def met_again(g: Graph) -> Term | None:
    """Rows less their mean, over their sum, their largest, or the like."""
    term = _of_rows(g)
    var, along = term.var, {"axis": term.dims.index(N), "keepdims": True}
    made = g.choice.of(
        [
            lambda: var - var.mean(**along),
            lambda: (var - var.mean(**along)) / pt.sqrt(var.var(**along) + 0.1),
            lambda: pt.special.softmax(pt.tanh(var), axis=along["axis"]),
            lambda: pt.special.log_softmax(pt.tanh(var), axis=along["axis"]),
            lambda: var / (1 + pt.abs(var).max(**along)),
            lambda: var / (1 + pt.abs(var).sum(**along)),
            # Not the mean itself: where all rows are alike, rounding would decide.
            lambda: pt.gt(var, var.mean(**along) + 0.013).astype("float64"),
        ]
    )
    return Term(made(), term.dims)


def weighted_mean(g: Graph) -> Term | None:
    """A mean by weights, or of the rows of a mask."""
    term = g.floats(lambda term: term.dims[:1] == (N,) and N not in term.dims[1:])
    weights = g.floats(lambda term: term.dims == (N,)).var
    weights = g.choice.of(
        [pt.sigmoid(weights), (weights > -0.5).astype("float64"), pt.ones_like(weights)]
    )
    over = weights.reshape((-1, *[1] * (term.ndim - 1))) * term.var
    return Term(over.sum(axis=0) / (weights.sum() + 0.1), term.dims[1:])


def statistic(g: Graph) -> Term | None:
    """A function of sums and means that is no sum."""
    var = _of_rows(g).var
    made = g.choice.of(
        [
            lambda: var.std(),
            lambda: pt.logsumexp(pt.tanh(var)),
            lambda: (var**2).mean() / (1 + (var**2).mean()),
            lambda: var.mean() * var.sum(),
            lambda: var.sum() + (g.shared[1] ** 2).sum(),
        ]
    )
    return Term(made(), ())


def gradient_of_all(g: Graph) -> Term | None:
    """The gradient of all that there is, by a parameter or by the rows."""
    costs = [term.var for term in g.made if term.var.dtype == "float64"]
    if not costs:
        return None
    total = pt.add(*(pt.tanh(cost).mean() for cost in costs), 0.0)
    of = g.choice.of([*g.shared, g.inputs[0]])
    dims = next(term.dims for term in g.terms if term.var is of)
    try:
        var = pytensor.grad(total, of, disconnected_inputs="ignore")
    except (NotImplementedError, pytensor.gradient.NullTypeGradError):
        return None
    return Term(var, dims)


def allocated(g: Graph) -> Term | None:
    """One value for all rows."""
    term = g.floats(lambda term: term.ndim < 3 and N not in term.dims)
    n = g.inputs[0].shape[0]
    return Term(pt.alloc(term.var, n, *term.var.shape), (N, *term.dims))


def numbered(g: Graph) -> Term | None:
    """Rows with their numbers, or with what is sorted."""
    term = g.floats(lambda term: term.dims == (N,))
    numbers = pt.arange(g.inputs[0].shape[0])
    other = g.choice.of([numbers, pt.sort(term.var), g.inputs[3] * numbers])
    return Term(term.var + other, (N,))


STATISTICS = [
    *[met_again, weighted_mean, statistic] * 4,
    *[productions.unary, productions.binary, productions.rows_reduced] * 4,
    *[productions.reduce, productions.scaled, productions.loss_gradient] * 2,
    *[gradient_of_all] * 2,
    productions.any_or_all,
    productions.batched,
    productions.expand,
    productions.picked,
    productions.picked_columns,
    productions.sliced_set,
    productions.logsumexp,
    productions.stacked,
    allocated,
]
"""Without what needs all rows in their order, as sorting does, or pairs of rows."""

NUMBERED = [*STATISTICS, *[numbered] * 4]
"""With what needs the places of rows among all."""
