"""What the splitting proof makes of graphs that people write, and what it refuses."""

from __future__ import annotations

import re
import time
import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from proof_corpus import (
    INPUTS,
    ROWS,
    X3,
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
from pytensor.tensor.math import Dot
from reference import PY

import synk
from synk.compiler.proof import examine, ops_of
from synk.compiler.table import entry_of


def as_params(cases):
    return [pytest.param(var, what, id=name) for name, var, what in cases]


def make(outputs, **kwargs) -> synk.Function:
    """Make a function in which nothing is placed: as it is, the proof judges it."""
    options = {"on_unused_input": "ignore", "mode": PY, "local": True}
    return synk.function(INPUTS, outputs, **options, **kwargs)


@pytest.mark.parametrize(("var", "op"), as_params(accepted()))
def test_the_op_that_a_graph_needs_is_found(var, op):
    f = make(var, strict=True)
    assert f.output_modes == [op]
    (finding,) = f._spec.findings
    assert finding.agrees
    assert finding.reason is None
    assert not finding.named


def test_what_is_accepted_is_what_the_serial_run_returns():
    cases = [case for case in accepted() if "draw" not in case[0]]
    names, outputs, _ = zip(*cases, strict=True)
    values = values_of(7)
    # Scans are compiled to C, in any mode, if there is a compiler.
    with pytensor.config.change_flags(linker="py", cxx=""):
        plain = pytensor.function(INPUTS, outputs, mode=PY, on_unused_input="ignore")
        expected = plain(*values)
        f = make(list(outputs), strict=True)
        for n in (2, 3):
            with synk.session(n):
                results = f(*values)
            for name, got, right in zip(names, results, expected, strict=True):
                what = f"{name} of {n} ranks"
                np.testing.assert_allclose(got, right, 1e-10, 1e-12, err_msg=what)


@pytest.mark.parametrize(("var", "op"), as_params(refused()))
def test_what_couples_rows_is_refused_by_the_op_that_does_it(var, op):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kind = "avg" if var.dtype != "bool" else None
        f = make(var if kind else (var, None))
    if kind:
        assert [warning.category for warning in caught] == [synk.SplitWarning]
        assert f.output_modes == ["avg"]
    (finding,) = f._spec.findings
    assert not finding.agrees
    assert any(name in finding.reason for name in op.split("|")), finding.reason
    assert "could not be examined" not in finding.reason


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
    findings = make(outputs, strict=True)._spec.findings
    assert [finding.op for finding in findings] == ["avg", "avg", "avg", None]
    assert [finding.agrees for finding in findings] == [False, False, True, False]
    assert all(finding.named for finding in findings)
    kinds = ["a sum over the rows", "unknown", *["a mean over the rows"] * 2]
    assert [finding.kind for finding in findings] == kinds
    assert [finding.reason is None for finding in findings] == [True, False, True, True]


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


def test_an_error_in_a_rule_does_not_keep_a_function_from_being_made(monkeypatch):
    def broken(node, values):
        raise AttributeError("no such attribute in this version")

    monkeypatch.setattr(entry_of(Dot()), "placement", broken)
    (text,) = caught_by(lambda: make(pt.dot(Y, X)))
    assert "could not be examined: AttributeError" in text
    assert not caught_by(lambda: make((pt.dot(Y, X), "sum")))


def test_lengths_are_followed_through_deep_graphs():
    h = X3.transpose(1, 0, 2)
    for _ in range(1500):
        h = h + 1.0
    for _ in range(50):
        h = (h.reshape((-1, h.shape[2])) @ W[:, :3]).reshape(h.shape)
    start = time.perf_counter()
    rows = h.transpose(1, 0, 2)
    values = examine([X3], [], [h, rows])
    assert time.perf_counter() - start < 5
    assert ops_of(values[h]) == []
    assert ops_of(values[rows]) == ["gather"]


def test_functions_of_a_large_graph_are_examined_in_little_time():
    h = X
    weights = [pytensor.shared(np.full((3, 3), 0.1), f"w{i}") for i in range(60)]
    for w in weights:
        h = pt.tanh(h @ w) + h
    loss = ((h @ V - Y) ** 2).mean()
    gradients = pytensor.grad(loss, weights)
    start = time.perf_counter()
    values = examine([X, Y], [], [loss, *gradients])
    assert time.perf_counter() - start < 5
    assert {ops_of(values[var])[0] for var in (loss, *gradients)} == {"avg"}
