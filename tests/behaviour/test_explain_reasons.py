"""Why ranks combine values: which Op of which line, bytes, and what all repeat."""

from __future__ import annotations

import json
import re
import time
import warnings

import numpy as np
import placement_cases as cases
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.graph.basic import Apply, equal_computations
from pytensor.graph.op import Op
from pytensor.graph.traversal import io_toposort
from reference import PY

import synk
from synk.ops import COLLECTIVES

two_and_three_ranks = pytest.mark.parametrize("ranks", [2, 3], indirect=True)

pytestmark = pytest.mark.usefixtures("divided")  # where it takes time of its own


@pytest.fixture(autouse=True)
def in_python():
    """Have Ops that are graphs themselves run in Python."""
    with pytensor.config.change_flags(mode=PY, linker="py", cxx=""):
        yield


def quiet(*args, **kwargs):
    """Make a function that repeats work."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", synk.SplitWarning)
        return synk.function(*args, mode=PY, on_unused_input="ignore", **kwargs)


def told(f) -> list[tuple]:
    """Return of each value that is combined the level, op, bytes, why and the line."""
    return [
        (level, value["op"], value["bytes"], value["why"], code(value["why_made"]))
        for level, stage in enumerate(f.explain().to_dict()["stages"])
        for value in stage["reduces"]
    ]


def code(made: str | None) -> str | None:
    """Return the source of a line of this file."""
    if made is None:
        return None
    place, line = made.split(": ", 1)
    assert re.fullmatch(r"test_explain_reasons\.py:\d+", place)
    return line.strip("`")


# -- what needs a value ----------------------------------------------------------------


@two_and_three_ranks
def test_each_value_is_told_with_what_needs_it_and_its_bytes(ranks):
    x, y = pt.matrix("x"), pt.vector("y")
    w = pytensor.shared(np.ones(4), "w")
    kept = pytensor.shared(np.zeros((1, 4)), "kept")
    centred = x - x.mean(axis=0)
    odds = pt.special.softmax(x, axis=0)
    ranking = pt.argsort(y)
    pairs = x @ x.T
    cost = (((centred @ w) - y) ** 2).mean()
    step = {w: w - 0.1 * pytensor.grad(cost, w), kept: x[:, :4] * 2}
    f = quiet([x, y], [odds, ranking, pairs], updates=step)
    values = np.random.default_rng(0).normal(size=(7, 4)), np.arange(7.0)
    f(*values)
    found = told(f)
    for expected in (
        (0, "avg", 32, "for Sub", "centred = x - x.mean(axis=0)"),
        (0, "max", 32, "for Softmax", "odds = pt.special.softmax(x, axis=0)"),
        (1, "sum", 32, "for Softmax", "odds = pt.special.softmax(x, axis=0)"),
        (0, "read", 7 * 8, "for ArgSortOp", "ranking = pt.argsort(y)"),
        (0, "read", 7 * 4 * 8, "for Matmul", "pairs = x @ x.T"),
        (0, "gather", 7 * 4 * 8, "for the new value of kept", None),
        (1, "avg", 32, "for the new value of w", None),
    ):
        assert expected in found
        found.remove(expected)
    assert found == []


@two_and_three_ranks
def test_bytes_and_meetings_are_those_that_a_trace_sees(ranks, tmp_path):
    x, y = pt.matrix("x"), pt.vector("y")
    w = pytensor.shared(np.ones(400), "w")
    normed = (x - x.mean(axis=0)) / x.std(axis=0)
    loss = ((normed @ w - y) ** 2).mean()
    step = {w: w - 0.1 * pytensor.grad(loss, w)}
    f = quiet([x, y], [loss, pt.argsort(y)], updates=step)
    values = np.random.default_rng(0).normal(size=(7, 400)), np.arange(7.0)
    f(*values)
    with synk.trace(tmp_path / "call.json"):
        f(*values)
    events = json.loads((tmp_path / "call.json").read_text())["traceEvents"]
    traced = [
        event["args"]["bytes"]
        for event in events
        if event.get("cat") == "call" and (event["name"], event["tid"]) == ("reduce", 0)
    ]
    stages = f.explain().to_dict()["stages"]
    told = [stage["bytes"]["float64"] for stage in stages if stage["reduces"]]
    assert len(told) == 2
    # Ranks copy to a buffer, and reduce parts of it; it is of whole lines of 64 bytes.
    assert traced == [-(-size // 64) * 64 for size in told for _ in range(2)]


@pytest.mark.parametrize(
    "kind",
    [cases.statistics, cases.gathered, cases.gradients],
    ids=lambda k: k.__name__,
)
def test_no_collective_is_without_a_reason_and_no_reason_without_one(kind):
    for name, graph in kind():
        kept = pytensor.shared(np.zeros((1,) * graph.type.ndim, graph.dtype), "kept")
        try:
            f = quiet(cases.INPUTS, graph, updates=[(kept, graph)])
        except TypeError:  # has another dtype than its variable may have
            f = quiet(cases.INPUTS, graph)
        graphs = [*f._spec.outputs, *(new for _, new in f._spec.updates)]
        nodes = io_toposort([], graphs)
        placed = [node.outputs[0] for node in nodes if isinstance(node.op, COLLECTIVES)]
        content = f.explain().to_dict()
        assert sum(len(stage["reduces"]) for stage in content["stages"]) == len(placed)
        written = [var for var in placed if var not in f._spec.needs]
        along = [
            value
            for stage in content["stages"]
            for value in stage["reduces"]
            if not value["why"].startswith("for ")
        ]
        assert len(written) == len(along), name
        assert all(value["why"] == "along with the others" for value in along), name


def test_what_the_script_asks_for_is_told_so():
    x = pt.matrix("x")
    w = pytensor.shared(np.ones(3), "w")
    top = synk.ops.all_reduce(x.max(axis=0), "avg")
    cost = ((x @ w) ** 2).mean()
    f = quiet([x], [top, cost], updates={w: w - synk.grad(cost, w)})
    assert set(told(f)) == {
        (0, "avg", None, "as written", None),
        (0, "avg", 24, "for synk.grad", None),
        (0, "avg", 8, "along with the others", None),
    }


def test_a_value_for_ranks_without_rows_says_so():
    x = pt.matrix("x")
    columns = pytensor.shared(0, "columns")
    f = quiet([x], updates={columns: x[:, 1:].shape[1]})
    why = "for the new value of columns, on ranks without rows"
    assert told(f) == [(0, "max", 8, why, None)]


def test_lines_outlive_what_keeps_a_graph_from_overflow():
    x = pt.vector("x")
    total = pt.exp(1000 * x).sum()
    likelihood = pt.log(total)
    scaled = likelihood + x.std()
    f = quiet([x], scaled)
    lines = [(level, why, line) for level, _, _, why, line in told(f)]
    # From PyTensor 3.1 on, the sum and its logarithm become one Op.
    ends = {
        why
        for level, why, line in lines
        if (level, line) == (1, "likelihood = pt.log(total)")
    }
    assert ends
    assert ends <= {"for Log", "for LogSumExp"}
    assert {line for *_, line in lines} <= {
        "likelihood = pt.log(total)",
        "scaled = likelihood + x.std()",
    }
    assert equal_computations(f._spec.plain_outputs, [scaled])


def test_the_bytes_of_plain_gradients_are_known_before_a_call():
    x, y = pt.matrix("x"), pt.vector("y")
    weights = pytensor.shared(np.ones((30, 20)), "weights")
    last = pytensor.shared(np.ones(20), "last")
    params = [weights, last]
    cost = ((pt.tanh(x @ weights) @ last - y) ** 2).mean()
    for rule in (synk.updates.sgd, synk.updates.adam):
        for given in (cost, pytensor.grad(cost, params)):
            f = quiet([x, y], [], updates=rule(given, params, 0.1))
            assert {size for _, _, size, *_ in told(f)} == {30 * 20 * 8, 20 * 8}


# -- what every rank repeats -----------------------------------------------------------


class Slow(Op):
    """A total of numbers that takes its time, and of which nothing is known."""

    __props__ = ()

    def make_node(self, x):
        return Apply(self, [x], [pt.dscalar()])

    def perform(self, node, inputs, output_storage):
        time.sleep(0.03)
        output_storage[0][0] = np.asarray(inputs[0].sum())


def test_the_warning_says_which_op_how_many_bytes_and_what_share():
    x = pt.matrix("x", shape=(None, 5))
    ordered = pt.sort(x * 2, axis=0)
    outputs = [ordered - 1, pt.exp(x)]
    with pytest.warns(synk.SplitWarning) as caught:
        synk.function([x], outputs, mode=PY)
    (warning,) = caught
    text = str(warning.message)
    assert text.startswith("SortOp{")
    assert "made in test_explain_reasons.py:" in text
    assert "`ordered = pt.sort(x * 2, axis=0)`) needs all rows at once" in text
    # Doubling and the exponential are of own rows; sorting and subtracting are not.
    assert "every rank repeats 2 of the 4 Ops on rows" in text
    assert re.search(r"exchange Mul\(.*x\) \(40 bytes a row\)\.", text)
    assert warning.filename == __file__


def test_one_warning_tells_of_all_ops_that_need_all_rows():
    x, y = pt.matrix("x"), pt.vector("y")
    with pytest.warns(synk.SplitWarning) as caught:
        synk.function([x, y], [pt.sort(x, axis=0), pt.cumsum(y)], mode=PY)
    (warning,) = caught
    text = str(warning.message)
    assert "and 1 more Op need all rows at once" in text
    assert "repeats 2 of the 2 Ops on rows" in text
    assert "x (8 bytes a number)" in text
    assert "y (8 bytes a row)" in text


def test_a_view_of_all_rows_is_no_work_and_takes_all_rows():
    x = pt.vector("x")
    with pytest.warns(synk.SplitWarning) as caught:
        synk.function([x], x[0], mode=PY)
    text = str(caught[0].message)
    assert "For that every rank reads all rows of x (8 bytes a row)." in text
    assert "repeats" not in text


@two_and_three_ranks
def test_bytes_and_time_of_what_is_repeated_are_known_after_calls(ranks):
    x = pt.matrix("x")
    f = quiet([x], Slow()(x))
    before = f.explain().to_dict()["repeated"]
    assert [op["name"] for op in before["by"]] == ["Slow"]
    assert (before["ops"], before["of"]) == (1, 1)
    assert before["bytes"] is before["milliseconds"] is None
    for _ in range(3):
        assert f(np.ones((6, 3))) == 18
    after = f.explain().to_dict()
    assert after["repeated"]["bytes"] == 6 * 3 * 8
    common = [row["common"] for row in after["calls"]["ranks"]]
    assert len(common) == ranks
    assert after["repeated"]["milliseconds"] == max(common) >= 30
    text = " ".join(str(f.explain()).split())
    assert "needs all rows, 144 B: every rank computes 1 of the 1 Ops on rows" in text
    assert re.search(r"in up to \S+ ms of a call", text)


def test_rows_that_are_paired_with_all_are_not_repeated():
    x = pt.matrix("x")
    f = quiet([x], [x @ x.T, pt.sort(x * 2, axis=0)])
    repeated = f.explain().to_dict()["repeated"]
    assert (repeated["ops"], repeated["of"]) == (1, 3)
    assert quiet([x], x @ x.T).explain().to_dict()["repeated"] is None


def test_what_only_a_shape_is_taken_of_is_no_work():
    y = pt.vector("y")
    moment = ((y - y.mean()) ** 4).mean()  # twice a sum, a difference, a power
    f = quiet([y], [pt.sort(y), moment])
    repeated = f.explain().to_dict()["repeated"]
    assert (repeated["ops"], repeated["of"]) == (1, 5)


def test_statistics_that_stay_a_ranks_own_are_listed():
    x = pt.matrix("x")
    centred = x - x.mean(axis=0)
    f = quiet([x], centred, statistics="local")
    (own,) = f.explain().to_dict()["own_statistics"]
    assert code(own["made"]) == "centred = x - x.mean(axis=0)"
    assert re.search(r"local +mean \(\S+\): of each rank's own rows", str(f.explain()))
    assert told(f) == []
    assert quiet([x], centred).explain().to_dict()["own_statistics"] == []


# -- what strict=True refuses ----------------------------------------------------------


def strict(graph, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        options = {"mode": PY, "on_unused_input": "ignore", "strict": True}
        return synk.function([cases.X, cases.Y], graph, **options, **kwargs)


def test_strict_takes_all_that_reductions_give():
    hidden = cases.X @ cases.W
    for _ in range(3):  # as many levels as statistics of statistics have
        hidden = (hidden - hidden.mean()) / pt.sqrt(hidden.var() + 1)
    loss = ((hidden - cases.Y) ** 2).mean()
    update = [(cases.W, cases.W - pytensor.grad(loss, cases.W))]
    f = strict([loss, hidden, pt.special.softmax(cases.X, axis=0)], updates=update)
    assert len(f.explain().to_dict()["stages"]) > 6


def test_strict_refuses_work_that_every_rank_repeats():
    with pytest.raises(synk.SplitError, match=r"SortOp.* needs all rows at once"):
        strict(pt.sort(cases.Y))


def test_strict_refuses_rows_of_other_ranks():
    pairs = cases.X @ cases.X.T
    with pytest.raises(
        synk.SplitError,
        match=r"Matmul\(x, .*made in test_explain_reasons\.py:.*needs rows of all"
        r" ranks: every rank reads all rows of .* \(8 bytes a number\)",
    ):
        strict(pairs)
    kept = pytensor.shared(np.zeros(2), "kept")
    with pytest.raises(
        synk.SplitError, match=r"new value of kept needs rows .* \(8 bytes a row\)"
    ):
        strict([], updates=[(kept, cases.Y * 2)])
    assert strict(cases.Y * 2).output_modes == ["gather"]
