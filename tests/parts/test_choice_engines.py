"""Which engines may compute a graph to the others' numbers, and which is likely to."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.raise_op import Assert
from reference import PY

import synk
from synk.choice.engines_here import engines_for, may_be_alone
from synk.choice.likely import is_for_numba
from synk.choice.trial import NEAR, RUNS, Candidate, Trial
from synk.engines import described

x, y = pt.dmatrix("x"), pt.dvector("y")
k = pt.lvector("k")


def spec_of(outputs, **options):
    return synk.function([x, y, k], outputs, on_unused_input="ignore", **options)._spec


@pytest.fixture(autouse=True)
def auto(monkeypatch):
    """Let engines be chosen; have JAX, if it is imported, as PyTensor sets it."""
    monkeypatch.setenv("SYNK_ENGINE", "auto")
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


@pytest.mark.skipif(not importlib.util.find_spec("jax"), reason="JAX is missing")
@pytest.mark.parametrize("what", JAX_ALIKE)
def test_jax_gets_graphs_that_cannot_fail_otherwise(what):
    assert sorted(engines_for(spec_of(JAX_ALIKE[what]))) == ["C", "JAX", "numba"]


@pytest.mark.parametrize("what", NOT_BY_JAX)
def test_jax_gets_none_that_raise_errors_elsewhere(what):
    found = engines_for(spec_of(NOT_BY_JAX[what]))
    assert "JAX" not in found
    assert "numba" in found


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
def test_numba_is_likely_for_likelihoods(graph, is_likely):
    assert is_for_numba([graph]) is is_likely


def test_what_the_script_has_said_stands():
    loss = JAX_ALIKE["likelihood"]
    assert engines_for(spec_of(loss, mode=PY)) == []
    assert engines_for(spec_of(loss, pad=True)) == []
    for said in ({"mode": "FAST_COMPILE"}, {"linker": "py"}):
        with pytensor.config.change_flags(**said):
            assert engines_for(spec_of(loss)) == []
    drawn = pt.random.normal(rng=pytensor.shared(np.random.default_rng(0)), size=3)
    assert engines_for(spec_of(loss + drawn.sum())) == []
    with pytensor.config.change_flags(cxx=""):
        assert "C" not in engines_for(spec_of(loss))
        assert described("CVM") == "mode CVM (in Python, as there is no C compiler)"


ROWS, LOSS = x.sum(axis=1), (x.sum(axis=1) * y).mean()
ALONE = {
    "a mean": (LOSS, True),
    "rows": (ROWS * 2, True),
    "a largest": ((x.max(axis=0), "max"), True),
    "all rows together": (pt.sort(y), True),
    "a mean of largest": ((x.max(axis=0), "avg"), False),
    "of rank 0": ((x.sum(), None), False),
    "reduced by the script": (synk.ops.all_reduce(x.sum(axis=0), "avg"), False),
    "of one rank": (synk.ops.local(x).sum(), False),
}


@pytest.mark.filterwarnings("ignore::synk.SplitWarning")
@pytest.mark.parametrize("what", ALONE)
def test_what_is_the_serial_run_may_be_made_by_rank_0_alone(what):
    outputs, may_be = ALONE[what]
    assert may_be_alone(spec_of(outputs)) is may_be


# -- what trying costs, with made-up times; docs/modes.rst promises these shares

COMPILING = {"JAX": 0.4, "C": 1.5, "numba": 2.0}


def play(trial: Trial, seconds: dict[str, float], compiling: dict[str, float], until):
    """Play calls that take each engine so long; return the time, and who made them."""
    clock, made = 0.0, []
    while clock < until:
        turn = trial.turn()
        made.append(turn.name)
        first = turn.compiled is None
        taken = seconds[turn.name] + first * compiling[turn.name]
        trial.note(turn, taken, rows=10, has_compiled=first)
        clock += taken
    return clock, made


def trial_of(compiling: dict[str, float]) -> Trial:
    return Trial([Candidate(name, expected) for name, expected in compiling.items()])


@pytest.mark.parametrize("best", COMPILING)
def test_the_fastest_makes_the_calls_in_the_end(best):
    trial = trial_of(COMPILING)
    seconds = dict.fromkeys(COMPILING, 0.03) | {best: 0.02}
    _, made = play(trial, seconds, COMPILING, until=120)
    assert made[0] == "JAX"  # which compiles fastest
    assert set(made[-100:]) == {best}
    dropped = {each.name for each in trial.candidates if each.dropped is not None}
    assert dropped == COMPILING.keys() - {best}


def test_trying_costs_a_twentieth_at_most_when_the_first_was_the_best():
    seconds = {"JAX": 0.02, "C": 0.3, "numba": 0.021}
    clock, made = play(trial_of(COMPILING), seconds, COMPILING, until=60)
    alone = COMPILING["JAX"] + len(made) * seconds["JAX"]
    assert clock - alone <= 0.05 * clock
    assert made.count("C") <= 2  # it is 15 times as slow: one compiles


@pytest.mark.parametrize(("is_likely", "share"), [(False, 0.05), (True, 0.5)])
def test_nothing_is_tried_before_it_is_affordable(is_likely, share):
    """Which it is within a half for what is likely to be faster."""
    compiling = {"JAX": 0.0, "numba": 4.0}
    trial, seconds = trial_of(compiling), {"JAX": 0.1, "numba": 0.01}
    trial.candidates[1].is_likely = is_likely
    _, made = play(trial, seconds, compiling, until=4 / share - 0.2)
    assert set(made) == {"JAX"}
    play(trial, seconds, compiling, until=6)
    assert trial.best.name == "numba"


@pytest.mark.parametrize("calls", [19, 21])
def test_calls_that_are_known_to_come_count_from_the_first(calls):
    compiling = {"JAX": 0.0, "C": 0.1 * 20 * 0.05}
    trial = trial_of(compiling)
    trial.foreseen = calls
    _, made = play(trial, {"JAX": 0.1, "C": 0.001}, compiling, until=1.0)
    assert ("C" in made) == (calls > 20)


@pytest.mark.parametrize("times", [1 + (NEAR - 1) / 2, 2 * NEAR - 1])
def test_what_lost_by_less_than_8_percent_is_tried_by_the_next_run(times):
    assert NEAR == 1.08
    seconds, compiling, lost = {"A": 1.0, "B": times}, {"A": 0.0, "B": 0.0}, 0
    for run in range(RUNS):
        trial = trial_of(compiling)
        _, slower = trial.candidates
        slower.lost = lost
        play(trial, seconds, compiling, until=100)
        assert trial.best.name == "A"
        lost = slower.lost
        assert lost == (run + 1 if times < NEAR else RUNS)
        if lost == RUNS:
            break
