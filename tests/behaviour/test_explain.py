"""Explanations: the plan, the times of the ranks, and the sentence that follows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from reference import PY
from world_sizes import one_and_three_ranks

import synk
from synk.ranks.session import SESSION
from synk.report import conclusions
from synk.report.conclusions import losses, time_alone
from synk.report.facts import RankTimes
from synk.times.timing import COMPUTE, NODES, PHASES, ROWS, WAIT, Times
from synk.times.tracing import Tracer

pytestmark = pytest.mark.usefixtures("divided")  # where it takes time of its own


class Slow(Op):
    """The identity, which takes as many milliseconds as the rows' values sum up to."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [x.type()])

    def perform(self, node, inputs, output_storage):
        time.sleep(float(inputs[0].sum()) / 1e3)
        output_storage[0][0] = inputs[0].copy()


def slow_mean():
    x = pt.vector("x")
    return synk.function([x], (Slow()(x).mean(), "avg"), name="slow", mode=PY)


def training_step():
    x, y = pt.matrix("x"), pt.vector("y")
    w = pytensor.shared(np.zeros((30, 20)), "w")
    b = pytensor.shared(np.zeros(20, "float32"), "b")
    loss = ((x @ w + b - y[:, None]) ** 2).mean()
    loss.name = "loss"
    rule = synk.updates.sgd(loss, [w, b], learning_rate=0.1)
    f = synk.function([x, y], loss, updates=rule, name="train", mode=PY)
    return f, np.ones((11, 30)), np.ones(11)


def shown(explanation) -> str:
    """Return the text, after a look at its form; the dict must be JSON."""
    text = str(explanation)
    assert max(map(len, text.splitlines())) <= 100
    assert all(line == line.rstrip() for line in text.splitlines())
    document = explanation.to_dict()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    return text


# -- the plan --------------------------------------------------------------------------


def test_the_plan_is_known_before_any_call_and_without_a_session():
    f, *_ = training_step()
    explanation = f.explain()
    plan = explanation.to_dict()
    assert plan["name"] == "train"
    assert plan["ranks"] is plan["calls"] is plan["serial"] is plan["verdict"] is None
    assert [var["name"] for var in plan["inputs"]["scattered"]] == ["x", "y"]
    assert plan["inputs"]["scattered"][0]["type"] == "float64 (?, ?)"
    (output,) = plan["outputs"]
    assert (output["op"], output["agrees"], output["named"]) == ("avg", True, False)
    assert output["combined"] == "combined in a stage"
    first, second = plan["stages"]
    assert {value["name"]: value["bytes"] for value in first["reduces"]} == {
        "gradient of w": 30 * 20 * 8,
        "gradient of b": 20 * 4,
        "loss": 8,
    }
    assert first["bytes"] == {"float64": 30 * 20 * 8 + 8, "float32": 80}
    assert (first["computes"], second["computes"]) == ("on rows", "on every rank")
    assert second["reduces"] == []
    assert [update["name"] for update in plan["updates"]] == ["w", "b"]
    text = shown(explanation)
    assert text.startswith("train: not forked\n  scattered   x float64 (?, ?), y")
    assert "loss: avg; a mean over the rows; combined in a stage" in text
    assert "80 B of float32, 4.81 kB of float64" in text
    assert "calls       none yet" in text
    assert repr(explanation) == "<synk.Explanation of train>"


def test_a_gradient_is_reduced_by_the_op_that_is_right_and_rows_are_told(two_ranks):
    x = pt.matrix("x")
    w = pytensor.shared(np.ones(3), "w")
    updates = {w: w - synk.grad(((x @ w) ** 2).sum(), w, op="avg")}
    with pytest.warns(synk.SplitWarning, match="Sort"):
        f = synk.function([x], pt.sort(x, axis=0), updates=updates, mode=PY)

    def told():
        (first, _) = f.explain().to_dict()["stages"]
        return {(red["name"], red["op"], red["bytes"]) for red in first["reduces"]}

    assert told() == {("gradient of w", "sum", 24), ("x", "read", None)}
    f(np.ones((5, 3)))
    assert told() == {("gradient of w", "sum", 24), ("x", "read", 5 * 3 * 8)}
    text = " ".join(shown(f.explain()).split())
    assert re.search(r"sum of gradient of w \S+, 24 B, for synk.grad", text)
    assert "all rows of x (test_explain.py:" in text


def test_every_kind_of_input_output_and_update_is_told():
    x, c = pt.matrix("x"), pt.scalar("c")
    table = pytensor.shared(np.ones((4, 3)), "table")
    local, count = pytensor.shared(0.0, "local"), pytensor.shared(0, "count")
    var = x.var(axis=0)
    outputs = [x * c, (x.sum(), None), (x.max(), "min"), var, table.sum()]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", synk.SplitWarning)
        f = synk.function(
            [x],
            outputs,
            [c],
            updates=[(local, x.sum()), (count, count + 1)],
            sliceable_shareds=[table],
            mode=PY,
            local=True,
        )
    plan = f.explain().to_dict()
    assert plan["inputs"]["broadcast"] == [{"name": "c", "type": "float64 ()"}]
    assert plan["inputs"]["sliceable"][0]["name"] == "table"
    ops = [(output["op"], output["agrees"]) for output in plan["outputs"]]
    assert ops[:4] == [("gather", True), (None, False), ("min", False), ("avg", False)]
    assert "Sub" in plan["outputs"][3]["reason"]
    own = {update["name"]: update["from_own_rows"] for update in plan["updates"]}
    assert own == {"local": True, "count": False}
    text = shown(f.explain())
    assert "rank 0's own, as named" in text
    assert "min, as named; a maximum over the rows (another op is shown)" in text
    assert "avg; not shown: " in text
    assert "updates     local (own rows), count" in text


def test_long_names_and_many_of_them_fit_the_columns():
    x = pt.matrix("a_matrix_with_a_name_of_many_characters_" * 4)
    weights = [
        pytensor.shared(np.ones(3), f"parameter_{i}_of_a_very_long_model_" * 3)
        for i in range(12)
    ]
    cost = sum(((x * w) ** 2).mean() for w in weights)
    rule = synk.updates.sgd(cost, weights, 0.1)
    f = synk.function([x], [cost, x], updates=rule, name="n" * 200, mode=PY)
    text = shown(f.explain())
    assert "and 7 more" in text  # the cost is reduced with the 12 gradients
    with synk.session(2):
        f(np.ones((5, 3)))
        f(np.ones((5, 3)))
        assert len(shown(f.explain())) > len(text)


def test_bytes_that_a_call_alone_can_tell_are_known_after_it(two_ranks):
    x = pt.matrix("x")
    f = synk.function([x], (x - synk.ops.all_reduce(x.mean(axis=0)), "gather"), mode=PY)
    assert f.explain().to_dict()["stages"][0]["bytes"] == {"float64": None}
    assert "? B of float64" in shown(f.explain())
    f(np.ones((6, 7)))
    assert f.explain().to_dict()["stages"][0]["bytes"] == {"float64": 7 * 8}


# -- the calls -------------------------------------------------------------------------


@one_and_three_ranks
def test_calls_rows_and_bytes_are_counted_on_every_rank(ranks):
    f, x, y = training_step()
    f(x, y)
    first = f.explain().to_dict()["calls"]
    assert (first["counted"], first["left_out"], first["ranks"]) == (0, 1, [])
    assert "after a compilation" in shown(f.explain())
    X, Y = synk.data(x), synk.data(y)
    for _ in range(3):
        f(X, Y)
    f.run([slice(0, 11)] * 4, x, y)
    calls = f.explain().to_dict()["calls"]
    assert (calls["counted"], calls["left_out"]) == (7, 1)
    shares = [len(part) for part in np.array_split(np.arange(11), ranks)]
    assert [row["share"] for row in calls["ranks"]] == shares
    assert calls["rows"] == 11
    assert calls["scattered_bytes"] == 11 * 31 * 8
    assert calls["reduced_bytes"] == (30 * 20 * 8 + 8 + 80 if ranks > 1 else 0)
    assert f"{11 * 31 * 8 / 1e3:.3g} kB scattered" in shown(f.explain())


@one_and_three_ranks
def test_the_phases_of_rank_0_are_all_of_its_time_in_a_call(ranks):
    f, x, y = training_step()
    f(x, y)
    began = time.perf_counter()
    for _ in range(20):
        f(x, y)
    passed = (time.perf_counter() - began) / 20 * 1e3
    calls = f.explain().to_dict()["calls"]
    phases = [
        sum(row[key] for key in ("rows", "compute", "wait", "reduce"))
        for row in calls["ranks"]
    ]
    assert 0 < phases[0] <= calls["milliseconds"] <= passed
    for of_rank, row in zip(phases, calls["ranks"], strict=True):
        assert of_rank >= phases[0] * (1 - 1e-9)  # all ranks' times add up to that
        assert row["compute"] > row["common"]
        assert (row["common"] > 0) == (ranks > 1)  # one rank runs the graph as a whole
        assert row["reduce"] > 0 or ranks == 1


def test_computation_and_waiting_are_told_apart(two_ranks):
    f = slow_mean()
    rows = np.zeros(8)
    rows[4:] = 15.0  # rank 1 takes 60 ms
    for _ in range(4):
        f(rows)
    explanation = f.explain()
    content = explanation.to_dict()
    fast, slow = content["calls"]["ranks"]
    assert slow["compute"] >= 60
    assert fast["compute"] < 30
    assert fast["wait"] >= 30
    assert slow["wait"] < 30
    assert content["calls"]["milliseconds"] >= 60
    assert content["lost"]["uneven"] == max(content["lost"].values())
    assert content["speed_up"]["predicted"] == pytest.approx(
        (fast["rows"] + fast["compute"] + slow["rows"] + slow["compute"])
        / content["calls"]["milliseconds"]
    )


def test_waits_in_the_middle_of_a_call_are_counted(two_ranks):
    x = pt.vector("x")
    for width in (1, 1000):  # few values are reduced in another way
        mean = synk.ops.all_reduce(pt.ones(width) * Slow()(x).mean())
        f = synk.function([x], (mean.sum() + x, "gather"), mode=PY)
        for _ in range(3):
            f(np.array([0.0, 0, 30, 30]))
        fast, slow = f.explain().to_dict()["calls"]["ranks"]
        assert fast["wait"] >= 30 > slow["wait"]
        assert slow["compute"] >= 60 > 30 > fast["compute"]


def test_a_call_that_compiles_or_fails_does_not_count(two_ranks):
    f = slow_mean()
    f(np.array([200.0, 0]))  # compiles
    f(np.zeros(2))
    f(np.array([200.0, 0]), num_slices=2)  # compiles
    f(np.zeros(4), num_slices=2)
    with pytest.raises(ValueError, match="sleep length"):
        f(np.array([0.0, -1]))
    f(np.zeros(2))
    calls = f.explain().to_dict()["calls"]
    assert (calls["counted"], calls["left_out"]) == (3, 2)
    assert calls["milliseconds"] < 60
    assert all(row["compute"] < 60 for row in calls["ranks"])


def test_a_first_call_that_failed_is_not_taken_off_the_next(two_ranks):
    f = slow_mean()
    with pytest.raises(ValueError, match="sleep length"):
        f(np.array([100.0, -1]))  # rank 0 did its share
    f(np.array([20.0, 20]))
    f(np.array([20.0, 20]))
    calls = f.explain().to_dict()["calls"]
    assert calls["counted"] == 2
    assert calls["milliseconds"] >= 20


def test_a_run_alone_tells_the_times_of_all_calls_but_the_first(two_ranks):
    f = slow_mean()
    f.run([slice(0, 2), *[slice(2, 6)] * 4], np.array([300.0, 0, 10, 10, 10, 10]))
    calls = f.explain().to_dict()["calls"]
    assert (calls["counted"], calls["left_out"]) == (4, 1)
    assert [row["share"] for row in calls["ranks"]] == [2, 2]
    assert 20 <= calls["milliseconds"] < 75
    for row in calls["ranks"]:
        assert 20 <= row["compute"] < 75


def test_times_are_those_of_the_present_session_and_rank_0s_after_its_end():
    f, x, y = training_step()
    with synk.session(2):
        for _ in range(3):
            f(x, y)
    content = f.explain().to_dict()
    assert content["ranks"] is None
    assert not content["calls"]["all_ranks_known"]
    assert [row["rank"] for row in content["calls"]["ranks"]] == [0]
    assert content["speed_up"]["predicted"] is None
    assert "the other ranks' times ended with their session" in shown(f.explain())
    with synk.session(3):
        assert not f.explain().to_dict()["calls"]["all_ranks_known"]
        f(x, y)
        assert f.explain().to_dict()["calls"]["counted"] == 0
        f(x, y)
        calls = f.explain().to_dict()["calls"]
        assert calls["counted"] == 1
        assert len(calls["ranks"]) == 3


def test_ranks_are_asked_once_and_only_if_there_is_something_to_know(two_ranks):
    f, x, y = training_step()
    before = SESSION.control.command
    f.explain()
    assert SESSION.control.command == before
    f(x, y)
    before = SESSION.control.command
    f.explain()
    assert SESSION.control.command == before + 1


def test_ranks_without_rows_are_shown_as_waiting(two_ranks):
    f = slow_mean()
    for _ in range(3):
        f(np.array([60.0]))
    busy, idle = f.explain().to_dict()["calls"]["ranks"]
    assert (busy["share"], idle["share"]) == (1, 0)
    assert idle["compute"] < 30
    assert idle["wait"] >= 30


# -- what follows ----------------------------------------------------------------------


def test_a_gain_is_predicted_and_measured(two_ranks):
    f = slow_mean()
    rows = np.full(8, 20.0)  # sleeping ranks do not disturb each other
    for _ in range(4):
        f(rows)
    explanation = f.explain(rows, measure=True)
    content = explanation.to_dict()
    assert content["serial"]["milliseconds"] >= 160
    assert content["serial"]["rows"] == 8
    speed = content["speed_up"]
    assert speed["measured"] == pytest.approx(
        content["serial"]["milliseconds"] / content["calls"]["milliseconds"]
    )
    assert 1 < speed["predicted"] <= 2
    assert speed["measured"] > 1
    assert content["verdict"] is None
    assert f"{speed['measured']:.2f} measured" in shown(explanation)


def test_a_serial_run_of_other_rows_is_shown_and_not_compared(two_ranks):
    f = slow_mean()
    for _ in range(3):
        f(np.full(8, 1.0))
    content = f.explain(np.full(16, 1.0), measure=True, batch=4).to_dict()
    assert content["serial"]["rows"] == 4
    assert content["speed_up"]["measured"] is None
    content = f.explain(x=np.full(16, 1.0), measure=True, batch=slice(8)).to_dict()
    assert content["speed_up"]["measured"] is not None


def test_checks_and_as_theano_tell_the_serial_time_from_their_second_run(two_ranks):
    for run in (
        lambda f, rows: f(rows, check="serial"),
        lambda f, rows: f.as_theano(rows),
    ):
        f = slow_mean()
        rows = np.full(4, 25.0)
        f(rows)
        f(rows)
        run(f, rows)
        assert f.explain().to_dict()["serial"] is None
        run(f, rows)
        content = f.explain().to_dict()
        assert content["serial"]["milliseconds"] >= 100
        assert content["speed_up"]["measured"] is not None
        # A check is no part of the call's time.
        assert 50 <= content["calls"]["milliseconds"] < 100


def test_an_empty_function_is_said_to_be_faster_on_one_rank(two_ranks):
    # Another program that takes a rank's core for a while is a reason, too: the machine
    # has some tries to show the usual one.
    for _ in range(5):
        f = synk.function([], [], mode=PY)
        for _ in range(300):
            f()
        text = shown(f.explain())
        if "launching, joining and meeting" in text:
            break
    assert f.explain().to_dict()["speed_up"]["predicted"] < 1
    assert "One rank would be faster: it would take about" in text
    assert "launching, joining and meeting" in text


def test_the_serial_time_alone_tells_that_ranks_cannot_pay(monkeypatch):
    # 60 us were seen for the first function on a slow day; the second one takes 3 ms.
    monkeypatch.setattr(conclusions, "LAUNCH", 1e-3)
    x = pt.vector("x")
    f = synk.function([x], (x.sum(), "sum"), mode=PY)
    for _ in range(5):
        f.as_theano(np.ones(3))
    assert "One rank would be faster: the plain function takes" in shown(f.explain())
    slow = slow_mean()
    for _ in range(2):
        slow.as_theano(np.ones(3))
    assert "One rank" not in shown(slow.explain())


def test_a_script_that_has_forked_nothing_yet_is_told_of_its_functions():
    code = """if True:
        import pytensor.tensor as pt, synk
        x = pt.vector("x")
        assert "not forked" in str(synk.function([x], x.sum()).explain())
        (node,) = synk.nodes()
        assert (node.ranks, node.gpus) == (1, 0)
        assert node.cores > 0
    """
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_one_rank_is_not_compared_with_itself():
    f, x, y = training_step()
    with synk.session(1):
        for _ in range(3):
            f(x, y)
        content = f.explain().to_dict()
        assert content["verdict"] is content["speed_up"]["predicted"] is None
        assert "train: 1 rank\n" in shown(f.explain())


@pytest.mark.parametrize("serial", [None, 5.0, 50.0])
@pytest.mark.parametrize("seed", range(5))
def test_the_parts_of_a_calls_time_add_up(serial, seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 6))
    ranks = []
    for rank in range(n):
        rows, own, common, reduce, nodes = rng.uniform(0, 10, 5)
        times = rows, own + common, common, 0.0, reduce, nodes
        ranks.append(RankTimes(rank, 1, *times))
    call = 55.0  # longer than any rank is busy
    lost = vars(losses(ranks, call, serial)).copy()
    alone, parts = time_alone(ranks), lost.pop("parts")
    assert call == pytest.approx(alone / n + sum(lost.values()))
    assert min(lost.values()) >= 0
    if serial is not None and serial < alone:
        assert alone / n - parts == pytest.approx(serial / n)


def test_wrong_arguments_and_workers_are_refused(two_ranks):
    f, x, y = training_step()
    with pytest.raises(TypeError, match="measure=True"):
        f.explain(x, y)
    with pytest.raises(TypeError, match="misses a value for y"):
        f.explain(x, measure=True)
    table = pytensor.shared(np.ones((4, 3)), "table")
    g = synk.function([], table.sum(), sliceable_shareds=[table], mode=PY)
    with pytest.raises(ValueError, match="sliceable"):
        g.explain(measure=True)
    before = f.updated[0].get_value()
    f.explain(x, y, measure=True)
    np.testing.assert_array_equal(f.updated[0].get_value(), before)


# -- the clock -------------------------------------------------------------------------


def test_what_is_spent_is_the_time_between_two_ends(monkeypatch):
    clock = iter([2.0, 5.0, 9.0, 20.0])
    monkeypatch.setattr("synk.times.timing.perf_counter", lambda: next(clock))
    times = Times("f")
    times.begin(1.0, 7, None)
    times.spent(ROWS)
    times.spent(WAIT)
    times.end(COMPUTE)
    times.returned(start=0.5, joined=11.0)
    expected = dict.fromkeys(PHASES, 0.0) | {"rows": 1.0, "compute": 4.0, "wait": 5.0}
    assert dict(zip(PHASES, times.seconds, strict=True)) == expected
    assert (times.counted, times.rows, times.launches) == (1, 7, 1)
    assert times.launched == 19.5


@pytest.mark.parametrize(
    ("exchanged", "waited", "nodes"),
    [(3.0, 5.0, 3.0), (9.0, 0.0, 8.0), (-1e-9, 8.0, 0)],
)
def test_of_a_wait_the_last_part_is_the_exchange_of_the_nodes(
    monkeypatch, exchanged, waited, nodes
):
    monkeypatch.setattr("synk.times.timing.perf_counter", lambda: 10.0)
    times, tracer = Times("f"), Tracer(9)
    times.begin(2.0, 7, tracer)
    times.waited(exchanged, 48)
    assert (times.seconds[WAIT], times.seconds[NODES]) == (waited, nodes)
    spans = {event.name: (event.start, event.end) for event in tracer.events}
    expected = {"wait": (2.0, 10.0 - nodes), "nodes": (10.0 - nodes, 10.0)}
    assert spans == {name: expected[name] for name in list(expected)[: 1 + bool(nodes)]}


def test_an_exchange_in_a_call_that_is_not_counted_is_forgotten():
    times = Times("f")
    times.begin(1.0, 7, None)
    times.exchanged(0.5, 100)
    times.end(COMPUTE)
    times.is_fresh = True
    times.set_aside()
    times.exchanged(0.25, 60)
    times.end(COMPUTE)
    assert times.between == [1, 0.5, 100]


def test_counting_costs_less_than_two_microseconds_a_call():
    times, calls = Times("f"), 2000

    def count() -> float:
        began = time.perf_counter()
        for _ in range(calls):
            start = time.perf_counter()
            times.begin(start, 5, None)
            times.spent(ROWS)
            times.end(COMPUTE, 0)
            times.returned(start, time.perf_counter())
        return (time.perf_counter() - began) / calls

    assert min(count() for _ in range(20)) < 2e-6
