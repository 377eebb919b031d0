"""The op that combines an output, as its graph tells, and graphs that have none."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytensor
import pytest
from on_ranks import one_and_three_ranks
from proof_corpus import (
    INPUTS,
    ROWS,
    B,
    C,
    V,
    W,
    X,
    Y,
    accepted,
    batch_norm,
    log_likelihood,
    recurrent,
    softmax_loss,
    squares,
    synchronised,
    values_of,
)
from proof_refused import refused
from reference import PY

import synk


def make(outputs, **kwargs) -> synk.Function:
    """Make a function in which nothing is placed: as it is, the proof judges it."""
    options = {"on_unused_input": "ignore", "mode": PY, "local": True}
    return synk.function(INPUTS, outputs, **options, **kwargs)


def shown(f: synk.Function) -> list[dict]:
    """Return what is known of the outputs of a function."""
    return f.explain().to_dict()["outputs"]


def test_the_ops_that_graphs_need_are_found():
    names, graphs, ops = zip(*accepted(), strict=True)
    f = make(list(graphs), strict=True)
    assert dict(zip(names, f.output_modes, strict=True)) == dict(
        zip(names, ops, strict=True)
    )
    for name, found in zip(names, shown(f), strict=True):
        assert found["agrees"], name
        assert not found["named"], name
        assert found["reason"] is None, name


def test_what_is_accepted_is_what_the_serial_run_returns():
    cases = {name: graph for name, graph, _ in accepted() if "draw" not in name}
    values = values_of(7)
    # Scans are compiled to C, in any mode, if there is a compiler.
    with pytensor.config.change_flags(linker="py", cxx=""):
        f = make(list(cases.values()), strict=True)
        expected = f.as_theano(*values)
        with synk.session(3):
            results = f(*values)
    for name, got, right in zip(cases, results, expected, strict=True):
        np.testing.assert_allclose(got, right, 1e-10, 1e-12, err_msg=name)


def test_what_couples_rows_is_refused_by_the_op_that_does_it():
    for name, graph, op in refused():
        is_number = graph.dtype != "bool"
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", synk.SplitWarning)
            f = make(graph if is_number else (graph, None))
        texts = [str(w.message) for w in caught if w.category is synk.SplitWarning]
        assert len(texts) == is_number, name
        assert f.output_modes == ["avg" if is_number else None], name
        (found,) = shown(f)
        assert not found["agrees"], name
        assert any(word in found["reason"] for word in op.split("|")), found
        assert all("may differ from the serial result" in text for text in texts), name
        assert "could not be examined" not in found["reason"], name


def caught_by(make_it) -> list[str]:
    """Return the texts of the split warnings that something brings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", synk.SplitWarning)
        make_it()
    return [str(w.message) for w in caught if w.category is synk.SplitWarning]


@pytest.mark.parametrize(
    ("loss", "op"),
    [
        pytest.param(softmax_loss(), "avg", id="mean"),
        pytest.param(squares() + (V**2).sum(), "avg", id="regularised"),
        pytest.param(((synchronised() @ V - Y) ** 2).mean(), "avg", id="synchronised"),
        pytest.param(log_likelihood(), "sum", id="sum"),
        pytest.param((recurrent() ** 2).sum(axis=1).mean() + V.sum(), "avg", id="scan"),
    ],
)
def test_gradients_that_are_reduced_by_the_right_op_bring_no_warning(loss, op):
    of = [W, V, B, C]
    of = [var for var in of if var in pytensor.graph.traversal.ancestors([loss])]
    updates = list(zip(of, synk.grad(loss, of, op=op), strict=True))
    assert not caught_by(lambda: make(loss, updates=updates))
    make(loss, updates=updates, strict=True)


@pytest.mark.parametrize(
    ("loss", "op", "why"),
    [
        pytest.param(squares(), "sum", "it is a mean over the rows", id="mean"),
        pytest.param(log_likelihood(), "avg", "it is a sum over the rows", id="sum"),
        pytest.param(
            (batch_norm() @ V).mean(),
            "avg",
            r"Sub\(x, mean\) combines",
            id="statistics",
        ),
        pytest.param(squares() ** 2, "avg", "Pow|Mul", id="square of a mean"),
        pytest.param(squares() + (X @ V).sum(), "avg", "Add", id="a mean and a sum"),
        pytest.param((V**2).sum() + 0 * C, "sum", "the same on every", id="no rows"),
    ],
)
def test_gradients_that_are_reduced_by_a_wrong_op_bring_a_warning(loss, op, why):
    gradient = synk.grad(loss, V, op=op)
    updates = {V: V - gradient}
    texts = caught_by(lambda: make((loss, None), updates=updates))
    assert len(texts) == 1
    assert re.match(r"the gradient of v \(made in .*\) is combined by", texts[0])
    assert re.search(why, texts[0]), texts[0]
    with pytest.raises(synk.SplitError, match="the gradient of v"):
        make((loss, None), updates=updates, strict=True)


def test_a_cost_that_was_reduced_must_not_be_summed_again():
    total = synk.ops.all_reduce(log_likelihood(), "sum")
    gradient = synk.grad(total, V, op="sum")
    texts = caught_by(lambda: make((total, None), updates={V: V - gradient}))
    assert texts
    assert all("the gradient of" in text for text in texts)


def test_an_all_reduce_of_the_users_own_is_believed_unless_strict():
    spread = synk.ops.all_reduce(X.std(axis=0), "avg")
    sums = synk.ops.all_reduce(X.sum(), "avg")
    assert not caught_by(lambda: make([spread, sums]))
    with pytest.raises(synk.SplitError, match=r"all_reduce of std.*Sub\(x, mean\)"):
        make(spread, strict=True)
    with pytest.raises(synk.SplitError, match=r"all_reduce of .*a sum over the rows"):
        make(sums, strict=True)
    make(synk.ops.all_reduce(X.sum(), "sum"), strict=True)


def test_an_op_that_is_named_is_believed_and_what_was_found_is_kept():
    outputs = [(X.sum(), "avg"), (X.var(), "avg"), (X.mean(), "avg"), (X.mean(), None)]
    assert not caught_by(lambda: make(outputs))
    findings = shown(make(outputs, strict=True))
    assert [found["op"] for found in findings] == ["avg", "avg", "avg", None]
    assert [found["agrees"] for found in findings] == [False, False, True, False]
    assert all(found["named"] for found in findings)
    kinds = ["a sum over the rows", "unknown", *["a mean over the rows"] * 2]
    assert [found["kind"] for found in findings] == kinds
    assert [found["reason"] is None for found in findings] == [True, False, True, True]


def test_slices_of_updates_are_combined_as_the_graph_asks():
    new = {
        "avg": X.mean(),
        "sum": X.sum(),
        "max": X.max(),
        "min": X.min(),
        "prod": Y.prod(),
    }
    shared = {op: pytensor.shared(0.0) for op in [*new, "unknown", "same"]}
    new |= {"unknown": X.var(), "same": C + X.shape[1]}
    updates = [(shared[op], value) for op, value in new.items()]
    assert not caught_by(lambda: make(None, updates=updates))
    f = make(None, updates=updates)
    assert f.update_modes == ["avg", "sum", "max", "min", "prod", None, None]


@one_and_three_ranks
def test_slices_and_ranks_combine_to_the_serial_values(ranks):
    total, largest = pytensor.shared(0.0), pytensor.shared(0.0)
    updates = {total: X.sum(), largest: X.max()}
    outputs = [X.mean(), X.sum(), X @ V, X.max(axis=0), ROWS]
    f = synk.function([X], outputs, updates=updates, mode=PY, strict=True)
    x = np.random.default_rng(2).normal(size=(11, 3))
    for slices in (1, 2, 5):
        for rows in (1, 4, 11):
            some = x[:rows]
            got = f(some, num_slices=slices)
            right = [some.mean(), some.sum(), some @ np.full(3, 0.5), some.max(0), rows]
            for one, other in zip(got, right, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
            for rank in range(ranks):
                np.testing.assert_allclose(synk.get_value(rank, total), some.sum())
                assert synk.get_value(rank, largest) == some.max()


def test_rows_of_shared_variables_weigh_where_there_are_no_inputs():
    s, t = pytensor.shared(np.zeros(5), "s"), pytensor.shared(np.zeros(3), "t")
    f = synk.function(
        [], [s.sum(), s.mean(), s * 2], sliceable_shareds=[s], strict=True
    )
    assert f.output_modes == ["sum", "avg", "gather"]
    # Ranks are weighed by the rows of s, and those without any do not compute.
    for output in (t.sum(), t.mean(), t.shape[0], t):
        with pytest.raises(synk.SplitError, match=r"sliceable shared variable|no op"):
            synk.function([], [s.sum(), output], sliceable_shareds=[s, t], strict=True)
    with pytest.raises(synk.SplitError, match="sliceable shared variable"):
        synk.function([Y], [Y.sum(), s.sum()], sliceable_shareds=[s], strict=True)
    # Multiplied row by row there are as many as there are of the input.
    f = synk.function([Y], (Y * s).mean(), sliceable_shareds=[s], strict=True)
    assert f.output_modes == ["avg"]
