"""`all_reduce` and `all_gather` in a graph: what all ranks have, and gradients."""

import itertools

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child
from on_ranks import assert_on_ranks, by_rank, levels, three_ranks
from pytensor.compile.mode import Mode
from reference import PY

import synk
from synk.ops import all_gather

X, Y = pt.matrices("x", "y")
W = pytensor.shared(np.arange(6.0).reshape(3, 2) / 5, "w")
U = pytensor.shared(np.arange(6.0).reshape(3, 2) / 7, "u")
A, B = X @ W, pt.tanh(Y @ U)
OPTIONS = {"on_unused_input": "ignore"}
FAST = Mode("py", "fast_run")


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


def test_rows_that_several_reductions_read_are_gathered_once():
    rows = all_gather(B) ** 2
    sums = synk.ops.all_reduce([rows.sum() * A.sum(), (A @ rows.T).sum()], "sum")
    assert levels(synk.function([X, Y], sums, mode=PY))[0] == ["gather"]


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


# -- all_reduce ------------------------------------------------------------------------


@three_ranks
def test_an_update_that_a_later_stage_still_reads_waits(ranks):
    x = pt.vector("x")
    a, b = pytensor.shared(1.0), pytensor.shared(0.0)
    total = synk.ops.all_reduce(x.sum() * a, "sum")
    # b's new value, of a later stage, is made of a's old one.
    split = synk.function([x], None, updates=[(a, a + 1), (b, total * a)], mode=FAST)
    split(np.array([1.0, 2.0, 3.0]))
    split(np.array([1.0, 2.0, 3.0]))
    assert by_rank([a, b]) == [[3.0, 6.0 * 2 * 2]] * 3


def test_shapes_may_change_but_those_of_ranks_must_not_differ(two_ranks):
    x = pt.vector("x")
    split = synk.function([x], synk.ops.all_reduce(x, "sum"), mode=FAST)
    for rows in (4, 2, 8):
        np.testing.assert_array_equal(split(np.ones(rows)), [2.0] * (rows // 2))
        with pytest.raises(synk.ShapeMismatch, match=r"\(2,\).*\(1,\)"):
            split(np.ones(3))


def test_plain_pytensor_takes_an_all_reduce_for_the_identity():
    x = pt.vector("x")
    reduced = synk.ops.all_reduce(x.mean())
    gradient = pytensor.grad((reduced**2).sum(), x)
    f = pytensor.function([x], [reduced, gradient], mode=FAST)
    value, slope = f(np.array([1.0, 3.0]))
    assert value == 2.0
    np.testing.assert_allclose(slope, [2.0, 2.0])


def test_an_all_reduce_inside_a_scan_is_refused(two_ranks):
    x = pt.vector("x")
    total = lambda value: synk.ops.all_reduce(value, "sum")  # noqa: E731
    sums = pytensor.scan(total, [x], return_updates=False)
    split = synk.function([x], (sums, "gather"), mode=FAST)
    with pytest.raises(ValueError, match="all_reduce inside of"):
        split(np.ones(3))


def test_a_list_is_reduced_value_by_value(two_ranks):
    x, v, w = pt.matrix("x"), pytensor.shared(np.ones(2)), pytensor.shared(2.0)
    cost = ((x @ v - w) ** 2).mean()
    by_list = synk.ops.all_reduce(pytensor.grad(cost, [v, w]))
    assert [var.owner.op for var in by_list] == [synk.ops.AllReduce("avg")] * 2
    graphs = [*synk.grad(cost, [v, w]), *by_list]
    f = synk.function([x], [(var, None) for var in graphs], mode=FAST)
    one, two, *others = f(np.arange(10.0).reshape(5, 2))
    np.testing.assert_array_equal([*one, two], [*others[0], others[1]])
    assert synk.ops.all_reduce([]) == []
    with pytest.raises(ValueError, match="'mean'"):
        synk.ops.all_reduce([], "mean")


def test_a_wrong_op_is_refused_and_one_without_a_gradient_says_so():
    x = pt.vector("x")
    with pytest.raises(pytensor.gradient.NullTypeGradError, match="max"):
        pytensor.grad(synk.ops.all_reduce(x.max(), "max"), x)
    with pytest.raises(ValueError, match="'mean'"):
        synk.ops.all_reduce(x, "mean")
    with pytest.raises(ValueError, match="'max'"):
        synk.grad(x.sum(), x, op="max")
    with pytest.raises(TypeError, match="bool"):
        synk.ops.all_reduce(x > 0)


def test_gradients_take_the_options_of_pytensors():
    x, w, unused = pt.vector("x"), pytensor.shared(2.0, "w"), pytensor.shared(1.0)
    square = w**2
    cost = (w * square * x).mean()
    constant = synk.grad(cost, w, [square])  # the place that it has in Theano's grad
    options = {"disconnected_inputs": "ignore"}
    none = synk.grad(cost, unused, **options)
    assert synk.grad(cost, [unused], return_disconnected="none", **options) == [None]
    f = synk.function([x], [constant, none], mode=FAST)
    with synk.session(2):
        by_w, by_unused = f(np.array([1.0, 2.0, 6.0]))
    assert (by_w, by_unused) == (4.0 * 3.0, 0.0)


# -- large values: each rank reduces a part, and copies nothing of its own -------------

LARGE = [(40_000,), (3, 5), (0, 4), (12_900, 7), (1,), (20, 64, 33)]
"""Some parts of them have more than 16 kB on each of three ranks, and some have not."""


@three_ranks
@pytest.mark.parametrize("op", ["sum", "max", "avg"])
def test_large_values_are_reduced_where_they_lie(ranks, op):
    variables = [pytensor.shared(np.zeros((1,) * len(shape))) for shape in LARGE]
    random = np.random.default_rng(0)
    of_op = {"sum": np.sum, "max": np.max, "avg": np.mean}[op]
    for _ in range(2):
        own = [
            [random.integers(-9, 9, shape).astype(float) * 3 for shape in LARGE]
            for _ in range(ranks)
        ]
        for rank, values in enumerate(own):
            synk.set_value(rank, variables, values)
        right = [of_op(np.stack(values), axis=0) for values in zip(*own, strict=True)]
        pairs = [(synk.reduce(variables, op, in_place=False), right)]
        pairs += [(synk.get_value(2, variables), own[2])]
        synk.all_reduce(variables[1::2], op)  # some have moved since, others stay
        synk.all_reduce(variables[::2], op)
        for found, expected in [
            *pairs,
            *((held, right) for held in by_rank(variables)),
        ]:
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_array_equal(one, other)


@three_ranks
def test_reductions_of_several_types_ops_and_shapes_share_a_call(ranks):
    x = pt.matrix("x")
    values = [
        ((x[:, :, None] * x[:, None, :]).sum(axis=0).T, "sum"),
        (x.max(axis=0), "max"),
        (x.min(axis=0), "min"),
        (pt.cast(x, "int64").prod(axis=0), "prod"),
        (pt.cast(x, "float32").sum(axis=0), "sum"),
        (x.mean(axis=0)[None, :, None], "avg"),
        (pt.cast(x.shape[0], "int64"), "sum"),
    ]
    outputs = [(synk.ops.all_reduce(value, op), None) for value, op in values]
    f = synk.function([x], outputs, mode=FAST)
    plain = pytensor.function([x], [value for value, _ in values], mode=FAST)
    for rows in (11, 2, 5):
        given = np.random.default_rng(0).integers(-8, 8, (rows, 150)).astype("float64")
        for got, right in zip(f(given), plain(given), strict=True):
            assert (got.dtype, got.shape) == (right.dtype, right.shape)
            np.testing.assert_allclose(got, right, 1e-12, 1e-12)
