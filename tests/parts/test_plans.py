"""The plan of a function's calls: which engines may compute it, and what is chosen."""

import dataclasses
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
from synk.call.plans import MANY_LENGTHS, Planned, Plans
from synk.choice import work as choice_work
from synk.choice.engine import engines_for, kind_of, may_be_alone
from synk.choice.plan import ALL, Plan, PlanFacts, choose, plan_groups, plans_of
from synk.choice.work import CHEAP, DEAR, FLOP, READ, KnownShapes, Work, work_of
from synk.engines import describe_mode

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


def test_likelihoods_are_for_numba_and_what_has_many_numbers_a_row_is_not():
    for graph, is_for_it in (
        (JAX_ALIKE["likelihood"], True),
        (pytensor.grad(JAX_ALIKE["likelihood"], x), False),
        (pt.log1p(pt.exp(pt.fmatrix() @ pt.fvector())).sum(), True),
        (pt.exp(y[k]).sum(), True),
        (pt.exp(x)[k].sum(), False),
        (pt.cast(x, "float16").sum(), False),
        (pt.tanh(x @ np.ones((3, 3))).sum(), False),
        (pt.special.softmax(x, axis=1).sum(), False),
        (pt.sort(y).sum(), False),
    ):
        assert (kind_of([graph], [x, y, k]) == "vectors") is is_for_it, graph
    labels = pt.special.log_softmax(x)[pt.arange(k.shape[0]), k].sum()
    assert kind_of([labels], [x, k]) == "matrices"
    assert kind_of([labels], [x, k], is_step=True) == "other"


def test_what_the_script_has_said_stands():
    loss = JAX_ALIKE["likelihood"]
    assert engines_for(spec_of(loss, mode=PY)) == ()
    assert engines_for(spec_of(loss, pad=True)) == ()
    for said in ({"mode": "FAST_COMPILE"}, {"linker": "py"}):
        with pytensor.config.change_flags(**said):
            assert engines_for(spec_of(loss)) == ()
    drawn = pt.random.normal(rng=pytensor.shared(np.random.default_rng(0)), size=3)
    assert engines_for(spec_of(loss + drawn.sum())) == ()


def test_a_mode_for_c_without_a_compiler_is_said_to_run_in_python():
    # PyTensor's CVM mode as it is where there was none at its import
    as_there = Mode(VMLinker(use_cloop=True, c_thunks=False), "fast_run")
    assert describe_mode(as_there).endswith("(in Python, as there is no C compiler)")


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


LITTLE = Work(1e-6, 1e-6, 0.0, 0.0, 100, 1, 0)
MUCH = dataclasses.replace(LITTLE, elements=1.0, dear=0.5)
WIDE = dataclasses.replace(MUCH, widest=512_000_000)
USUAL = PlanFacts(
    engines=("JAX", "numba"),
    kind="vectors",
    is_of_data=False,
    may_be_alone=True,
    rows=1_000_000,
    row_bytes=168,
    summed=168,
    work=MUCH,
    ranks=2,
    cores=2,
)

CHOSEN = {
    "a likelihood": ({}, ("numba", False, 4096)),
    "rows by columns": ({"kind": "matrices"}, ("numba", False, 4096)),
    "many columns": ({"kind": "matrices", "work": WIDE}, ("numba", False, 512)),
    "many on the way": ({"work": WIDE, "rows": 9_000}, ("numba", False, 8)),
    "a network": ({"kind": "matrices", "summed": 70_000}, ("JAX", False, 0)),
    "few of columns": ({"kind": "matrices", "rows": 9_000}, ("numba", False, 128)),
    "short": (
        {"kind": "matrices", "work": LITTLE, "summed": 70_000},
        ("numba", True, 0),
    ),
    "of data": ({"work": LITTLE, "is_of_data": True}, ("numba", False, ALL)),
    "no JAX": ({"kind": "matrices", "engines": ("numba",)}, ("numba", False, 4096)),
    "a named mode": ({"engines": ()}, (None, False, 0)),
    "few rows": ({"rows": 10_000}, ("numba", False, 128)),
    "large sums": ({"summed": 70_000}, ("numba", False, 0)),
    "sums of unknown size": ({"summed": None}, ("numba", False, 0)),
    "large rows": ({"row_bytes": 3 << 20, "rows": 100}, ("numba", False, 1)),
    "little to compute": ({"work": LITTLE, "rows": 9}, ("numba", True, ALL)),
    "nobody knows how much": ({"work": None, "rows": 99}, ("numba", False, 4)),
    "alone it is another": (
        {"work": LITTLE, "rows": 9, "may_be_alone": False},
        ("numba", False, ALL),
    ),
    "one rank": ({"work": LITTLE, "rows": 9, "ranks": 1}, ("numba", False, ALL)),
}


def test_the_plan_is_that_of_the_rules():
    for what, (others, expected) in CHOSEN.items():
        facts = dataclasses.replace(USUAL, **others)
        plan = choose(facts)
        assert (plan.engine, plan.is_alone, plan.block) == expected, what
        assert plan.name == plans_of(facts)[0].name
        others = {"ranks": 16, "cores": 64}  # which have no say in what has its bits
        assert choose(dataclasses.replace(facts, **others)).block == plan.block
    names = {plan.name for plan in plans_of(USUAL)}
    assert {"JAX", "JAX, rank 0 alone", "numba"} < names
    assert len(names) == 6


def test_work_is_told_from_the_graph_and_the_shapes():
    w, v = pytensor.shared(np.zeros((50, 40))), pt.dvector("v")
    graph = [pt.exp(x @ w).sum(axis=0), synk.ops.all_reduce(x.T @ y, "sum")]
    graph += [v - 0.1 * graph[1]]
    work = work_of(graph, [x, y], KnownShapes({x: (3000, 50), y: (3000,), v: (50,)}))
    assert work.products == pytest.approx(2 * 3000 * 50 * 40 * FLOP[8])
    assert work.dear == pytest.approx(3000 * 40 * DEAR)
    read = 3000 * 50 * 8 * READ
    assert work.elements == pytest.approx(work.dear + read + 3000 * 40 * CHEAP)
    assert (work.reduced, work.meetings) == (400, 1)
    assert work.widest == 3000 * 40 * 8
    assert 0 < work.common < 1e-7
    steps, _ = pytensor.scan(
        lambda row, h: pt.tanh(h + row.sum()), sequences=[x], outputs_info=[v]
    )
    work = work_of([steps[-1].sum()], [x], KnownShapes({x: (300, 5), v: (50,)}))
    assert work.dear == 0  # of what goes step by step nothing is said
    assert work.elements > 300 * 50 * DEAR
    assert work_of([pt.sort(y)], [y], KnownShapes({y: (9,)})) is None
    assert work_of([pt.exp(y[: k[0]])], [y], KnownShapes({y: (9,), k: (1,)})) is None


def test_a_loop_whose_lengths_are_told_by_its_own_output_is_asked_once(monkeypatch):
    asked, infer = [], choice_work.inferred_shapes
    monkeypatch.setattr(
        choice_work, "inferred_shapes", lambda *of: asked.append(of) or infer(*of)
    )
    made = pytensor.scan(pt.unique, sequences=[x], return_updates=False)
    assert KnownShapes({x: (4, 5)}).shape(made) is None
    assert len(asked) < 10  # it was 400, of a recursion without an end


@pytest.mark.skipif(not importlib.util.find_spec("jax"), reason="JAX is missing")
def test_a_word_is_said_once_where_jax_compiles_for_many_lengths(recwarn):
    for mode, words in (("JAX", 1), ("NUMBA", 0)):
        plans = Plans(spec_of(y.sum(), mode=mode))
        for rows in [*range(MANY_LENGTHS - 1)] * 2:
            plans._note_length(rows, plans.last)
        assert not recwarn.list
        for rows in range(2 * MANY_LENGTHS):
            plans._note_length(rows, plans.last)
        said = [str(recwarn.pop(UserWarning).message) for _ in range(words)]
        assert all("10 different numbers of rows" in text for text in said)
    assert not recwarn.list


@pytest.mark.skipif(not importlib.util.find_spec("jax"), reason="JAX is missing")
def test_an_engine_that_does_not_know_an_op_is_left_for_another():
    for engine, other in (("JAX", "numba"), ("numba", "JAX")):
        plans = Plans(synk.function([y], (y * 2).sum())._spec)
        planned = Planned(Plan(engine), plans.last.replicas)
        assert not plans.gives_up(planned, KeyError("the call's own"))
        assert plans.gives_up(planned, NotImplementedError("an Op"))
        assert plans._engines() == (other,)
        for kind in ("vectors", "matrices", "other"):
            facts = dataclasses.replace(USUAL, engines=(other,), kind=kind)
            assert choose(facts).engine == other
        planned = Planned(Plan(other), plans.last.replicas)
        plans.note_success(planned)
        assert not plans.gives_up(planned, NotImplementedError("later"))


@pytest.mark.parametrize(
    ("tasks", "at_most", "ranks", "cores", "meets", "expected"),
    [
        (4, 16, 16, 16, 0.1, (4, 4)),
        (4, 1, 16, 16, 0.1, (1, 16)),
        (4, 4, 16, 16, 0.001, (1, 16)),  # nobody waits for anybody, and all end at once
        (2, 2, 2, 2, 0.1, (2, 1)),
        (2, 2, 3, 2, 0.1, (2, 1)),
        (1, 1, 2, 2, 0.1, (1, 2)),
        (2, 2, 1, 2, 0.1, (2, 1)),  # of which one rank has both cores
        (3, 3, 1, 1, 0.1, (1, 1)),
        (4, 4, 2, 2, None, (1, 2)),
    ],
)
def test_chains_are_laid_on_groups_of_ranks(
    tasks, at_most, ranks, cores, meets, expected
):
    def seconds(ranks, _):
        return None if meets is None else 1 / ranks + (meets if ranks > 1 else 0)

    found = plan_groups(tasks, at_most, ranks, cores, seconds)
    assert found[:2] == expected
