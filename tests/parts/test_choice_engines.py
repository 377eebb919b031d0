"""Which engines may compute a graph to the others' numbers, and which is likely to."""

from __future__ import annotations

import importlib.util
import sys

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.mode import Mode
from pytensor.link.vm import VMLinker
from pytensor.raise_op import Assert
from reference import PY

import synk
from synk.choice.engines_here import engines_for, may_be_alone
from synk.choice.likely import is_for_numba
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
@pytest.mark.parametrize(
    ("graphs", "are_for_jax"), [(JAX_ALIKE, True), (NOT_BY_JAX, False)]
)
def test_jax_gets_graphs_that_cannot_fail_otherwise_and_no_others(graphs, are_for_jax):
    for what, graph in graphs.items():
        engines = engines_for(spec_of(graph))
        assert ("JAX" in engines) == are_for_jax, what
        assert "numba" in engines, what


def test_numba_is_likely_for_likelihoods():
    for graph, is_likely in (
        (JAX_ALIKE["likelihood"], True),
        (pytensor.grad(JAX_ALIKE["likelihood"], x), True),
        (pt.log1p(pt.exp(pt.fmatrix() @ pt.fvector())).sum(), True),
        (pt.exp(x)[k].sum(), True),
        (pt.cast(x, "float16").sum(), False),
        (pt.tanh(x @ np.ones((3, 3))).sum(), False),
        (pt.special.softmax(x, axis=1).sum(), False),
        (pt.sort(y).sum(), False),
    ):
        assert is_for_numba([graph]) is is_likely, graph


def test_what_the_script_has_said_stands():
    loss = JAX_ALIKE["likelihood"]
    assert engines_for(spec_of(loss, mode=PY)) == []
    assert engines_for(spec_of(loss, pad=True)) == []
    for said in ({"mode": "FAST_COMPILE"}, {"linker": "py"}):
        with pytensor.config.change_flags(**said):
            assert engines_for(spec_of(loss)) == []
    drawn = pt.random.normal(rng=pytensor.shared(np.random.default_rng(0)), size=3)
    assert engines_for(spec_of(loss + drawn.sum())) == []


def test_a_mode_for_c_without_a_compiler_is_said_to_run_in_python():
    # PyTensor's CVM mode as it is where there was none at its import
    as_there = Mode(VMLinker(use_cloop=True, c_thunks=False), "fast_run")
    assert described(as_there).endswith("(in Python, as there is no C compiler)")


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
def test_what_is_the_serial_run_may_be_made_by_rank_0_alone():
    for what, (outputs, may_be) in ALONE.items():
        assert may_be_alone(spec_of(outputs)) is may_be, what
