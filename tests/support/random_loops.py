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


def _labels(g: Graph, most: int) -> Term:
    """Make labels of entries of rows, the rows or the entries first, or reversed."""
    k = g.inputs[3]
    some = [k, 2 - k, (k + 1) % 3]
    number = g.choice.of([most, most, most, 1])
    labels = pt.stack(some[:number], axis=g.choice.below(2)).flatten()
    labels = labels[:: g.choice.of([1, 1, 1, -1])]
    return Term(labels if number > 1 else k, (f"{number}n" if number > 1 else N,))


def counted(g: Graph) -> Term | None:
    """Take an element of each entry of merged axes, or put something there.

    There may be fewer labels than entries, or they may be in another order.
    """
    term = g.all_floats(
        lambda term: term.ndim == 2 and is_merged(term.dims[0]) and term.dims[1] == 3
    )
    if term is None or g.choice.maybe():
        whole = g.floats(lambda term: term.dims == (N, 2, 3)).var
        whole = whole.transpose(1, 0, 2) if g.choice.maybe() else whole
        term = Term(whole.reshape((-1, 3)), ("2n", 3))
    most = int(term.dims[0][:-1])
    labels = _labels(g, most)
    p, k = term.var, labels.var
    counts = [k.shape[0]]
    if labels.dims[0] == term.dims[0]:
        counts += [p.shape[0], g.inputs[0].shape[0] * most]
    places = (pt.arange(g.choice.of(counts)), k)
    other = g.all_floats(lambda other: other.dims in ((), labels.dims))
    kind = g.choice.below(4)
    if kind < 2:
        return Term(p[places], labels.dims)
    put = pt.inc_subtensor if kind == 2 else pt.set_subtensor
    return Term(put(p[places], other.var), term.dims)


def numbered(g: Graph) -> Term | None:
    """Take the first elements of a vector, as many as there are rows."""
    term = g.floats(lambda term: term.dims == (3,))
    many = pt.concatenate([term.var] * 8)
    rows = pt.arange(g.inputs[0].shape[0])
    if g.choice.maybe():
        return Term(many[rows], (N,))
    return Term(pt.inc_subtensor(many[rows], 1.0), (24,))


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

COUNTED = [
    *[unary, transpose, matmul, slices, numbered],
    *[merged, merged, split_again] * 2,
    *[counted, counted, loss_gradient] * 3,
]
