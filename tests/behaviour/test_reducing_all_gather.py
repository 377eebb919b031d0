"""`synk.ops.all_gather`: the rows of all ranks in a graph, and gradients through it."""

from __future__ import annotations

import itertools

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child
from on_ranks import assert_on_ranks, levels, three_ranks
from reference import PY

import synk
from synk.ops import all_gather

X, Y = pt.matrices("x", "y")
W = pytensor.shared(np.arange(6.0).reshape(3, 2) / 5, "w")
U = pytensor.shared(np.arange(6.0).reshape(3, 2) / 7, "u")
A, B = X @ W, pt.tanh(Y @ U)
OPTIONS = {"on_unused_input": "ignore"}


def contrastive(a, b, others):
    """Return how badly each row is told from the others."""
    return pt.logsumexp(a @ others.T, axis=1) - (a * b).sum(axis=1)


def costs(word=all_gather):
    """Yield functions of gathered rows, with gradients of all kinds."""
    rows = contrastive(A, B, word(B))
    yield "mean", rows.mean()
    yield "sum and prior", rows.sum() + (U**2).sum()
    yield "of all rows alone", (word(B) ** 3).mean()
    yield "elementwise with own rows", (word(B) * A * B).sum()
    yield "linear", (word(B) * np.array([1.0, 3.0])).mean()
    yield "twice", (A @ word(word(B) * 2).T).var()
    yield "lengths", word(B).shape[0] * A.sum() / (A @ word(B).T).shape[1]
    yield "of a sum", (word(B.sum(axis=0)) * A).sum()
    yield "of sorted rows", (word(pt.sort(B, axis=0)) * A).sum()
    yield "of flat rows", (word(B.reshape((-1,))) * A.reshape((-1,))).sum()
    yield "of columns", (A @ word(B.T)).var()
    yield "of selected rows", pt.cumsum(word(B[Y[:, 0] > 0]), axis=0).sum()
    slope = pytensor.grad((A @ word(B).T).std(), W)
    yield "second derivatives", (slope**2).sum()


def with_gradients(named):
    """Return names and graphs, of functions and of their gradients."""
    found = []
    for name, cost in named:
        slopes = pytensor.grad(cost, [W, U, Y], disconnected_inputs="ignore")
        names = [name, *(f"d {name} / d {of}" for of in "wuy")]
        found += zip(names, [cost, *slopes], strict=True)
    return zip(*found, strict=True)


def values(rows):
    return np.random.default_rng(rows).normal(size=(2, rows, 3))


def compare(f, names, plain, all_rows):
    """Compare a function with a plain one, in a session."""
    for rows, many in itertools.product(all_rows, (1, 3)):
        found, right = f(*values(rows), num_slices=many), plain(*values(rows))
        for name, mine, serial in zip(names, found, right, strict=True):
            what = f"{name}, {rows} rows, {many} slices"
            assert np.shape(mine) == np.shape(serial), what
            size = 1e-10 * np.abs(serial).max()
            np.testing.assert_allclose(mine, serial, 1e-10, size, err_msg=what)


@three_ranks
@pytest.mark.filterwarnings("ignore::synk.SplitWarning")  # of the sort
def test_placed_it_is_what_it_is_in_the_serial_run(ranks):
    names, graphs = with_gradients(costs())
    plain = pytensor.function([X, Y], list(graphs), mode=PY, **OPTIONS)
    f = synk.function([X, Y], list(graphs), mode=PY, **OPTIONS)
    compare(f, names, plain, [7, 2])


@three_ranks
def test_updates_have_it_on_every_rank_without_rows_too(ranks):
    kept = pytensor.shared(np.zeros((0, 2)), "kept")
    slope = pytensor.shared(np.zeros((3, 2)), "slope")
    loss = contrastive(A, B, all_gather(B)).mean()
    updates = {kept: all_gather(B), slope: pytensor.grad(loss, U)}
    f = synk.function([X, Y], loss, updates=updates, mode=PY)
    x, y = values(2)
    f(x, y, check="serial")
    assert_on_ranks(kept, np.tanh(y @ U.get_value()), 8)
    assert_on_ranks(slope, slope.get_value(), 0)


def test_a_loss_of_pairs_repeats_no_work_and_meets_twice():
    loss = contrastive(A, B, all_gather(B)).mean()
    f = synk.function([X, Y], pytensor.grad(loss, [W, U]), mode=PY, strict=True)
    assert levels(f) == [["gather"], ["avg"]]  # what the rows' gradients come to
    plain = pytensor.grad(contrastive(A, B, B).mean(), [W, U])
    with pytest.warns(synk.SplitWarning, match="all rows at once"):
        synk.function([X, Y], plain, mode=PY)


WRITTEN = {
    "mean": (contrastive(A, B, all_gather(B)).mean(), "avg"),
    "sum": (contrastive(A, B, all_gather(B)).sum(), "sum"),
    "alike": ((all_gather(B) ** 3).mean() + (U**2).sum(), "avg"),
}


def left_as_written(cost, op, mode):
    """Yield functions of a cost and its gradients that the compiler leaves alone."""
    slopes = pytensor.grad(cost, [W, U], disconnected_inputs="ignore")
    graphs = [cost, *slopes]
    options = {"mode": mode, "strict": True, **OPTIONS}
    named = [(var, op) for var in graphs]
    yield synk.function([X, Y], named, **options)
    yield synk.function([X, Y], graphs, local=True, **options)
    reduced = synk.ops.all_reduce(graphs, op)
    yield synk.function([X, Y], reduced, **options)
    slopes = synk.grad(cost, [W, U], op=op, disconnected_inputs="ignore")
    yield synk.function([X, Y], [cost, *slopes], local=True, **options)


@three_ranks
def test_left_as_written_gradients_are_those_of_the_serial_cost(ranks):
    """Shown, as `strict` tells; a rank's rows weigh what there are of them."""
    for name, (cost, op) in WRITTEN.items():
        forms = list(left_as_written(cost, op, PY))
        for f in forms if name == "mean" else forms[1:3]:
            compare(f, [name, "w", "u"], f.as_theano, [7, 2])


@pytest.mark.slow
@in_a_child
def test_in_jax_mode():
    names, graphs = with_gradients(list(costs())[:1])
    placed = synk.function([X, Y], list(graphs), mode="JAX", **OPTIONS)
    plain = pytensor.function([X, Y], list(graphs), mode=PY, **OPTIONS)
    cost, op = WRITTEN["mean"]
    *_, local = left_as_written(cost, op, "JAX")
    slopes = pytensor.grad(cost, [W, U])
    serial = pytensor.function([X, Y], [cost, *slopes], mode=PY)
    with synk.session(2):
        compare(placed, names, plain, [5, 1])
        compare(local, ["mean", "w", "u"], serial, [5, 1])


@three_ranks
def test_left_as_written_it_concatenates_what_the_ranks_have_computed(ranks):
    centred = all_gather(X - X.mean(axis=0))
    f = synk.function([X], [centred, all_gather(X > 0)], local=True, mode=PY)
    x = values(5)[0]
    rows, signs = f(x)
    own = [part - part.mean(axis=0) for part in np.array_split(x, 3)]
    np.testing.assert_allclose(rows, np.concatenate(own))
    np.testing.assert_array_equal(signs, x > 0)
    with pytest.raises(synk.SplitError, match=r"all_gather of Sub.* single rows with"):
        synk.function([X], centred, local=True, strict=True)


ALL_ROWS = "not shown to be the number of rows"
LOOP = pytensor.map(lambda row: all_gather(row).sum(), [X], return_updates=False)
SLOPE = pytensor.grad(None, W, known_grads={all_gather(W): pt.ones((3, 2))})
REFUSED = [
    (all_gather(X.sum(axis=0)).sum(), ALL_ROWS),
    (all_gather(W).sum() * X.sum(), ALL_ROWS),
    (all_gather(all_gather(X)).sum(), ALL_ROWS),
    (SLOPE.sum(), ALL_ROWS),
    (LOOP.sum(), "have to wait for one another within a compiled graph"),
]


@pytest.mark.usefixtures("scans_in_python")
@three_ranks
def test_left_as_written_what_has_no_row_for_each_row_is_refused(ranks):
    x = values(3)[0]
    for graph, why in REFUSED:
        for options in ({"outputs": (graph, "avg")}, {"outputs": graph, "local": True}):
            refused = rf"all_gather.* \(made in .*{why}"
            with pytest.raises(synk.SplitError, match=refused):
                synk.function([X], mode=PY, **options, **OPTIONS)
        f = synk.function([X], graph, mode=PY, **OPTIONS)
        np.testing.assert_allclose(f(x), f.as_theano(x))


def test_a_list_and_what_has_no_axis():
    first, second = all_gather([X, Y])
    assert first.owner.inputs == [X]
    assert second.owner.inputs == [Y]
    with pytest.raises(ValueError, match=r"all_gather of 1\.0: a scalar has no rows"):
        all_gather(1.0)


def test_marks_outlive_what_makes_a_graph_safe_from_overflow(two_ranks):
    """PyTensor removes views, and what only says something is one."""
    own = X - synk.ops.local(X.mean(axis=0))
    f = synk.function([X], [own, pt.exp(X).std()], mode=PY)
    x = values(4)[0]
    rows, _ = f(x)
    expected = [part - part.mean(axis=0) for part in (x[:2], x[2:])]
    np.testing.assert_allclose(rows, np.concatenate(expected))
