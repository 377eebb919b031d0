"""Productions of random graphs with scans, and with axes that are merged and split."""

import functools
import random

import pytensor
import pytensor.tensor as pt
from random_graphs import Choice, Graph, N, Term, is_merged
from random_productions import (
    PRODUCTIONS,
    STATISTICS,
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
    shape = list(term.var.shape)
    length = g.choice.of([shape[axis] * shape[axis + 1], -1])
    var = term.var.reshape((*shape[:axis], length, *shape[axis + 2 :]))
    name = f"{two if one == N else one}n"
    return Term(var, (*term.dims[:axis], name, *term.dims[axis + 2 :]))


def split_again(g: Graph) -> Term | None:
    """Make two axes of one that was merged, in one way or the other."""
    term = g.all_floats(lambda term: term.ndim < 3 and any(map(is_merged, term.dims)))
    axis = next(i for i, dim in enumerate(term.dims) if is_merged(dim))
    number = int(term.dims[axis][:-1])
    x, shape = g.inputs[0], list(term.var.shape)
    count = g.choice.of([number, x.shape[1] if number == 3 else number])
    rows, order = g.choice.of([x.shape[0], -1]), g.choice.of([1, -1])
    sizes, dims = [count, rows][::order], [number, N][::order]
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
    merged = [t for t in g.terms if t.ndim == 2 and is_merged(t.dims[0])]
    merged = [t for t in merged if t.dims[1] == 3 and t.var.dtype == "float64"]
    if merged and g.choice.maybe():
        term = g.choice.of(merged)
    else:
        whole = g.of_dims((N, 2, 3)).var
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
    term = g.of_dims((3,))
    many = pt.concatenate([term.var] * 8)
    rows = pt.arange(g.inputs[0].shape[0])
    if g.choice.maybe():
        return Term(many[rows], (N,))
    return Term(pt.inc_subtensor(many[rows], 1.0), (24,))


STEPS = [
    lambda a, r, c: a + r,
    lambda a, r, c: pt.tanh(a + r),
    lambda a, r, c: pt.maximum(a * r, c),
    lambda a, r, c: a + r.sum(),
]


def scanned(g: Graph) -> Term | None:
    """Carry a state along the first axis, now and then from row to row."""
    is_rows = g.choice.below(3) == 0
    term = g.floats(lambda term: N in (term.dims[:1] if is_rows else term.dims[1:]))
    if term.dims[0] == 1 or 1 in term.dims[1:]:
        return None
    like = term.var.sum(axis=0)
    starts = [pt.zeros_like(like), g.of_dims(term.dims[1:]).var]
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
    other = g.of_dims((), term.dims[1:])
    steps = [
        lambda r, v: pt.tanh(r).sum() + r,
        lambda r, v: r * v,
        lambda r, v: r - v,
        lambda r, v: r[::-1] if r.ndim else -r,
    ]
    options = {"go_backwards": g.choice.below(3) == 0, "return_updates": False}
    var = pytensor.map(g.choice.of(steps), [term.var], [other.var], **options)
    return Term(var, term.dims)


LOOPS = [
    *[unary, binary, rows_reduced, slices, transpose, matmul] * 2,
    *[scanned, scanned, scanned, mapped] * 3,
    *[merged, split_again] * 5,
    *[gradient, loss_gradient] * 2,
    batched,
]

COUNTED = [
    *[unary, transpose, matmul, slices, numbered],
    *[merged, merged, split_again] * 2,
    *[counted, counted, loss_gradient] * 3,
]

KINDS = {"rows": PRODUCTIONS, "met": STATISTICS, "loops": LOOPS, "counted": COUNTED}


@functools.cache
def seeded(seed: int, steps: int = 8, of: str = "rows") -> Graph:
    """Return a random graph of a kind that a seed determines."""
    graph = Graph(Choice(random.Random(seed).randrange))
    graph.grow(steps, KINDS[of])
    return graph
