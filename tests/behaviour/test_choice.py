"""Engines that are chosen by measurement: what may be chosen, and that numbers stay."""

from __future__ import annotations

import importlib
import json
import sys

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from children import in_a_child
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.raise_op import Assert
from reference import PY

import synk
from synk.call import engines
from synk.choice import engines_here, records
from synk.choice.engines_here import engines_for
from synk.choice.likely import is_for_numba
from synk.choice.trial import MOST, RUNS, SHARE, Candidate, Trial

x, y = pt.dmatrix("x"), pt.dvector("y")
k = pt.lvector("k")


def spec_of(outputs, **options):
    return synk.function([x, y, k], outputs, on_unused_input="ignore", **options)._spec


# -- what may be chosen


@pytest.fixture(autouse=True)
def jax_is_of_pytensor():
    """Have JAX, where another test has imported it, as PyTensor sets it, in 64 bits."""
    if "jax" in sys.modules:
        importlib.import_module("pytensor.link.jax.dispatch")


JAX_ALIKE = {
    "likelihood": (y * (x @ np.ones(3)) - pt.softplus(x @ np.ones(3))).sum(),
    "network": pt.special.log_softmax(pt.tanh(x @ np.ones((3, 3))), axis=1).mean(),
    "gradient": pytensor.grad((pt.sigmoid(x) ** 2).sum(), x),
    "constant index": x[:, 1:].max(axis=0),
    "a row of another number": x[k[0]],
    "labels": x[pt.arange(y.shape[0]), k].sum(),
    "a gradient of labels": pytensor.grad(pt.exp(x)[pt.arange(k.shape[0]), k].sum(), x),
    "statistics": x.var(axis=0) + pt.concatenate([x.mean(axis=0), y[:0]])[:3],
    "floats from whole numbers": (k * 0.5).mean(),
}
NOT_BY_JAX = {
    "rows of a mask": x[y > 0].sum(),
    "as many rows as it says": x[: k[0]].sum(),
    "whole numbers divided": (k // 2).sum(),
    "remainders": (k % 3).sum(),
    "powers": (k**k).sum(),
    "whole numbers of floats": pt.cast(y, "int32").sum(),
    "an assertion": Assert("small")(x, pt.lt(x.sum(), 3)).sum(),
    "a factor": pt.linalg.cholesky(x.T @ x),
    "a sort": pt.sort(y),
}


@pytest.mark.parametrize("what", JAX_ALIKE)
def test_jax_gets_graphs_that_cannot_fail_otherwise(auto, what):
    found = engines_for(spec_of(JAX_ALIKE[what]))
    assert found[0] == "JAX"
    assert sorted(found) == ["C", "JAX", "numba"]


@pytest.mark.parametrize("what", NOT_BY_JAX)
def test_jax_gets_none_that_raise_errors_elsewhere(auto, what):
    assert "JAX" not in engines_for(spec_of(NOT_BY_JAX[what]))


@pytest.mark.parametrize(
    ("graph", "is_likely"),
    [
        (JAX_ALIKE["likelihood"], True),
        (pytensor.grad(JAX_ALIKE["likelihood"], x), True),
        (pt.exp(x)[k].sum(), True),
        (pt.cast(x, "float32").sum(), False),
        (pt.tanh(x @ np.ones((3, 3))).sum(), False),
        (pt.special.softmax(x, axis=1).sum(), False),
        (pt.sort(y).sum(), False),
    ],
)
def test_numba_is_likely_for_likelihoods(auto, graph, is_likely):
    """It comes before C then, and trying it may cost more."""
    assert is_for_numba([graph]) is is_likely
    names = engines_for(spec_of(graph))
    assert (names.index("numba") < names.index("C")) is is_likely
    made = engines.Engines(spec_of(graph))
    made._names = names
    likely = [each.name for each in made._candidates({}) if each.is_likely]
    assert likely == ["numba"] * is_likely


def test_the_next_engine_is_tried_at_once_where_many_calls_are_foreseen(
    two_ranks, two_engines, monkeypatch
):
    tries = {}
    monkeypatch.setitem(engines._COMPILING, "B", (100.0, 0.0))
    for calls in (0, 10**9):
        f, *_ = counter()
        f.foresee(calls)
        rows = np.ones((6, 3)), np.ones(6)
        for _ in range(12):
            f(*rows)
        tries[calls] = [each.first_call is not None for each in f._engines.facts()]
    assert tries == {0: [True, False], 10**9: [True, True]}


def test_what_the_script_has_said_stands(auto, monkeypatch):
    loss = JAX_ALIKE["likelihood"]
    assert engines_for(spec_of(loss, mode=PY)) == []
    assert engines_for(spec_of(loss, pad=True)) == []
    with pytensor.config.change_flags(mode="FAST_COMPILE"):
        assert engines_for(spec_of(loss)) == []
    with pytensor.config.change_flags(linker="py"):
        assert engines_for(spec_of(loss)) == []
    drawn = pt.random.normal(rng=pytensor.shared(np.random.default_rng(0)), size=3)
    assert engines_for(spec_of(loss + drawn.sum())) == []
    monkeypatch.setenv(engines_here.VARIABLE, "default")
    assert engines_for(spec_of(loss)) == []
    monkeypatch.setenv(engines_here.VARIABLE, "C")
    assert engines_for(spec_of(loss)) == ["C"]
    monkeypatch.setenv(engines_here.VARIABLE, "Fortran")
    with pytest.raises(synk.SynkError, match="SYNK_ENGINE is 'Fortran'; it can be one"):
        engines_for(spec_of(loss))


def test_no_compiler_no_c(auto):
    with pytensor.config.change_flags(cxx=""):
        found = engines_for(spec_of(JAX_ALIKE["network"]))
    assert found == ["JAX", "numba"]


# -- calls, while engines take turns


def counter():
    """Return a function that makes updates, its variables, and the numbers it gives."""
    w, calls = pytensor.shared(np.zeros(3), "w"), pytensor.shared(np.int64(0), "calls")
    loss = ((x @ w - y) ** 2).mean()
    updates = [(w, w - 0.1 * pytensor.grad(loss, w)), (calls, calls + 1)]
    return synk.function([x, y], loss, updates=updates), w, calls


VALUES = np.arange(24.0).reshape(8, 3) % 5, np.arange(8.0)


def serial(steps: int) -> tuple[list[float], np.ndarray]:
    losses, w, (values, targets) = [], np.zeros(3), VALUES
    for _ in range(steps):
        rest = values @ w - targets
        losses.append((rest**2).mean())
        w = w - 0.2 * values.T @ rest / len(rest)
    return losses, w


def test_updates_are_made_once_whoever_makes_the_call(ranks, two_engines):
    f, w, calls = counter()
    made = [f(*VALUES) for _ in range(2 * MOST + 4)]
    losses, right = serial(len(made))
    np.testing.assert_allclose(made, losses, rtol=1e-10)
    np.testing.assert_allclose(w.get_value(), right, rtol=1e-10)
    assert calls.get_value() == len(made)
    facts = f.explain().to_dict()["engines"]
    assert {fact["name"] for fact in facts} == {"A", "B"}
    assert sum(fact["is_best"] for fact in facts) == 1
    assert sum(fact["dropped"] is not None for fact in facts) == 1


def test_a_run_is_launched_in_parts_while_engines_take_turns(two_ranks, two_engines):
    f, w, calls = counter()
    values = [np.concatenate([part] * 40) for part in VALUES]
    batches = [slice(8 * i, 8 * i + 8) for i in range(40)]
    seen = []
    made = f.run(batches, *values, progress=seen.append)
    losses, right = serial(40)
    np.testing.assert_allclose(made, losses, rtol=1e-8)
    np.testing.assert_allclose(w.get_value(), right, rtol=1e-8)
    assert calls.get_value() == 40
    assert seen == list(range(1, 41))


def test_calls_of_some_outputs_or_in_slices_tell_nothing(two_ranks, two_engines):
    f = synk.function([x, y], [x.sum(), y.max()])
    for _ in range(20):
        f(*VALUES, output_subset=[1])
        f(*VALUES, num_slices=2)
        f.run([slice(0, 8)] * 8, *VALUES, output_subset=[0])
    first, other = f.explain().to_dict()["engines"]
    assert first["is_best"]
    assert first["first_call"] is other["first_call"] is None
    assert f(*VALUES)[1] == 7


def test_tuning_changes_nothing(ranks, two_engines, capsys):
    f, w, calls = counter()
    f(*VALUES)
    before = w.get_value()
    table = synk.tune(f, *VALUES)
    np.testing.assert_array_equal(w.get_value(), before)
    assert calls.get_value() == 1
    for rank in range(ranks):
        np.testing.assert_array_equal(synk.get_value(rank, w), before)
    assert {row.name for row in table} == {"A", "B"}
    assert all(row.nanoseconds_per_row > 0 for row in table)
    (best,) = [row.name for row in table if row.is_best]
    assert f"{best}: " in capsys.readouterr().out
    losses, _ = serial(2)
    np.testing.assert_allclose(f(*VALUES), losses[1], rtol=1e-10)


def test_what_is_found_is_known_to_the_next_run(two_ranks, two_engines):
    f, *_ = counter()
    (best,) = [row.name for row in synk.tune(f, *VALUES) if row.is_best]
    again, *_ = counter()
    again(*VALUES)
    (only,) = again.explain().to_dict()["engines"]
    assert (only["name"], only["is_best"]) == (best, True)
    # Of many more rows nothing is known.
    many = [np.concatenate([part] * 50) for part in VALUES]
    again(*many)
    assert len(again.explain().to_dict()["engines"]) == 2


def test_what_is_left_is_taken_though_it_was_worse(two_ranks, two_engines, monkeypatch):
    f, *_ = counter()
    for _ in range(2 * MOST + 4):
        f(*VALUES)
    (worse,) = [e["name"] for e in f.explain().to_dict()["engines"] if e["dropped"]]
    # As with SYNK_ENGINE=B, or when the other one has been uninstalled.
    monkeypatch.setattr(engines, "engines_for", lambda spec: [worse])
    again, _, calls = counter()
    np.testing.assert_allclose(again(*VALUES), serial(1)[0][0], rtol=1e-10)
    assert calls.get_value() == 1
    assert len(synk.tune(again, *VALUES)) == 1


def test_a_narrow_loss_is_looked_into_again_by_the_next_runs(two_ranks, two_engines):
    """A noisy minute must not decide for good, and it must come to an end."""
    f, *_ = counter()
    (best,) = [row.name for row in synk.tune(f, *VALUES) if row.is_best]
    (path,) = records._path("").parent.glob("*.json")
    record = records.read(path.stem)
    (other,) = {"A", "B"} - {best}
    for lost, tried in ((1, {"A", "B"}), (RUNS, {best})):
        known = record.engines | {other: record.engines[other]._replace(lost=lost)}
        found = record._replace(engines=known)
        path.write_text(json.dumps(found._asdict()))
        again, *_ = counter()
        again(*VALUES)
        rows = again.explain().to_dict()["engines"]
        assert {row["name"] for row in rows} == tried
        assert [row["name"] for row in rows if row["is_best"]] == [best]


def test_a_damaged_file_is_none(auto):
    key = records.key_of(records.spelled([x.sum()]), 2, 1, 3)
    assert records.read(key) is None
    trial = Trial([Candidate("C", 1.0), Candidate("numba", 1.0)], computed=3, spent=1)
    trial.candidates[0].compiled = 0.5
    records.write(key, trial)
    found = records.read(key)
    assert found == ("C", {"C": (0.5, None, 0)}, 3.0, 1.0)
    path = records._path(key)
    for text in ("", "{", "[]", '{"best": "C"}', path.read_text().replace("0.5", "[]")):
        path.write_text(text)
        assert records.read(key) is None
    assert list(path.parent.iterdir()) == [path]
    assert records.key_of(records.spelled([x.sum()]), 2, 1, 3) == key
    assert records.key_of(records.spelled([x.mean()]), 2, 1, 3) != key
    assert records.key_of(records.spelled([x.sum()]), 3, 1, 3) != key


class Unknown(Op):
    """An Op that only Python knows."""

    def make_node(self, var):
        return Apply(self, [var], [var.type()])

    def perform(self, node, inputs, outputs):
        outputs[0][0] = inputs[0] + 1


class Picky(Unknown):
    """An Op that raises an error of the call."""

    def perform(self, node, inputs, outputs):
        if (inputs[0] < 0).any():
            raise ValueError("negative")
        outputs[0][0] = inputs[0]


@in_a_child
def test_an_engine_that_does_not_know_an_op_is_left_out(two_engines, monkeypatch):
    monkeypatch.setitem(engines.MODES, "A", "JAX")
    total = pytensor.shared(0.0, "total")
    new = total + Unknown()(y).sum()
    f = synk.function([y], Unknown()(y), updates=[(total, new)])
    with synk.session(2):
        np.testing.assert_array_equal(f(VALUES[1]), VALUES[1] + 1)
        assert total.get_value() == 36
        failed, works = f.explain().to_dict()["engines"]
    assert failed["dropped"].startswith("failed: NotImplementedError")
    assert works["is_best"]


def test_an_error_of_the_call_is_the_scripts(two_ranks, two_engines):
    f = synk.function([y], Picky()(y).sum())
    with pytest.raises(ValueError, match="negative"):
        f(-VALUES[1])
    assert f(VALUES[1]) == 28
    assert f._engines.present.is_compiled
    assert all(row["dropped"] is None for row in f.explain().to_dict()["engines"])


@pytest.mark.slow
@in_a_child
def test_the_real_engines(auto):
    f, w, calls = counter()
    with synk.session(2):
        losses = [f(*VALUES)]
        table = synk.tune(f, *VALUES)
        alone = {f"{name}{engines.ALONE}" for name in ("JAX", "C", "numba")}
        assert {row.name for row in table} == {"JAX", "C", "numba", *alone}
        # Values go from one engine's arrays to those of another.
        for name in ("C", "JAX", "numba", "JAX", "C"):
            f._engines._take(Candidate(name, 0.0))
            losses.append(f(*VALUES))
        assert calls.get_value() == 6
    right, last = serial(6)
    np.testing.assert_allclose(losses, right, rtol=1e-10)
    np.testing.assert_allclose(w.get_value(), last, rtol=1e-10)


def test_a_share_is_a_small_one():
    assert SHARE == 0.05  # as the documentation says


class Later(Op):
    """An Op that an engine finds, in the second call, that it does not know."""

    made = 0

    def make_node(self, var):
        return Apply(self, [var], [var.type()])

    def perform(self, node, inputs, outputs):
        Later.made += 1
        if Later.made == 2:
            raise NotImplementedError("of such rows")
        outputs[0][0] = inputs[0]


@pytest.mark.parametrize("num_slices", [1, 2])
def test_no_call_of_a_run_is_made_twice(two_engines, num_slices):
    total = pytensor.shared(0.0, "total")
    new = total + Later()(y).sum() if num_slices == 1 else total + Later()(y.sum())
    f = synk.function([y], updates=[(total, new)])
    Later.made = 0
    with synk.session(1), pytest.raises(NotImplementedError):
        f.run([slice(0, 2), slice(2, 4), slice(4, 6)], VALUES[1], num_slices=num_slices)
    assert total.get_value() == 1
