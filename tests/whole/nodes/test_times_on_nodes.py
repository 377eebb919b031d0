"""Traces and explanations on several nodes, and the model of times on many."""

import itertools
import json
from pathlib import Path

import pytest
import scaling
from launching import APART, ROOT, STOPS, run

BEGIN = """
import json, os, random, sys, time
from pathlib import Path
import numpy as np, pytensor, pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
import synk

pytensor.config.cxx = ""  # nothing is compiled for long

class Does(Op):
    '''Returns x; node 1 gets a faster clock, or its last rank fails, or dies.'''
    __props__ = ("what",)
    def __init__(self, what):
        self.what = what
    def make_node(self, x):
        return Apply(self, [x], [x.type()])
    def perform(self, node, inputs, output_storage):
        rank, real = synk.rank(), time.perf_counter
        if self.what == "shift" and rank in (2, 3):
            shifted = lambda: 1.01 * real() + 5000.0
            for name, module in list(sys.modules.items()):
                if name.startswith("synk.") and hasattr(module, "perf_counter"):
                    module.perf_counter = shifted
        if self.what == "fail" and rank == 3:
            raise KeyError(rank)
        if self.what == "die" and rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        output_storage[0][0] = inputs[0] + 0
    def infer_shape(self, fgraph, node, shapes):
        return shapes

n = synk.fork(2)
x = pt.dmatrix("x")
X = np.random.default_rng(0).normal(size=(30, 4000))
data = synk.data(X)
how = dict(mode="FAST_COMPILE")

def step(size):
    w = pytensor.shared(np.zeros(size), "w")
    loss = ((x[:, :size] @ w - 1) ** 2).mean()
    updates = [(w, w - 0.1 * synk.grad(loss, w))]
    return synk.function([x], loss, updates=updates, name="train", **how)

train = step(4000)

def does(what):
    return synk.function([x], Does(what)(x).sum(), **how)
"""

TRUTH = """
does("shift")(X)
train(data), train(data)
with synk.trace("trace.json"):
    for _ in range(4):
        train(data)
        time.sleep(0.1)
    synk.all_reduce([pytensor.shared(np.zeros(4000), "w")])
explanation = train.explain()
Path("explained.json").write_text(json.dumps(explanation.to_dict()))
Path("explained.txt").write_text(str(explanation))
Path("explained.html").write_text(explanation._repr_html_())

w = pytensor.shared(np.zeros(24), "w")
value = ((x[:, :24] @ w) ** 2).sum()
likelihood = synk.function([x], [value, pytensor.grad(value, w)], **how)
for i, f in enumerate((likelihood, step(25), train)):
    with synk.trace(f"call{i}.json"):
        for _ in range(3):
            f(data)
"""

FAULTS = """
def traced():
    document = json.loads(Path("faults.json").read_text())
    rows = {event["tid"] for event in document["traceEvents"] if event["ph"] == "X"}
    return rows, document["otherData"].get("incomplete", "")

def is_whole():
    with synk.trace("faults.json"):
        assert np.isclose(good(X), X.mean())
    return traced() == ({0, 1, 2, 3, 4, 5}, "")

good = synk.function([x], x.mean(), **how)
try:
    with synk.trace("faults.json"):
        good(X), does("fail")(X)
except KeyError:
    assert traced() == ({0, 1, 2, 3, 4, 5}, ""), traced()
else:
    raise AssertionError("nothing was raised")
generator, stops = random.Random(0), 0

def often():
    for _ in range(20):
        with synk.trace("faults.json"):
            good(X)

for _ in range(20):
    stops += is_stopped(generator.uniform(1e-5, 8e-3), often)
    assert np.isclose(good(X), X.mean())
assert stops > 0.8 * 20, stops
assert is_whole()
try:
    with synk.trace("faults.json"):
        does("die")(X)
except synk.WorkerDied:
    rows, incomplete = traced()
    assert rows <= {0} and "rank 3" in incomplete, traced()
else:
    raise AssertionError("nothing was raised")
synk.recover()
assert is_whole()
names = {"call0", "call1", "call2", "explained", "faults", "script", "trace"}
assert {path.stem for path in Path().iterdir()} == names
print("done")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder in which a script has left traces and an explanation.

    Clocks of the nodes begin at different times, where the kernel has that, and that of
    node 1 goes faster. What goes wrong in other traces leaves the nodes together.
    """
    folder = tmp_path_factory.mktemp("nodes")
    status, out, error = run(BEGIN + TRUTH + STOPS + FAULTS, folder, 2, mpi=APART)
    assert out.split()[-1:] == ["done"], out + error
    assert status == 0
    return folder


class Trace:
    """A trace, with its events in their order; times in seconds."""

    def __init__(self, path: Path) -> None:
        self.document = json.loads(path.read_text())
        self.nodes = self.document["otherData"]["nodes"]
        errors = [node["seconds of error, at most"] for node in self.nodes.values()]
        self.error = max(errors)
        found = [e for e in self.document["traceEvents"] if e["ph"] == "X"]
        for e in found:
            e |= {"start": e["ts"] * 1e-6, "end": (e["ts"] + e["dur"]) * 1e-6}
        self.events = sorted(found, key=lambda event: event["start"])

    def of(self, thread: int, *names: str, during: dict | None = None) -> list[dict]:
        """Return the events of a row, in their order; those of names, if there are."""
        return [
            e
            for e in self.events
            if e["tid"] == thread
            and (not names or e["name"] in names)
            and (during is None or overlap(e, during))
        ]


def overlap(one: dict, other: dict) -> bool:
    return one["start"] < other["end"] and other["start"] < one["end"]


RANKS, MASTERS = range(4), (4, 5)


@pytest.fixture
def trace(folder) -> Trace:
    return Trace(folder / "trace.json")


def test_every_node_is_a_process_with_its_ranks_and_its_master(trace):
    threads, processes = {}, {}
    for event in trace.document["traceEvents"]:
        if event["name"] == "thread_name":
            threads[event["tid"]] = event["pid"], event["args"]["name"]
        elif event["name"] == "process_name":
            processes[event["pid"]] = event["args"]["name"]
    assert list(processes.values()) == [
        f"synk, {name} on {node['host']}, 2 ranks" for name, node in trace.nodes.items()
    ]
    first, second = processes
    assert threads == {
        0: (first, "rank 0 (master)"),
        1: (first, "rank 1"),
        2: (second, "rank 2 (master of node 1)"),
        3: (second, "rank 3"),
        4: (first, "node 0, with other nodes"),
        5: (second, "node 1, with other nodes"),
    }
    assert list(trace.document["otherData"]["dropped"].values()) == [0] * 6


def test_clocks_of_nodes_are_compared_when_the_trace_begins_and_ends(trace):
    assert trace.error < 0.02
    first, second = (
        node["seconds ahead of node 0, at begin and end"]
        for node in trace.nodes.values()
    )
    assert first == [0, 0]
    # A hundredth of the time that the trace took.
    assert second[1] - second[0] > 0.01 * 0.4 - 2 * trace.error


def test_ranks_of_different_nodes_meet_at_one_time(trace):
    found = trace.of(0, "Function call")
    calls = [call for call in found if call["args"]["function"] == "train"]
    assert len(calls) == 4
    for call in calls:
        given, had = [], []
        for rank in RANKS:
            (share,) = (
                event
                for event in trace.of(rank, "call", during=call)
                if event["args"]["function"] == "train"
            )
            assert share["start"] >= call["start"] - trace.error
            assert share["end"] <= call["end"] + trace.error
            given.append(trace.of(rank, "reduce", during=share)[0]["end"])
            (exchange,) = trace.of(rank, "nodes", during=share)
            had.append(exchange["end"])
        # Nobody has the result before all have given their values.
        assert min(had) >= max(given) - trace.error
    for name in ("nodes: all-to-all", "nodes: all-gather"):
        for one, other in zip(*(trace.of(i, name) for i in MASTERS), strict=True):
            assert one["end"] >= other["start"] - trace.error
            assert other["end"] >= one["start"] - trace.error


def test_what_masters_do_with_others_is_a_row_of_its_own(trace):
    for master in MASTERS:
        found = trace.of(master)
        names = {event["name"] for event in found}
        common = {"heads", "command", "all-to-all", "reduce", "all-gather", "replies"}
        assert {f"nodes: {name}" for name in common} <= names
        assert ("nodes: idle" in names) is (master == 5)
        for one, after in itertools.pairwise(found):
            assert one["end"] <= after["start"] + 1e-9  # rounded
    sent = [event["args"]["bytes"] for event in trace.of(4, "nodes: all-to-all")]
    # Half of the gradient and the loss, in whole cache lines.
    assert sent == pytest.approx([4001 * 8 / 2] * 5, abs=64)


def test_explanations_tell_the_time_between_nodes_apart(folder):
    told = json.loads((folder / "explained.json").read_text())
    ranks, nodes = told["calls"]["ranks"], told["nodes"]
    assert [row["node"] for row in ranks] == [0, 0, 1, 1]
    assert [node["ranks"] for node in nodes] == [2, 2]
    phases = ("rows", "compute", "wait", "reduce", "nodes")
    for row in ranks:
        assert row["nodes"] > 0
        assert row["reduce"] > 0
        assert sum(map(row.get, phases)) <= told["calls"]["milliseconds"] * 1.1
    for i, node in enumerate(nodes):
        exchanged = node["exchanged"]
        assert exchanged["times"] == 1
        # Half of the values to the other node, and half of the results.
        assert exchanged["bytes"] == pytest.approx(4001 * 8, abs=128)
        assert exchanged["milliseconds"] == ranks[2 * i]["nodes"]
        assert exchanged["meeting"] <= ranks[2 * i]["wait"]
    assert told["lost"]["nodes"] == sum(row["nodes"] for row in ranks) / 4
    text = (folder / "explained.txt").read_text()
    assert text.startswith("train: 4 ranks on 2 nodes\n")
    lines = text.splitlines()
    (title,) = (i for i, line in enumerate(lines) if "taking rows" in line)
    assert lines[title].split()[-1] == "nodes"
    table = [line.split()[:2] for line in lines[title + 1 : title + 7]]
    assert table == [
        *(["node", "0"], ["rank", "0"], ["rank", "1"]),
        *(["node", "1"], ["rank", "2"], ["rank", "3"]),
    ]
    assert nodes[0]["host"] in lines[title + 1]
    assert "1 time in a call" in " ".join(text.split())
    assert max(map(len, lines)) <= 100
    html = (folder / "explained.html").read_text()
    assert "rank 2 (node 1)" in html
    assert "between nodes" in html


# -- the model of times on many nodes that docs/performance.rst shows


def test_calls_take_the_steps_of_the_model(folder):
    large = scaling.CALLS[-1]._replace(reduced=scaling.with_loss(8 * 4000))
    for i, call in enumerate((*scaling.CALLS[:-1], large)):
        trace = Trace(folder / f"call{i}.json")
        last = trace.of(0, "Function call")[-1]  # like the one before
        done = [e for e in trace.of(4, during=last) if e["name"] != "nodes: reduce"]
        steps = list(call.steps(2, ranks=2))
        assert [event["name"] for event in done] == [f"nodes: {s.what}" for s in steps]
        for step, event in zip(steps, done, strict=True):
            if step.what.startswith("all"):
                assert event["args"]["bytes"] == pytest.approx(step.nbytes, abs=64)
        reply = trace.of(5, "nodes: replies", during=last)[-1]["args"]["bytes"]
        assert reply == pytest.approx(steps[-1].nbytes, rel=0.25)


def test_the_page_shows_what_the_model_gives():
    page = (ROOT / "docs" / "performance.rst").read_text()
    _, shown = page.split("    $ python tests/whole/nodes/scaling.py\n")
    for line in scaling.report():
        found, _, shown = shown.partition("\n")
        assert found.strip() == line.strip()
