"""Reductions that the compiler places: the serial numbers, without a word of synk's."""

from __future__ import annotations

import random
import re
import warnings

import numpy as np
import placement_cases as cases
import placement_cases as densities
import placement_cases as models
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child
from on_ranks import levels
from placement_cases import INPUTS, LABELS, SCALE, W, X, Y, posterior
from pytensor.printing import debugprint
from random_graphs import Choice, Graph
from random_productions import PRODUCTIONS
from random_statistics import STATISTICS
from reference import PY

import synk

FAST = pytensor.compile.mode.Mode("py", "fast_run")

three_ranks = pytest.mark.parametrize("ranks", [3], ids=["3ranks"], indirect=True)
"""Different numbers of rows, or none on some."""


@pytest.fixture(autouse=True)
def in_python():
    """Have Ops that are graphs themselves run in Python."""
    with pytensor.config.change_flags(mode=PY, linker="py", cxx=""):
        yield


def serial(inputs, outputs, values, mode=PY):
    """Return what plain PyTensor makes of graphs."""
    options = {"mode": mode, "on_unused_input": "ignore"}
    return pytensor.function(inputs, outputs, **options)(*values)


def assert_equal(name, got, right):
    """Compare values, to rounding of the largest, and their shapes."""
    assert np.shape(got) == np.shape(right), name
    size = np.max(np.abs(right), initial=0, where=np.isfinite(right))
    np.testing.assert_allclose(got, right, 1e-10, 1e-10 * size, err_msg=name)


def made(named, repeats, mode=PY):
    """Return a function of graphs, and the shared variables that it sets to them.

    Unless some are computed from all rows by every rank, nothing may be warned of.
    """
    graphs = list(named.values())
    kept = [
        pytensor.shared(np.zeros([n or 0 for n in graph.type.shape], graph.dtype))
        for graph in graphs
    ]
    updates = list(zip(kept, graphs, strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if repeats else "error", synk.SplitWarning)
        options = {"mode": mode, "on_unused_input": "ignore"}
        return synk.function(INPUTS, graphs, updates=updates, **options), kept


def gathered():
    """Yield what some of is computed from all rows, by every rank."""
    yield from cases.gathered()
    yield from densities.of_rows_by_rows()


def trained():
    """Yield what is fitted to rows."""
    yield from models.networks()
    yield from models.estimators()


KINDS = [cases.statistics, cases.gradients, densities.densities, trained, gathered]


@three_ranks
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_plain_graphs_give_the_serial_numbers(ranks, kind):
    """As outputs, and as updates on every rank; in tests/parts on other ranks, too."""
    named = dict(list(kind())[:: 2 if kind is cases.gradients else 1])
    f, kept = made(named, kind in (gathered, cases.gradients))
    plain = pytensor.function(
        INPUTS, list(named.values()), mode=PY, on_unused_input="ignore"
    )
    for rows, slices in ((7, 1), (7, 3), (4, 1))[
        : 3 if kind is cases.statistics else 1
    ]:
        right = plain(*cases.values(rows))
        given = [f(*cases.values(rows), num_slices=slices)]
        given += [synk.get_value(rank, kept) for rank in (0, ranks - 1)]
        for values in given:
            for name, got, expected in zip(named, values, right, strict=True):
                assert_equal(f"{name}, {rows} rows, {slices} slices", got, expected)


@pytest.mark.slow
@in_a_child
def test_plain_graphs_give_the_serial_numbers_in_jax_mode():
    named = {
        name: graph
        for kind in (cases.statistics, cases.gradients)
        for name, graph in list(kind())[::4]
        if "found" not in name  # as many as values tell
    }
    f, kept = made(named, True, "JAX")
    right = serial(INPUTS, list(named.values()), cases.values(5))
    with synk.session(2):
        for values in (f(*cases.values(5)), synk.get_value(1, kept)):
            for name, got, expected in zip(named, values, right, strict=True):
                assert_equal(name, got, expected)


def test_fitted_to_rows_of_two_ranks_they_are_those_of_scikit_learn(two_ranks):
    names, graphs = zip(*models.estimators(), strict=True)
    f = synk.function([X, Y], list(graphs), mode=PY)
    x, y, _ = cases.values(40)
    expected = models.of_scikit_learn(x, y)
    assert expected.keys() == set(names)
    for name, got in zip(names, f(x, y), strict=True):
        np.testing.assert_allclose(got, expected[name], 1e-6, 1e-8, err_msg=name)


def is_close(got, right):
    """Tell whether a value of a random graph is right."""
    size = max(1.0, np.abs(np.nan_to_num(right)).max(initial=0))
    return np.shape(got) == np.shape(right) and np.allclose(
        got, right, 1e-7, 1e-9 * size, equal_nan=True
    )


@three_ranks
@pytest.mark.filterwarnings("ignore::synk.SplitWarning")
@pytest.mark.parametrize("productions", [PRODUCTIONS, STATISTICS], ids=["all", "met"])
def test_random_graphs_give_the_serial_numbers(ranks, productions):
    """PyTensor's rewrites make 1 of x / x, be x 0: to agree with them is enough."""
    for seed in range(1000, 1010):
        graph = Graph(Choice(random.Random(seed).randrange))
        graph.grow(8, productions)
        outputs = [term.var for term in graph.made]
        options = {"mode": PY, "on_unused_input": "ignore"}
        f = synk.function(graph.inputs, outputs, **options)
        for rows in (5, 2):
            values = graph.values(rows, 1)
            with np.errstate(all="ignore"):
                found = f(*values)
                plain = (serial(graph.inputs, outputs, values, m) for m in (PY, FAST))
                assert any(all(map(is_close, found, right)) for right in plain), seed


@pytest.mark.parametrize("graph", [pt.sort(Y), Y[1:], pt.cumsum(Y)])
def test_what_every_rank_repeats_is_told_once(graph):
    inputs = [X, Y]
    with pytest.warns(synk.SplitWarning, match="needs all rows at once") as caught:
        synk.function(inputs, [graph, graph * 2], mode=PY, on_unused_input="ignore")
    assert [w.filename for w in caught] == [__file__]
    text = str(caught[0].message)
    assert "made in test_reducing_placement.py" in text
    assert re.search("every rank repeats . of the . Ops on rows", text)
    assert "every rank reads all rows of y (8 bytes a row)" in text
    with pytest.raises(synk.SplitError, match=r"made in test_reducing_placement\.py"):
        synk.function(inputs, graph, on_unused_input="ignore", strict=True)


KEPT = pytensor.shared(np.zeros((0, 3)), "kept")
GROWING = {
    "pairs": ({"outputs": X @ X.T}, "needs rows of all ranks"),
    "sort": ({"outputs": pt.sort(Y)}, "needs all rows at once"),
    "a value for each row": ({"updates": {KEPT: X * 2}}, "the new value of kept"),
    "all_reduce": ({"outputs": synk.ops.all_reduce(X.std())}, "all_reduce of std"),
}


@pytest.mark.parametrize("what", GROWING)
def test_strict_refuses_what_grows_with_the_rows_or_is_not_shown(what):
    graph, message = GROWING[what]
    options = {"on_unused_input": "ignore", "mode": PY, "strict": True}
    with pytest.raises(synk.SplitError, match=message):
        synk.function([X, Y], **graph, **options)
    synk.function([X, Y], cases.batch_normalised(), **options)


# -- in how many meetings, and of what -------------------------------------------------


def network():
    weights = pytensor.shared(np.full((3, 4), 0.1), "weights")
    bias = pytensor.shared(np.zeros(4), "bias")
    last = pytensor.shared(np.full(4, 0.1), "last")
    loss = ((pt.tanh(X @ weights + bias) @ last - Y) ** 2).mean()
    return loss, [weights, bias, last]


def test_plain_gradients_cost_what_synk_grad_costs():
    loss, params = network()
    plain = synk.updates.adam(pytensor.grad(loss, params), params)
    named = synk.updates.adam(synk.grad(loss, params), params)
    options = {"mode": PY, "on_unused_input": "ignore"}
    mine = levels(synk.function(INPUTS, loss, updates=plain, **options))
    assert mine == levels(synk.function(INPUTS, loss, updates=named, **options))
    assert mine == [["avg"] * 4]


def test_of_a_gradient_in_several_terms_there_is_one_reduction():
    loss, params = network()
    rule = synk.updates.nesterov_momentum
    updates = rule(pytensor.grad(loss, params), params, 0.1, 0.9)
    f = synk.function(INPUTS, loss, updates=updates, mode=PY, on_unused_input="ignore")
    assert levels(f) == [["avg"] * 4]


def test_a_posterior_and_its_gradient_are_one_meeting():
    outputs = [posterior(), *pytensor.grad(posterior(), [W, SCALE])]
    f = synk.function([X, Y], outputs, mode=PY)
    assert levels(f) == [["sum"] * 3]


def test_nothing_is_placed_where_nothing_is_needed():
    loss, _ = network()
    f = synk.function([X, Y], [loss, X.sum(), X.max(axis=0), Y * 2], mode=PY)
    assert f.output_modes == ["avg", "sum", "max", "gather"]
    assert levels(f) == []


# -- what PyTensor stabilises ----------------------------------------------------------


@three_ranks
def test_large_exponentials_do_not_overflow(ranks):
    large = 1000 * Y
    by_hand = pt.exp(large) / pt.exp(large).sum()
    outputs = [pt.log(pt.exp(large).sum()), pt.log(by_hand).sum(), pt.logsumexp(large)]
    values = cases.values(7)[:2]
    expected = serial([X, Y], outputs, values, FAST)
    assert np.isfinite(expected[0])
    f = synk.function([X, Y], outputs, mode=FAST, on_unused_input="ignore")
    for got, right in zip(f(*values), expected, strict=True):
        np.testing.assert_allclose(got, right, 1e-9)


@three_ranks
def test_rows_are_added_by_group_to_what_all_ranks_have_without_an_exchange(ranks):
    # PyTensor makes it of the gradient of a prior and that of effects of groups.
    added = pt.inc_subtensor((W / SCALE)[LABELS], pt.exp(Y))
    inputs, values = [Y, LABELS], cases.values(7)[1:]
    f = synk.function(inputs, [added, added.sum() ** 2], mode=PY, strict=True)
    expected = serial(inputs, [added, added.sum() ** 2], values)
    for got, right in zip(f(*values), expected, strict=True):
        np.testing.assert_allclose(got, right, 1e-12)


@three_ranks
def test_rows_beside_a_state_of_all_rows_are_as_many_as_a_rank_has(ranks):
    # Where exponentials are stabilised, PyTensor asks for lengths, and compares them.
    steps, scale = pt.dvector("steps"), pt.dscalar("scale")
    z = (Y - pt.cumsum(steps)) / pt.exp(scale)
    total = (-0.5 * z**2 - scale).sum()
    outputs = pytensor.grad(total, [scale, steps])
    with pytest.warns(synk.SplitWarning, match="Cumsum.* needs all rows at once"):
        f = synk.function([Y], outputs, [steps, scale], mode=PY)
    for rows in (7, 2, 1):
        y = np.random.default_rng(rows).normal(size=rows)
        values = y, np.linspace(-1, 1, rows), 0.3
        expected = serial([Y, steps, scale], outputs, values)
        for got, right in zip(f(*values), expected, strict=True):
            np.testing.assert_allclose(got, right, 1e-12)


@three_ranks
def test_numbers_that_are_put_side_by_side_need_not_be_a_shape(ranks):
    v, a = pt.dvector("v"), pt.dscalar("a")
    to_zero = pt.concatenate([v, pt.stack([-v.sum()])])
    outputs = [(to_zero**2).sum() * Y.sum(), pt.stack([a, -a]) * v + Y.mean()]
    f = synk.function([Y], outputs, [v, a], mode=PY, strict=True)
    values = cases.values(7)[1], np.array([0.5, 2.0]), 0.3
    expected = serial([Y, v, a], outputs, values)
    for got, right in zip(f(*values), expected, strict=True):
        np.testing.assert_allclose(got, right, 1e-12)


@three_ranks
def test_zeros_that_are_divided_by_rows_come_to_an_end(ranks):
    # PyTensor 2.38 makes of them zeros as long as they are, and of these others.
    graph = pt.log(pt.exp(Y).sum()) ** 2 + (pt.constant([0.0]) / (Y**2 + 1)).sum()
    f = synk.function([Y], graph, mode=PY)
    y = cases.values(7)[1]
    np.testing.assert_allclose(f(y), np.log(np.exp(y).sum()) ** 2, 1e-12)


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
    """As rows of a sliceable variable, of which no rank knows where they stand."""
    rows = pytensor.shared(np.array([3.0, 1, 2]), "rows")
    outputs, options = [pt.sort(rows), X.sum()], {"sliceable_shareds": [rows]}
    f = synk.function([X], outputs, mode=PY, **options)
    values = cases.values(7)[:1]
    for n in (2, 1):
        with synk.session(n):
            if n > 1:
                with pytest.raises(
                    synk.SplitError, match=r"output 0.*goes along the rows"
                ):
                    f(*values)
                with pytest.raises(synk.SplitError, match="goes along the rows"):
                    f.run([3, 4], *values)
            else:
                np.testing.assert_array_equal(f(*values)[0], [1, 2, 3])
    with pytest.raises(synk.SplitError):
        synk.function([X], outputs, mode=PY, strict=True, **options)


def test_a_named_op_is_believed_and_its_graph_is_left(two_ranks):
    f = synk.function([Y], [Y.std(), (Y.std(), "avg")], mode=PY)
    y = np.array([0.0, 0, 4, 4])
    mine, local = f(y)
    assert (mine, local) == (2, 0)


def test_local_functions_place_nothing(two_ranks):
    total = pytensor.shared(0.0)
    f = synk.function([Y], (Y.std(), "avg"), updates={total: Y.sum()}, local=True)
    assert f(np.array([0.0, 0, 4, 4])) == 0
    assert [synk.get_value(rank, total) for rank in range(2)] == [0, 8]
    synk.all_reduce(total, "sum")
    assert synk.get_value(1, total) == 8


def test_collectives_do_not_count_what_is_of_all_rows(two_ranks):
    total = pytensor.shared(0.0, "total")
    f = synk.function([Y], updates={total: total + Y.sum()}, mode=PY, name="adds")
    f(np.array([1.0, 2, 3]))
    for op in ("avg", "max", "min"):
        synk.all_reduce(total, op)
        assert synk.get_value(0, total) == synk.get_value(1, total) == 6
    f(np.array([1.0, 2, 3]))
    for collective in (synk.all_reduce, synk.reduce):
        with pytest.raises(
            synk.SplitError, match=r"total by 'sum'.*'adds'.*local=True"
        ):
            collective(total, "sum")
    synk.set_value(1, total, 2.0)
    synk.all_reduce(total, "sum")
    assert synk.get_value(0, total) == 14


def test_slices_of_an_update_that_does_not_follow_from_them_are_refused(two_ranks):
    total = pytensor.shared(0.0, "total")
    updates = {total: total + Y.sum()}
    f = synk.function([Y], updates=updates, mode=PY, local=True)
    with pytest.raises(synk.SplitError, match="does not follow from those of slices"):
        f(np.ones(8), num_slices=2)
    f(np.ones(8))
    assert synk.gather(total).tolist() == [4, 4]
