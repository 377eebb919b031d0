"""Productions of random graphs with scans, and with axes that are merged and split."""

from __future__ import annotations

import pytensor
import pytensor.tensor as pt
from random_graphs import Graph, N, Term, is_merged
from random_productions import (
    batched,
    binary,
    gradient,
    loss_gradient,
    matmul,
    rows_reduced,
    slices,
    transpose,
    unary,
)


def merged(g: Graph) -> Term | None:
    """Make one axis of two, of which one is the rows': as for a product with weights.

    What the axis has in which order is not said: others may have another.
    """
    term = g.floats(lambda term: term.ndim > 1 and N in term.dims)
    axis = max(term.dims.index(N) - g.choice.below(2), 0)
    if axis + 1 == term.ndim:
        return None
    one, two = term.dims[axis : axis + 2]
    if (one == N) is (two == N):
        return None
    shape = [term.var.shape[i] for i in range(term.ndim)]
    length = g.choice.of([shape[axis] * shape[axis + 1], -1])
    var = term.var.reshape((*shape[:axis], length, *shape[axis + 2 :]))
    name = f"{two if one == N else one}n"
    return Term(var, (*term.dims[:axis], name, *term.dims[axis + 2 :]))


def split_again(g: Graph) -> Term | None:
    """Make two axes of one that was merged, in one way or the other."""
    term = g.all_floats(lambda term: term.ndim < 3 and any(map(is_merged, term.dims)))
    if term is None:
        return None
    axis = next(i for i, dim in enumerate(term.dims) if is_merged(dim))
    number = int(term.dims[axis][:-1])
    x = g.inputs[0]
    count = g.choice.of([number, x.shape[1] if number == 3 else number])
    shape = [term.var.shape[i] for i in range(term.ndim)]
    dims, sizes = g.choice.of(
        [
            ((number, N), (count, x.shape[0])),
            ((number, N), (count, -1)),
            ((N, number), (x.shape[0], count)),
            ((N, number), (-1, count)),
        ]
    )
    var = term.var.reshape((*shape[:axis], *sizes, *shape[axis + 1 :]))
    return Term(var, (*term.dims[:axis], *dims, *term.dims[axis + 1 :]))


STEPS = [
    lambda a, r, c: a + r,
    lambda a, r, c: a - 2.0 * r,
    lambda a, r, c: c * pt.tanh(r) + a,
    lambda a, r, c: pt.maximum(a, r),
    lambda a, r, c: pt.minimum(r, a),
    lambda a, r, c: a * r,
    lambda a, r, c: pt.tanh(a + r),
    lambda a, r, c: 0.5 * a + r,
    lambda a, r, c: r - a,
    lambda a, r, c: a + a * r,
    lambda a, r, c: a + c,
    lambda a, r, c: a + r.sum(),
]


def scanned(g: Graph) -> Term | None:
    """Carry a state along the first axis, whatever it is."""
    return _scanned(g, g.floats(lambda term: term.ndim))


def rows_scanned(g: Graph) -> Term | None:
    """Carry a state from row to row."""
    return _scanned(g, g.floats(lambda term: term.dims[:1] == (N,)))


def _scanned(g: Graph, term: Term) -> Term | None:
    if term.dims[0] == 1 or 1 in term.dims[1:]:
        return None
    like = term.var.sum(axis=0)
    starts = [pt.zeros_like(like)] * 2
    starts += [pt.ones_like(like), pt.ones_like(like) + 0.5]
    other = g.floats(lambda other: other.dims == term.dims[1:])
    if other is not None:
        starts.append(other.var)
    step = g.choice.of(STEPS)
    states = pytensor.scan(
        lambda r, a, c: pt.specify_shape(step(a, r, c), a.type.shape),
        sequences=[term.var],
        outputs_info=[pt.specify_shape(g.choice.of(starts), [None] * like.ndim)],
        non_sequences=[g.shared[2]],
        return_updates=False,
        go_backwards=g.choice.maybe(),
    )
    if g.choice.of([True, True, False]):
        return Term(states[-1], term.dims[1:])
    return Term(states, term.dims)


def mapped(g: Graph) -> Term | None:
    """Do something with each row, and with something else."""
    term = g.floats(lambda term: term.dims[:1] == (N,))
    other = g.floats(lambda other: other.dims in ((), term.dims[1:]))
    step = g.choice.of(
        [
            lambda r, v: pt.tanh(r).sum() + r,
            lambda r, v: r * v,
            lambda r, v: r - v,
            lambda r, v: r[::-1] if r.ndim else -r,
        ]
    )
    var = pytensor.map(
        step,
        [term.var],
        [other.var],
        go_backwards=g.choice.of([False, False, True]),
        return_updates=False,
    )
    return Term(var, term.dims)


LOOPS = [
    *[unary, binary, rows_reduced, slices, transpose, matmul] * 2,
    *[scanned, rows_scanned, mapped] * 3,
    *[merged, split_again] * 4,
    *[gradient, loss_gradient] * 2,
    batched,
]
