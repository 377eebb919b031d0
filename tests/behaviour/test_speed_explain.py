"""Explanations: the plan, why ranks combine values, their times, and what follows."""

import json
import re
import time
import warnings

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from on_ranks import one_and_three_ranks, three_ranks
from processes import Act, nothing
from pytensor.graph.basic import Apply
from reference import PY

import synk

pytestmark = pytest.mark.usefixtures("scans_in_python")


class Slow(Act):
    """The identity, which takes as many milliseconds as the rows' values sum up to."""

    def perform(self, node, inputs, outputs):
        time.sleep(float(inputs[0].sum()) / 1e3)
        super().perform(node, inputs, outputs)


slow = Slow(None, nothing)


class SlowSum(Slow):
    """A total of numbers that takes its time, and of which nothing is known."""

    def make_node(self, x):
        return Apply(self, [x], [pt.dscalar()])

    def perform(self, node, inputs, outputs):
        time.sleep(0.03)
        outputs[0][0] = np.asarray(inputs[0].sum())


def slow_mean():
    x = pt.vector("x")
    return synk.function([x], (slow(x).mean(), "avg"), name="slow", mode=PY)


def training_step():
    x, y = pt.matrix("x"), pt.vector("y")
    w = pytensor.shared(np.zeros((30, 200)), "w")
    b = pytensor.shared(np.zeros(200, "float32"), "b")
    loss = ((x @ w + b - y[:, None]) ** 2).mean()
    loss.name = "loss"
    rule = synk.updates.sgd(loss, [w, b], learning_rate=0.1)
    f = synk.function([x, y], loss, updates=rule, name="train", mode=PY)
    return f, np.ones((11, 30)), np.ones(11)


def quiet(*args, **kwargs):
    """Make a function that repeats work."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", synk.SplitWarning)
        return synk.function(*args, mode=PY, on_unused_input="ignore", **kwargs)


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
        "gradient of w": 30 * 200 * 8,
        "gradient of b": 200 * 4,
        "loss": 8,
    }
    assert first["bytes"] == {"float64": 30 * 200 * 8 + 8, "float32": 800}
    assert (first["computes"], second["computes"]) == ("on rows", "on every rank")
    assert second["reduces"] == []
    assert [update["name"] for update in plan["updates"]] == ["w", "b"]
    text = shown(explanation)
    assert text.startswith("train: not forked\n  scattered   x float64 (?, ?), y")
    assert "loss: avg; a mean over the rows; combined in a stage" in text
    assert "800 B of float32, 48 kB of float64" in text
    assert "calls       none yet" in text
    assert repr(explanation) == "<synk.Explanation of train>"


def test_every_kind_of_input_output_and_update_is_told():
    x, c = pt.matrix("x"), pt.scalar("c")
    table = pytensor.shared(np.ones((4, 3)), "table")
    local, count = pytensor.shared(0.0, "local"), pytensor.shared(0, "count")
    var = x.var(axis=0)
    outputs = [x * c, (x.sum(), None), (x.max(), "min"), var, table.sum()]
    f = quiet(
        [x],
        outputs,
        [c],
        updates=[(local, x.sum()), (count, count + 1)],
        sliceable_shareds=[table],
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
    text = " ".join(shown(f.explain()).split())
    assert "rank 0's own, as named" in text
    assert "min, as named; a maximum over the rows (another op is shown)" in text
    assert "avg; not shown: " in text
    assert "updates local (own rows), count" in text


# -- why values are combined -----------------------------------------------------------


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
    assert re.fullmatch(r"test_speed_explain\.py:\d+", place)
    return line.strip("`")


@three_ranks
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
    assert {size for _, op, size, *_ in told(f) if op == "read"} == {None}
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
    text = " ".join(shown(f.explain()).split())
    assert "all rows of y (test_speed_explain.py:" in text


def test_what_the_script_asks_for_is_told_so(two_ranks):
    x = pt.matrix("x")
    w = pytensor.shared(np.ones(3), "w")
    top = synk.ops.all_reduce(x.max(axis=0), "avg")
    cost = ((x @ w) ** 2).mean()
    f = quiet([x], [top, cost], updates={w: w - synk.grad(cost, w)})
    rest = [(0, "avg", 24, "for synk.grad", None)]
    rest.append((0, "avg", 8, "along with the others", None))
    assert set(told(f)) == {(0, "avg", None, "as written", None), *rest}
    assert "? B of float64" in shown(f.explain())
    f(np.ones((6, 3)))
    assert set(told(f)) == {(0, "avg", 24, "as written", None), *rest}
    columns = pytensor.shared(0, "columns")
    g = quiet([x], updates={columns: x[:, 1:].shape[1]})
    why = "for the new value of columns, on ranks without rows"
    assert told(g) == [(0, "max", 8, why, None)]


def test_statistics_that_stay_a_ranks_own_are_listed():
    x = pt.matrix("x")
    centred = x - x.mean(axis=0)
    f = quiet([x], centred, statistics="local")
    (own,) = f.explain().to_dict()["own_statistics"]
    assert code(own["made"]) == "centred = x - x.mean(axis=0)"
    assert re.search(r"local +mean \(\S+\): of each rank's own rows", str(f.explain()))
    assert told(f) == []
    assert quiet([x], centred).explain().to_dict()["own_statistics"] == []


# -- what every rank repeats -----------------------------------------------------------


def test_one_warning_says_which_ops_how_many_bytes_and_what_share():
    x, y = pt.matrix("x", shape=(None, 5)), pt.vector("y")
    ordered = pt.sort(x * 2, axis=0)
    # Doubling and the exponential are of own rows; sorting and subtracting are not.
    for outputs, said in (
        (
            [ordered - 1, pt.exp(x)],
            r"^SortOp\{.*made in test_speed_explain\.py:.*"
            r"`ordered = pt\.sort\(x \* 2, axis=0\)`\) needs all rows at once.*"
            r"every rank repeats 2 of the 4 Ops on rows.*"
            r"exchange Mul\(.*x\) \(40 bytes a row\)\.",
        ),
        (
            [pt.sort(x, axis=0), pt.cumsum(y)],
            r"and 1 more Op need all rows at once.*repeats 2 of the 2 Ops on rows"
            r"(?=.*x \(40 bytes a row\)).*y \(8 bytes a row\)",
        ),
        ([y[0]], r"every rank reads all rows of y \(8 bytes a row\)\."),
    ):
        with pytest.warns(synk.SplitWarning, match=said) as caught:
            synk.function([x, y], outputs, mode=PY, on_unused_input="ignore")
        (warning,) = caught
        assert warning.filename == __file__
    assert "repeats" not in str(warning.message)  # a view of all rows is no work


def test_bytes_and_time_of_what_is_repeated_are_known_after_calls(two_ranks):
    x = pt.matrix("x")
    f = quiet([x], SlowSum(None, nothing)(x))
    before = f.explain().to_dict()["repeated"]
    assert [op["name"] for op in before["by"]] == ["SlowSum"]
    assert (before["ops"], before["of"]) == (1, 1)
    assert before["bytes"] is before["milliseconds"] is None
    for _ in range(3):
        assert f(np.ones((6, 3))) == 18
    after = f.explain().to_dict()
    assert after["repeated"]["bytes"] == 6 * 3 * 8
    common = [row["common"] for row in after["calls"]["ranks"]]
    assert len(common) == 2
    assert after["repeated"]["milliseconds"] == max(common) >= 30
    text = " ".join(str(f.explain()).split())
    assert "needs all rows, 144 B: every rank computes 1 of the 1 Ops on rows" in text
    assert re.search(r"in up to \S+ m?s of a call", text)


def test_strict_takes_all_that_reductions_give_and_refuses_the_rest():
    x, y = pt.matrix("x"), pt.vector("y")
    w = pytensor.shared(np.ones(3), "w")
    kept = pytensor.shared(np.zeros(2), "kept")
    options = {"mode": PY, "on_unused_input": "ignore", "strict": True}
    hidden = x @ w
    for _ in range(3):  # as many levels as statistics of statistics have
        hidden = (hidden - hidden.mean()) / pt.sqrt(hidden.var() + 1)
    loss = ((hidden - y) ** 2).mean()
    outputs = [loss, hidden, pt.special.softmax(x, axis=0)]
    update = [(w, w - pytensor.grad(loss, w))]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        f = synk.function([x, y], outputs, updates=update, **options)
    assert len(f.explain().to_dict()["stages"]) > 6
    pairs = x @ x.T
    needs = (
        r"made in test_speed_explain\.py:.*needs rows of all ranks: every rank reads"
    )
    for outputs, updates, match in (
        (pt.sort(y), [], r"SortOp.* needs all rows at once"),
        (pairs, [], rf"Matmul\(x, .*{needs} all rows of .* \(8 bytes a number\)"),
        ([], [(kept, y * 2)], r"new value of kept needs rows .* \(8 bytes a row\)"),
    ):
        with pytest.raises(synk.SplitError, match=match):
            synk.function([x, y], outputs, updates=updates, **options)


# -- the calls -------------------------------------------------------------------------


@one_and_three_ranks
def test_calls_rows_and_bytes_are_counted_and_phases_are_all_of_the_time(ranks):
    f, x, y = training_step()
    f(x, y)
    first = f.explain().to_dict()["calls"]
    assert (first["counted"], first["left_out"], first["ranks"]) == (0, 1, [])
    assert "after a compilation" in shown(f.explain())
    X, Y = synk.data(x), synk.data(y)
    began = time.perf_counter()
    for _ in range(3):
        f(X, Y)
    f.run([slice(0, 11)] * 4, x, y)
    passed = (time.perf_counter() - began) / 7 * 1e3
    calls = f.explain().to_dict()["calls"]
    assert (calls["counted"], calls["left_out"]) == (7, 1)
    shares = [len(part) for part in np.array_split(np.arange(11), ranks)]
    assert [row["share"] for row in calls["ranks"]] == shares
    assert calls["rows"] == 11
    assert calls["scattered_bytes"] == 11 * 31 * 8
    assert calls["reduced_bytes"] == (30 * 200 * 8 + 8 + 800 if ranks > 1 else 0)
    assert f"{11 * 31 * 8 / 1e3:.3g} kB scattered" in shown(f.explain())
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


@pytest.mark.parametrize("width", [0, 1, 5000])
def test_computation_and_waiting_are_told_apart(width, two_ranks):
    """At the end of a call, and within it: few values are reduced in another way."""
    x, f = pt.vector("x"), slow_mean()
    if width:
        mean = synk.ops.all_reduce(pt.ones(width) * slow(x).mean())
        f = synk.function([x], (mean.sum() + x, "gather"), mode=PY)
    for _ in range(3):
        f(np.array([0.0, 0, 50, 50]))  # rank 1 takes 100 ms
    content = f.explain().to_dict()
    fast, late = content["calls"]["ranks"]
    assert late["compute"] >= 100
    assert fast["compute"] < late["compute"]
    assert fast["wait"] > late["wait"]
    assert fast["compute"] + fast["wait"] >= 100
    assert content["calls"]["milliseconds"] >= 100
    assert content["lost"]["uneven"] > 0
    if not width:
        worked = sum(row["rows"] + row["compute"] for row in (fast, late))
        predicted = worked / content["calls"]["milliseconds"]
        assert content["speed_up"]["predicted"] == pytest.approx(predicted)


def test_a_call_that_compiles_or_fails_does_not_count(two_ranks):
    f = slow_mean()
    with pytest.raises(ValueError, match="sleep length"):
        f(np.array([900.0, -1]))  # rank 0 did its share; and compiles
    f(np.array([900.0, 0]), num_slices=2)  # compiles
    f(np.zeros(4), num_slices=2)
    with pytest.raises(ValueError, match="sleep length"):
        f(np.array([0.0, -1]))
    f(np.array([20.0, 20]))
    # Of a run, too, all calls but the first
    g = slow_mean()
    g.run([slice(0, 2), *[slice(2, 4)] * 2], np.array([900.0, 0, 20, 20]))
    for function in (f, g):
        calls = function.explain().to_dict()["calls"]
        assert calls["counted"] == 2
        assert 20 / 2 <= calls["milliseconds"] < 300
        assert all(row["compute"] < 300 for row in calls["ranks"])


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
    with synk.session(1):
        assert not f.explain().to_dict()["calls"]["all_ranks_known"]
        f(x, y)
        assert f.explain().to_dict()["calls"]["counted"] == 0
        f(x, y)
        content = f.explain().to_dict()
        assert content["calls"]["counted"] == len(content["calls"]["ranks"]) == 1
        # One rank is not compared with itself.
        assert content["verdict"] is content["speed_up"]["predicted"] is None
        assert "train: 1 rank\n" in shown(f.explain())


# -- what follows ----------------------------------------------------------------------


def test_a_gain_is_predicted_and_measured(two_ranks):
    f = slow_mean()
    rows = np.full(8, 20.0)  # sleeping ranks do not disturb each other
    for _ in range(3):
        f(rows)
    explanation = f.explain(rows, measure=True)
    content = explanation.to_dict()
    assert content["serial"]["milliseconds"] >= 160
    assert content["serial"]["rows"] == 8
    speed = content["speed_up"]
    assert speed["measured"] == pytest.approx(
        content["serial"]["milliseconds"] / content["calls"]["milliseconds"]
    )
    assert 0 < speed["predicted"] <= 2
    assert f"{speed['measured']:.2f} measured" in shown(explanation)
    # A serial run of other rows is shown, and not compared.
    content = f.explain(np.zeros(16), measure=True, batch=4).to_dict()
    assert content["serial"]["rows"] == 4
    assert content["speed_up"]["measured"] is None
    content = f.explain(x=np.zeros(16), measure=True, batch=slice(8)).to_dict()
    assert content["speed_up"]["measured"] is not None


def test_checks_and_as_theano_tell_the_serial_time_from_their_second_run(two_ranks):
    rows = np.full(4, 25.0)
    for is_check in (True, False):
        f = slow_mean()
        for known in (False, True):
            f(rows)
            f(rows, check="serial") if is_check else f.as_theano(rows)
            assert (f.explain().to_dict()["serial"] is not None) == known
        content = f.explain().to_dict()
        assert content["serial"]["milliseconds"] >= 100
        assert content["speed_up"]["measured"] is not None
        assert content["calls"]["milliseconds"] >= 50


def test_what_is_too_small_is_said_to_be_faster_on_one_rank(two_ranks):
    # Another program that takes a rank's core for a while is a reason, too: the machine
    # has some tries to show the usual one.
    for _ in range(8):
        f = synk.function([], [], mode=PY)
        for _ in range(100):
            f()
        text = shown(f.explain())
        if "launching, joining and meeting" in text:
            break
    assert f.explain().to_dict()["speed_up"]["predicted"] < 1
    assert "One rank would be faster: it would take about" in text
    assert "launching, joining and meeting" in text
    f = slow_mean()
    for _ in range(2):
        f.as_theano(np.ones(3))
    assert "One rank" not in shown(f.explain())


def test_wrong_arguments_are_refused_and_a_measurement_changes_nothing(two_ranks):
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
