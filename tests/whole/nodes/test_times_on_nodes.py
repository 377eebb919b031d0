"""Traces and explanations on several nodes, whose clocks begin at different times."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from launching import APART, run

BEGIN = """
import json, os, random, signal, sys, time
from pathlib import Path
import numpy as np, pytensor, pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
import synk

pytensor.config.cxx = ""  # nothing is compiled for long

class OnRanks(Op):
    '''Returns x; does something on ranks of this graph's call besides.'''
    __props__ = ("rank",)
    def __init__(self, rank=-1):
        self.rank = rank
    def make_node(self, x):
        return Apply(self, [x], [x.type()])
    def perform(self, node, inputs, output_storage):
        self.do(synk.rank())
        output_storage[0][0] = inputs[0] + 0
    def infer_shape(self, fgraph, node, shapes):
        return shapes

n = synk.fork(2)
x, big = pt.dmatrix("x"), pt.dmatrix("big")
X = np.random.default_rng(0).normal(size=(30, 4000))
w = pytensor.shared(np.zeros(4000), "w")
loss = ((x @ w - 1) ** 2).mean()
new = w - 0.1 * synk.grad(loss, w)
how = dict(mode="FAST_COMPILE")
train = synk.function([x], loss, updates=[(w, new)], name="train", **how)

def on_ranks(op):
    return synk.function([x], op(x).sum(), **how)
"""

TRUTH = (
    BEGIN
    + """
class Shift(OnRanks):
    '''Has the ranks of node 1 look at a clock that began before, and goes faster.'''
    def do(self, rank):
        real = time.perf_counter
        shifted = lambda: 1.01 * real() + 5000.0
        if rank in (2, 3):
            for name, module in list(sys.modules.items()):
                if name.startswith("synk.") and hasattr(module, "perf_counter"):
                    module.perf_counter = shifted

class Mark(OnRanks):
    '''Leaves an event that says what time it is, by the clock of no node.'''
    def do(self, rank):
        from synk.ranks.session import SESSION
        from synk.times import tracing
        began = 0.0
        path = Path("/proc/self/timens_offsets")
        for line in path.read_text().splitlines() if path.exists() else ():
            clock, seconds, nanoseconds = line.split()
            if clock == "monotonic":
                began = int(seconds) + int(nanoseconds) * 1e-9
        if SESSION.context.tracer is not None:
            looks = [time.perf_counter, tracing.perf_counter, time.perf_counter]
            before, now, after = (look() for look in looks)
            true = {"before": before - began, "after": after - began}
            event = tracing.Event("mark", "test", now, now, true)
            SESSION.context.tracer.keep(event)

if sys.argv[1] == "shifted":
    on_ranks(Shift())(X)
mark, data = on_ranks(Mark()), synk.data(X)
mark(data), train(data), train(data)
with synk.trace("trace.json"):
    for _ in range(4):
        mark(data), train(data)
        time.sleep(0.1)
    synk.all_reduce([w])
explanation = train.explain()
Path("explained.json").write_text(json.dumps(explanation.to_dict()))
Path("explained.txt").write_text(str(explanation))
Path("explained.html").write_text(explanation._repr_html_())
"""
)

FAULTS = """
class Fails(OnRanks):
    def do(self, rank):
        if rank == self.rank:
            raise KeyError(rank)

class Dies(OnRanks):
    def do(self, rank):
        if rank == self.rank:
            os.kill(os.getpid(), signal.SIGKILL)

class Stop(BaseException):  # PyTensor may lose an Exception that comes as it begins
    pass

def stop(*_):
    raise Stop

def traced():
    document = json.loads(Path("faults.json").read_text())
    rows = {event["tid"] for event in document["traceEvents"] if event["ph"] == "X"}
    return rows, document["otherData"].get("incomplete", "")

def is_whole():
    with synk.trace("faults.json"):
        assert np.isclose(good(X), X.mean())
    return traced() == ({0, 1, 2, 3, 4, 5}, "")

good = synk.function([x], x.mean(), **how)
good(X)
for rank in range(n):
    try:
        with synk.trace("faults.json"):
            good(X)
            on_ranks(Fails(rank))(X)
    except KeyError:
        assert traced() == ({0, 1, 2, 3, 4, 5}, ""), traced()
    else:
        raise AssertionError("nothing was raised")
signal.signal(signal.SIGALRM, stop)
generator, stops = random.Random(0), 0
for _ in range(20):
    try:
        signal.setitimer(signal.ITIMER_REAL, generator.uniform(1e-5, 8e-3))
        for _ in range(20):
            with synk.trace("faults.json"):
                good(X)
    except Stop:
        stops += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert np.isclose(good(X), X.mean())
assert stops > 0.8 * 20, stops
assert is_whole()
try:
    with synk.trace("faults.json"):
        on_ranks(Dies(3))(X)
except synk.WorkerDied:
    rows, incomplete = traced()
    assert rows <= {0} and "rank 3" in incomplete, traced()
else:
    raise AssertionError("nothing was raised")
synk.recover()
assert is_whole()
files = [f"explained.{ending}" for ending in ("html", "json", "txt")]
files += ["faults.json", "script.py", "trace.json"]
assert sorted(path.name for path in Path().iterdir()) == files
"""


@pytest.fixture(scope="module", params=["shifted", "kernel"])
def seen(request, tmp_path_factory):
    """Return the folder in which a script has left a trace and an explanation.

    On node 1 either synk's own modules look at another clock, or the kernel has one.
    What goes wrong in other traces leaves the nodes together.
    """
    folder, clock = tmp_path_factory.mktemp("nodes"), request.param
    ending = 'print("done")\n'
    if clock == "shifted":
        status, out, error = run(TRUTH + FAULTS + ending, folder, 2, clock)
    else:
        status, out, error = run(TRUTH + ending, folder, 2, clock, mpi=APART)
    assert out.split()[-1:] == ["done"], out + error
    assert status == 0
    return clock, folder


class Trace:
    """A trace, with its events by row; times in seconds."""

    def __init__(self, folder: Path) -> None:
        self.document = json.loads((folder / "trace.json").read_text())
        self.nodes = self.document["otherData"]["nodes"]
        self.error = max(
            node["seconds of error, at most"] for node in self.nodes.values()
        )
        self.events = [e for e in self.document["traceEvents"] if e["ph"] == "X"]

    def named(self, name: str, thread: int) -> list[dict]:
        found = [
            {**e, "start": e["ts"] * 1e-6, "end": (e["ts"] + e["dur"]) * 1e-6}
            for e in self.events
            if e["name"] == name and e["tid"] == thread
        ]
        return sorted(found, key=lambda event: event["start"])


RANKS, MASTERS = range(4), (4, 5)


def test_every_node_is_a_process_with_its_ranks_and_its_master(seen):
    trace = Trace(seen[1])
    threads, processes = {}, {}
    for event in trace.document["traceEvents"]:
        if event["name"] == "thread_name":
            threads[event["tid"]] = event["pid"], event["args"]["name"]
        elif event["name"] == "process_name":
            processes[event["pid"]] = event["args"]["name"]
    hosts = [trace.nodes[f"node {i}"]["host"] for i in range(2)]
    assert list(processes.values()) == [
        f"synk, node {i} on {host}, 2 ranks" for i, host in enumerate(hosts)
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
    dropped = trace.document["otherData"]["dropped"]
    assert set(dropped.values()) == {0}
    assert len(dropped) == 6


def test_clocks_of_nodes_are_aligned_up_to_the_error_that_is_told(seen):
    clock, folder = seen
    trace = Trace(folder)
    assert trace.error < 0.02
    ahead = trace.nodes["node 1"]["seconds ahead of node 0, at begin and end"]
    if clock == "shifted":  # by 5000 s and a hundredth of all time since the start
        assert all(each > 5000 for each in ahead)
        assert ahead[1] - ahead[0] > 0.01 * 0.4 - 2 * trace.error
    assert trace.nodes["node 0"]["seconds ahead of node 0, at begin and end"] == [0, 0]
    # When the trace began, by the true clock: each mark tells it between two looks.
    began = [
        [mark["args"][look] - mark["start"] for look in ("before", "after")]
        for rank in RANKS
        for mark in trace.named("mark", rank)
    ]
    assert len(began) == 16
    lowest = max(before for before, _ in began[:8])
    highest = min(after for _, after in began[:8])
    rounded = 2e-9
    assert lowest <= highest + rounded
    for before, after in began[8:]:
        assert before - trace.error <= highest + rounded
        assert after + trace.error >= lowest - rounded


def test_ranks_of_different_nodes_meet_at_one_time(seen):
    trace = Trace(seen[1])
    calls = [
        call
        for call in trace.named("Function call", 0)
        if call["args"]["function"] == "train"
    ]
    assert len(calls) == 4
    for call in calls:
        given, had = [], []
        for rank in RANKS:
            (share,) = (
                event
                for event in trace.named("call", rank)
                if event["args"]["function"] == "train" and overlap(event, call)
            )
            assert share["start"] >= call["start"] - trace.error
            assert share["end"] <= call["end"] + trace.error
            copied = [e for e in trace.named("reduce", rank) if overlap(e, share)]
            (exchange,) = (e for e in trace.named("nodes", rank) if overlap(e, share))
            given.append(copied[0]["end"])
            had.append(exchange["end"])
        # Nobody has the result before all have given their values.
        assert min(had) >= max(given) - trace.error
    for name in ("nodes: all-to-all", "nodes: all-gather"):
        for one, other in zip(*(trace.named(name, i) for i in MASTERS), strict=True):
            assert one["end"] >= other["start"] - trace.error
            assert other["end"] >= one["start"] - trace.error


def overlap(one: dict, other: dict) -> bool:
    return one["start"] < other["end"] and other["start"] < one["end"]


def test_what_masters_do_with_others_is_a_row_of_its_own(seen):
    trace = Trace(seen[1])
    for master in MASTERS:
        names = {event["name"] for event in trace.events if event["tid"] == master}
        common = {"heads", "command", "all-to-all", "reduce", "all-gather", "replies"}
        assert {f"nodes: {name}" for name in common} <= names
        assert ("nodes: idle" in names) is (master == 5)
        found = [e for e in trace.events if e["tid"] == master]
        found.sort(key=lambda event: event["ts"])
        for one, after in itertools.pairwise(found):
            assert one["ts"] + one["dur"] <= after["ts"] + 1e-3  # rounded
    sent = [event["args"]["bytes"] for event in trace.named("nodes: all-to-all", 4)]
    # Half of the gradient and the loss, in whole cache lines.
    assert all(abs(nbytes - 4001 * 8 / 2) <= 64 for nbytes in sent)
    assert len(sent) == 5


def test_explanations_tell_the_time_between_nodes_apart(seen):
    folder = seen[1]
    told = json.loads((folder / "explained.json").read_text())
    ranks, nodes = told["calls"]["ranks"], told["nodes"]
    assert [row["node"] for row in ranks] == [0, 0, 1, 1]
    assert [node["ranks"] for node in nodes] == [2, 2]
    for row in ranks:
        assert row["nodes"] > 0
        assert row["reduce"] > 0
        phases = ("rows", "compute", "wait", "reduce", "nodes")
        assert (
            sum(row[phase] for phase in phases) <= told["calls"]["milliseconds"] * 1.1
        )
    for i, node in enumerate(nodes):
        exchanged = node["exchanged"]
        assert exchanged["times"] == 1
        # Half of the values to the other node, and half of the results.
        assert abs(exchanged["bytes"] - 4001 * 8) <= 128
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
