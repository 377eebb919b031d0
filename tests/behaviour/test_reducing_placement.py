"""Reductions that the compiler places: the serial numbers, without a word of synk's."""

import re
import warnings

import numpy as np
import placement_cases as cases
import pytensor
import pytensor.tensor as pt
import pytest
from on_ranks import levels, three_ranks
from placement_cases import INPUTS, LABELS, SCALE, W, X, Y, assert_equal, posterior
from pytensor.printing import debugprint
from reference import PY, shared_of

import synk

pytestmark = pytest.mark.usefixtures("scans_in_python")

FAST = pytensor.compile.mode.Mode("py", "fast_run")
OPTIONS = {"mode": PY, "on_unused_input": "ignore"}


def serial(inputs, outputs, values, mode=PY):
    options = OPTIONS | {"mode": mode}
    return pytensor.function(inputs, outputs, **options)(*values)


def made(named, mode=PY):
    """Return a function of graphs, and the shared variables that it sets to them."""
    graphs = list(named.values())
    kept = [shared_of(graph.dtype, graph.type.shape) for graph in graphs]
    updates, options = list(zip(kept, graphs, strict=True)), OPTIONS | {"mode": mode}
    return synk.function(INPUTS, graphs, updates=updates, **options), kept


@three_ranks
@pytest.mark.parametrize("kind", [cases.statistics, cases.gathered])
def test_plain_graphs_give_the_serial_numbers(ranks, kind):
    """As outputs, and as updates on every rank; of more graphs in tests/parts."""
    named = dict(kind())
    with warnings.catch_warnings():
        repeats = kind is cases.gathered
        warnings.simplefilter("ignore" if repeats else "error", synk.SplitWarning)
        f, kept = made(named)
    plain = pytensor.function(INPUTS, list(named.values()), **OPTIONS)
    for rows, slices in ((7, 1),) if repeats else ((7, 1), (7, 3), (4, 1)):
        right = plain(*cases.values(rows))
        given = [f(*cases.values(rows), num_slices=slices)]
        given += [synk.get_value(rank, kept) for rank in (0, ranks - 1)]
        for values in given:
            for name, got, expected in zip(named, values, right, strict=True):
                assert_equal(f"{name}, {rows} rows, {slices} slices", got, expected)


@pytest.mark.parametrize("graph", [pt.sort(Y), Y[1:], pt.cumsum(Y)])
def test_what_every_rank_repeats_is_told_once(graph):
    with pytest.warns(synk.SplitWarning, match="needs all rows at once") as caught:
        synk.function([X, Y], [graph, graph * 2], **OPTIONS)
    assert [w.filename for w in caught] == [__file__]
    text = str(caught[0].message)
    assert "made in test_reducing_placement.py" in text
    assert re.search("every rank repeats . of the . Ops on rows", text)
    assert "every rank reads all rows of y (8 bytes a row)" in text
    with pytest.raises(synk.SplitError, match=r"made in test_reducing_placement\.py"):
        synk.function([X, Y], graph, strict=True, **OPTIONS)


KEPT = pytensor.shared(np.zeros((0, 3)), "kept")
GROWING = {
    "pairs": ({"outputs": X @ X.T}, "needs rows of all ranks"),
    "sort": ({"outputs": pt.sort(Y)}, "needs all rows at once"),
    "a value for each row": ({"updates": {KEPT: X * 2}}, "the new value of kept"),
    "all_reduce": ({"outputs": synk.ops.all_reduce(X.std())}, "all_reduce of std"),
}


def test_strict_refuses_what_grows_with_the_rows_or_is_not_shown():
    for graph, message in GROWING.values():
        with pytest.raises(synk.SplitError, match=message):
            synk.function([X, Y], **graph, strict=True, **OPTIONS)
    synk.function([X, Y], cases.batch_normalised(), strict=True, **OPTIONS)


# -- in how many meetings, and of what -------------------------------------------------


def network():
    weights = pytensor.shared(np.full((3, 4), 0.1), "weights")
    bias = pytensor.shared(np.zeros(4), "bias")
    last = pytensor.shared(np.full(4, 0.1), "last")
    loss = ((pt.tanh(X @ weights + bias) @ last - Y) ** 2).mean()
    return loss, [weights, bias, last]


def test_a_step_meets_once_for_what_it_needs_of_all_rows():
    loss, params = network()
    gradients = pytensor.grad(loss, params)
    rules = [
        synk.updates.adam(gradients, params),
        synk.updates.adam(synk.grad(loss, params), params),
        # The gradient is in several terms.
        synk.updates.nesterov_momentum(gradients, params, 0.1, 0.9),
    ]
    for rule in rules:
        f = synk.function(INPUTS, loss, updates=rule, **OPTIONS)
        assert levels(f) == [["avg"] * 4]
    outputs = [posterior(), *pytensor.grad(posterior(), [W, SCALE])]
    assert levels(synk.function([X, Y], outputs, mode=PY)) == [["sum"] * 3]
    f = synk.function([X, Y], [loss, X.sum(), X.max(axis=0), Y * 2], mode=PY)
    assert f.output_modes == ["avg", "sum", "max", "gather"]
    assert levels(f) == []


# -- what PyTensor stabilises ----------------------------------------------------------


V, A, STEPS = pt.dvector("v"), pt.dscalar("a"), pt.dvector("steps")
TO_ZERO = pt.concatenate([V, pt.stack([-V.sum()])])
ADDED = pt.inc_subtensor((W / SCALE)[LABELS], pt.exp(Y))
STATE = (Y - pt.cumsum(STEPS)) / pt.exp(A)
ZEROS = (pt.constant([0.0]) / (Y**2 + 1)).sum()
OF_STATE = pytensor.grad((-0.5 * STATE**2 - A).sum(), [A, STEPS])
STABILISED = [
    # PyTensor makes it of the gradient of a prior and that of effects of groups.
    [ADDED, ADDED.sum() ** 2],
    # Where exponentials are stabilised, PyTensor asks for lengths, and compares them.
    OF_STATE,
    # Numbers that are put side by side need not be a shape.
    [(TO_ZERO**2).sum() * Y.sum(), pt.stack([A, -A]) * V + Y.mean()],
    # PyTensor 2.38 makes of them zeros as long as they are, and of these others.
    [pt.log(pt.exp(Y).sum()) ** 2 + ZEROS],
]


@three_ranks
@pytest.mark.parametrize("outputs", STABILISED)
@pytest.mark.filterwarnings("ignore:.*Cumsum.* needs all rows:synk.SplitWarning")
def test_what_rewrites_make_of_rows_beside_what_is_of_all(ranks, outputs):
    inputs, is_strict = [Y, LABELS], outputs is not OF_STATE
    f = synk.function(inputs, outputs, [V, STEPS, A], strict=is_strict, **OPTIONS)
    for rows in (7, 2, 1):
        y, labels = cases.values(7)[1][:rows], cases.values(7)[2][:rows]
        values = y, labels, np.array([0.5, 2.0]), np.linspace(-1, 1, rows), 0.3
        expected = serial([*inputs, V, STEPS, A], outputs, values)
        for got, right in zip(f(*values), expected, strict=True):
            np.testing.assert_allclose(got, right, 1e-12)


def test_the_users_graph_stays_as_it_is():
    graph = pt.log(pt.exp(Y * 1.0).sum()) * Y / Y
    before = debugprint(graph, file="str")
    synk.function([Y], graph, mode=PY)
    assert debugprint(graph, file="str") == before


# -- what users have placed, or want as it is ------------------------------------------


@three_ranks
def test_gradients_through_a_users_all_reduce_are_right(ranks):
    of_rows, values = X @ W, cases.values(7)[:2]
    for op, value in (("avg", of_rows.mean()), ("sum", of_rows.sum())):
        reduced = synk.ops.all_reduce(value, op)
        costs = [((c - Y) ** 2).mean() + c**2 for c in (reduced, value)]
        mine, plain = (pytensor.grad(cost, W) for cost in costs)
        f = synk.function([X, Y], mine, mode=PY)
        assert_equal(op, f(*values), serial([X, Y], plain, values))


def test_what_cannot_be_had_is_refused_on_several_ranks():
    rows = pytensor.shared(np.array([3.0, 1, 2]), "rows")
    outputs, options = [pt.sort(rows), X.sum()], {"sliceable_shareds": [rows]}
    f = synk.function([X], outputs, mode=PY, **options)
    (x, *_), refused = cases.values(7), r"output 0.*goes along the rows"
    with synk.session(2):
        with pytest.raises(synk.SplitError, match=refused):
            f(x)
        with pytest.raises(synk.SplitError, match="goes along the rows"):
            f.run([3, 4], x)
    with synk.session(1):
        np.testing.assert_array_equal(f(x)[0], [1, 2, 3])
    with pytest.raises(synk.SplitError):
        synk.function([X], outputs, mode=PY, strict=True, **options)


def test_a_named_op_is_believed_and_its_graph_is_left(two_ranks):
    """And in local functions nothing is placed at all."""
    total, y = pytensor.shared(0.0), np.array([0.0, 0, 4, 4])
    f = synk.function([Y], [Y.std(), (Y.std(), "avg")], mode=PY)
    assert f(y) == [2, 0]
    f = synk.function([Y], (Y.std(), "avg"), updates={total: Y.sum()}, local=True)
    assert f(y) == 0
    assert [synk.get_value(rank, total) for rank in range(2)] == [0, 8]
    synk.all_reduce(total, "sum")
    assert synk.get_value(1, total) == 8


def test_slices_of_an_update_that_does_not_follow_from_them_are_refused(two_ranks):
    total = pytensor.shared(0.0, "total")
    updates = {total: total + Y.sum()}
    f = synk.function([Y], updates=updates, mode=PY, local=True)
    with pytest.raises(synk.SplitError, match="does not follow from those of slices"):
        f(np.ones(8), num_slices=2)
    f(np.ones(8))
    assert synk.gather(total).tolist() == [4, 4]
