"""The op that combines an output, as its graph tells, and graphs that have none."""

import re
import warnings

import numpy as np
import pytensor
import pytest
from proof_corpus import (
    INPUTS,
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
    refused,
    softmax_loss,
    squares,
    synchronised,
    values_of,
)
from reference import PY

import synk


def make(outputs, **kwargs) -> synk.Function:
    """Make a function in which nothing is placed: as it is, the proof judges it."""
    options = {"on_unused_input": "ignore", "mode": PY, "local": True}
    return synk.function(INPUTS, outputs, **options, **kwargs)


def warned(outputs, **kwargs) -> tuple[synk.Function, list[str]]:
    """Make a function, and return the texts of the split warnings as well."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", synk.SplitWarning)
        f = make(outputs, **kwargs)
    return f, [str(w.message) for w in caught if w.category is synk.SplitWarning]


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
        f, texts = warned(graph if is_number else (graph, None))
        assert len(texts) == is_number, name
        assert f.output_modes == ["avg" if is_number else None], name
        (found,) = shown(f)
        assert not found["agrees"], name
        assert any(word in found["reason"] for word in op.split("|")), found
        assert all("may differ from the serial result" in text for text in texts), name
        assert "could not be examined" not in found["reason"], name


OF_SCAN = (recurrent() ** 2).sum(axis=1).mean() + V.sum()
RIGHT = [
    *[(softmax_loss(), "avg"), (squares() + (V**2).sum(), "avg")],
    *[(((synchronised() @ V - Y) ** 2).mean(), "avg"), (log_likelihood(), "sum")],
    (OF_SCAN, "avg"),
]
WRONG = [
    (squares(), "sum", "it is a mean over the rows"),
    (log_likelihood(), "avg", "it is a sum over the rows"),
    ((batch_norm() @ V).mean(), "avg", r"Sub\(x, mean\) combines"),
    (squares() + (X @ V).sum(), "avg", "Add"),
    ((V**2).sum() + 0 * C, "sum", "the same on every"),
]


@pytest.mark.parametrize(("loss", "op"), RIGHT)
def test_gradients_that_are_reduced_by_the_right_op_bring_no_warning(loss, op):
    below = set(pytensor.graph.traversal.ancestors([loss]))
    of = [var for var in (W, V, B, C) if var in below]
    updates = list(zip(of, synk.grad(loss, of, op=op), strict=True))
    assert not warned(loss, updates=updates)[1]
    make(loss, updates=updates, strict=True)


@pytest.mark.parametrize(("loss", "op", "why"), WRONG)
def test_gradients_that_are_reduced_by_a_wrong_op_bring_a_warning(loss, op, why):
    updates = {V: V - synk.grad(loss, V, op=op)}
    _, (text,) = warned((loss, None), updates=updates)
    assert re.match(r"the gradient of v \(made in .*\) is combined by", text)
    assert re.search(why, text), text
    with pytest.raises(synk.SplitError, match="the gradient of v"):
        make((loss, None), updates=updates, strict=True)


def test_a_cost_that_was_reduced_must_not_be_summed_again():
    total = synk.ops.all_reduce(log_likelihood(), "sum")
    gradient = synk.grad(total, V, op="sum")
    _, texts = warned((total, None), updates={V: V - gradient})
    assert texts
    assert all("the gradient of" in text for text in texts)


def test_an_all_reduce_of_the_users_own_is_believed_unless_strict():
    spread = synk.ops.all_reduce(X.std(axis=0), "avg")
    sums = synk.ops.all_reduce(X.sum(), "avg")
    assert not warned([spread, sums])[1]
    with pytest.raises(synk.SplitError, match=r"all_reduce of std.*Sub\(x, mean\)"):
        make(spread, strict=True)
    with pytest.raises(synk.SplitError, match=r"all_reduce of .*a sum over the rows"):
        make(sums, strict=True)
    make(synk.ops.all_reduce(X.sum(), "sum"), strict=True)


def test_an_op_that_is_named_is_believed_and_what_was_found_is_kept():
    outputs = [(X.sum(), "avg"), (X.var(), "avg"), (X.mean(), "avg"), (X.mean(), None)]
    assert not warned(outputs)[1]
    findings = shown(make(outputs, strict=True))
    assert [found["op"] for found in findings] == ["avg", "avg", "avg", None]
    assert [found["agrees"] for found in findings] == [False, False, True, False]
    assert all(found["named"] for found in findings)
    kinds = ["a sum over the rows", "unknown", *["a mean over the rows"] * 2]
    assert [found["kind"] for found in findings] == kinds
    assert [found["reason"] is None for found in findings] == [True, False, True, True]


def test_slices_of_updates_are_combined_as_the_graph_asks():
    new = X.mean(), X.sum(), X.max(), X.min(), Y.prod(), X.var(), C + X.shape[1]
    f, texts = warned(None, updates=[(pytensor.shared(0.0), value) for value in new])
    assert not texts
    assert f.update_modes == ["avg", "sum", "max", "min", "prod", None, None]


def test_rows_of_shared_variables_weigh_where_there_are_no_inputs():
    s, t = pytensor.shared(np.zeros(5), "s"), pytensor.shared(np.zeros(3), "t")
    outputs = [s.sum(), s.mean(), s * 2]
    f = synk.function([], outputs, sliceable_shareds=[s], strict=True)
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
