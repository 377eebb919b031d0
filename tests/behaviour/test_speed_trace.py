"""Timelines: what the file holds and when it is written; exchanges under rules."""

import itertools
import json
import os
import signal
import time

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from on_ranks import one_and_three_ranks
from processes import ROWS, Act, Do, acting, rank_pids
from reference import PY

import synk
from synk.rules import EASGD, Gossip, LocalSGD

PHASES = {"rows", "compute", "wait", "reduce"}


def training_step(rows: int = 40):
    """Return a function with two stages whose gradient is too large for one meeting."""
    x = pt.matrix("x")
    w = pytensor.shared(np.zeros(5000), "w")
    loss = ((x @ w - 1) ** 2).mean()
    step = synk.function(
        [x], loss, updates={w: w - 0.1 * synk.grad(loss, w)}, name="train", mode=PY
    )
    return step, np.random.default_rng(0).normal(size=(rows, 5000))


def read(path) -> dict:
    """Return a file, after a look at what the format demands of every event."""
    document = json.loads(path.read_text())
    assert set(document) == {"traceEvents", "displayTimeUnit", "otherData"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    for event in document["traceEvents"]:
        kinds = {"name": str, "args": dict, "pid": int, "tid": int}
        if event["ph"] == "X":
            kinds["cat"] = str
            assert event["ts"] >= 0
            assert event["dur"] >= 0
        else:
            assert event["ph"] == "M"
        assert all(isinstance(event[key], kind) for key, kind in kinds.items())
    return document


def complete(document: dict, rank: int | None = None) -> list[dict]:
    """Return what took time, on all ranks or one, whose events lie in each other."""
    found = [event for event in document["traceEvents"] if event["ph"] == "X"]
    if rank is None:
        return found
    of_rank = [event for event in found if event["tid"] == rank]
    assert_nested(of_rank)
    return of_rank


def bounds(event: dict) -> tuple[int, int]:
    """Return begin and end in nanoseconds, which are whole numbers."""
    start = round(event["ts"] * 1000)
    return start, start + round(event["dur"] * 1000)


def assert_nested(events: list[dict]) -> None:
    """Assert that of two events of a thread one encloses the other, or ends before."""
    open_events: list[tuple[int, int]] = []
    for start, end in map(bounds, events):
        while open_events and open_events[-1][1] <= start:
            open_events.pop()
        assert not open_events or end <= open_events[-1][1], "events overlap"
        open_events.append((start, end))


def within(outer: dict, events: list[dict]) -> list[dict]:
    start, end = bounds(outer)
    return [
        event
        for event in events
        if event is not outer and start <= bounds(event)[0] and bounds(event)[1] <= end
    ]


@one_and_three_ranks
def test_a_call_is_divided_into_phases_without_overlap(ranks, tmp_path):
    f, rows = training_step(rows=7)
    X = synk.data(rows)
    f(X)
    with synk.trace(tmp_path / "t.json"):
        for _ in range(3):
            f(X)
    document = read(tmp_path / "t.json")
    named = [e for e in document["traceEvents"] if e["name"] == "thread_name"]
    assert {event["tid"]: event["args"]["name"] for event in named} == {
        rank: f"rank {rank}" if rank else "rank 0 (master)" for rank in range(ranks)
    }
    processes = [e for e in document["traceEvents"] if e["name"] == "process_name"]
    assert [event["args"]["name"] for event in processes] == [f"synk, {ranks} ranks"]
    assert {event["pid"] for event in document["traceEvents"]} == {os.getpid()}
    for rank, share in enumerate(np.array_split(rows, ranks)):
        events = complete(document, rank)
        calls = [event for event in events if event["name"] == "call"]
        assert len(calls) == 3
        for call in calls:
            assert call["args"] == {
                "function": "train",
                "rows": len(share),
                "bytes": share.nbytes,
            }
            parts = within(call, events)
            names = [part["name"] for part in parts]
            assert set(names) <= PHASES
            stages = [p["args"]["stage"] for p in parts if p["name"] == "compute"]
            assert stages == ([0, 1] if ranks > 1 else [0])  # one rank: no cut
            reduced = [p["args"]["bytes"] for p in parts if p["name"] == "reduce"]
            # The gradient of 5,000 and the loss; values begin on cache lines.
            assert all(40_008 <= nbytes <= 40_008 + 128 for nbytes in reduced)
            assert bool(reduced) == (ranks > 1)
            # One after the other without gaps, from the beginning to the end.
            ends = [bounds(part) for part in parts]
            assert ends[0][0] == bounds(call)[0]
            assert ends[-1][1] == bounds(call)[1]
            for (_, end), (start, _) in itertools.pairwise(ends):
                assert start == end


def test_the_master_shows_the_call_as_the_script_sees_it(two_ranks, tmp_path):
    f, rows = training_step()
    f(rows)
    before = time.perf_counter()
    with synk.trace(tmp_path / "t.json"):
        f(rows)
        f.run([slice(0, 9), slice(9, 11)], rows)
    passed = (time.perf_counter() - before) * 1e6
    events = complete(read(tmp_path / "t.json"), 0)
    (call,) = (event for event in events if event["name"] == "Function call")
    (run,) = (event for event in events if event["name"] == "Function run")
    inside = [[e["name"] for e in within(outer, events)] for outer in (call, run)]
    assert [names.count("call") for names in inside] == [1, 2]
    assert inside[0][-1] == inside[1][-1] == "wait"  # the join
    assert call["dur"] + run["dur"] < passed
    others = [e for e in complete(read(tmp_path / "t.json"), 1) if e["name"] == "call"]
    assert [event["args"]["rows"] for event in others] == [20, 4, 1]
    # One clock: the rank's share lies within the call.
    assert within(call, others) == others[:1]


def test_memory_is_bounded_and_the_file_says_what_was_dropped(two_ranks, tmp_path):
    x = pt.vector("x")
    f = synk.function([x], x.sum(), mode=PY)
    f(np.ones(4))
    for path, options in (("all.json", {}), ("some.json", {"limit": 7})):
        with synk.trace(tmp_path / path, **options):
            for _ in range(20):
                f(np.ones(4))
    every, some = read(tmp_path / "all.json"), read(tmp_path / "some.json")
    assert every["otherData"]["dropped"] == {"rank 0": 0, "rank 1": 0}
    assert some["otherData"]["limit per rank"] == 7
    for rank in range(2):
        kept = complete(some, rank)
        assert len(kept) == 7
        dropped = some["otherData"]["dropped"][f"rank {rank}"]
        assert len(kept) + dropped == len(complete(every, rank))


# -- when it is written ----------------------------------------------------------------


def test_the_file_is_written_whatever_ends_the_block_and_not_later(two_ranks, tmp_path):
    f, rows = training_step()
    path = tmp_path / "t.json"
    with synk.trace(path):
        f(rows)
        synk.broadcast(f.updated[0])
    for rank in range(2):  # compilations and collectives have events of their own
        events = complete(read(path), rank)
        commands = [event["name"] for event in events if event["cat"] == "command"]
        assert commands[0] == "replicate variables"
        assert {"replicate function", "compile", "broadcast"} <= set(commands)
    content = path.read_bytes()
    f(rows)
    assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]
    with synk.trace(path):
        pass
    assert complete(read(path)) == []
    for error, ends in ((ZeroDivisionError, "no rank"), (ValueError, "a rank")):
        with pytest.raises(error), synk.trace(str(path)):
            _ = f(rows), 1 // 0 if ends == "no rank" else f(rows[:, :5])
        assert "incomplete" not in read(path)["otherData"]
        for rank in range(2):
            events = complete(read(path), rank)
            assert [event["name"] for event in events].count("call") == 1
    assert np.isfinite(f(rows))


def test_a_session_that_ends_or_dies_in_the_block_leaves_rank_0(tmp_path):
    f, rows = training_step()
    path = tmp_path / "t.json"
    with synk.session(2), synk.trace(path):
        f(rows)
        synk.close()
    document = read(path)
    assert "synk is closed" in document["otherData"]["incomplete"]
    assert {event["tid"] for event in complete(document)} == {0}
    with synk.session(2):
        with synk.trace(path):
            f(rows)
            f(rows)
        assert {event["tid"] for event in complete(read(path))} == {0, 1}
        with pytest.raises(synk.WorkerDied), synk.trace(path):
            call_a_dead_rank(f, rows)
        document = read(path)
        assert "rank 1" in document["otherData"]["incomplete"]
        assert {event["tid"] for event in complete(document)} == {0}
        assert [row["rank"] for row in f.explain().to_dict()["calls"]["ranks"]] == [0]


def call_a_dead_rank(f, rows):
    f(rows)
    os.kill(rank_pids()[1], signal.SIGKILL)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        f(rows)


def test_traces_are_refused_where_they_make_no_sense(tmp_path):
    def refuse(error, match, path=tmp_path / "t.json", **options):
        with pytest.raises(error, match=match), synk.trace(path, **options):
            pytest.fail("the block was entered")

    refuse(synk.StateError, r"call synk.fork\(\)")
    with synk.session(2):
        with pytest.raises(synk.StateError, match="only the master"):
            acting(1, trace_within, str(tmp_path / "t.json"))(ROWS)
        with synk.trace(tmp_path / "outer.json"):
            refuse(synk.StateError, "a trace is on already")
        refuse(FileNotFoundError, "no folder", tmp_path / "none" / "t.json")
        refuse(IsADirectoryError, "is a folder", tmp_path)
        refuse(ValueError, "at least 1 event, got 0", limit=0)
        assert [path.name for path in tmp_path.iterdir()] == ["outer.json"]


def trace_within(path):
    with synk.trace(path):
        pass


# -- exchanges -------------------------------------------------------------------------

SIZE, STEPS = 30, 12
SLOW = Act(1, Do(time.sleep, 0.01))


def trainer_by(rule, slow=False):
    x = pt.matrix("x")
    w = pytensor.shared(np.zeros(SIZE), "w")
    loss = (((SLOW(x) if slow else x) - w) ** 2).mean()
    updates = synk.updates.sgd([pytensor.grad(loss, w)], [w], learning_rate=0.1)
    step = synk.function([x], loss, updates=updates, local=True, mode=PY)
    return step, synk.Trainer(step, [w], rule)


def fit(trainer):
    data = np.random.default_rng(0).normal(size=(STEPS * 4, SIZE))
    trainer.fit(data, batch_size=4, progress=False)


@pytest.mark.parametrize(
    "rule",
    [LocalSGD(3), EASGD(3, order="turns"), EASGD(3, order="free")],
    ids=["together", "turns", "free"],
)
def test_exchanges_are_told_of_each_rank(rule, tmp_path):
    step, trainer = trainer_by(rule)
    path = tmp_path / "steps.json"
    with synk.session(2):
        fit(trainer)
        with synk.trace(path):
            fit(trainer)
        told = step.explain().to_dict()["exchanges"]
        text = str(step.explain())
        last = trainer.exchanges
    assert told["rule"] == repr(rule)
    assert told["bytes"] == 8 * SIZE
    each = STEPS // 3
    assert [of_rank["exchanges"] for of_rank in told["ranks"]] == [2 * each] * 2
    for of_rank in told["ranks"]:
        assert 0 <= of_rank["wait"] <= of_rank["milliseconds"]
    assert f"rank 1: {2 * each} exchanges" in text

    for rank in range(2):
        events = complete(read(path), rank)
        of_rank = [event for event in events if event["name"] == "exchange"]
        steps = [event["args"]["step"] for event in of_rank]
        assert steps == [STEPS + 3 * (k + 1) for k in range(each)]
        staleness = [event["args"]["staleness"] for event in of_rank]
        assert staleness == [
            exchange.staleness for exchange in last if exchange.rank in (rank, None)
        ]
    if rule.order == "turns":  # the other one comes in between, but the first time
        means = [of_rank["staleness"] for of_rank in told["ranks"]]
        assert means == [(2 * each - 1) / (2 * each), 1.0]
        assert [of_rank["most_stale"] for of_rank in told["ranks"]] == [1, 1]


def test_who_waits_for_a_slow_rank_is_told():
    step, trainer = trainer_by(EASGD(1, order="together"), slow=True)
    with synk.session(2):
        fit(trainer)
        first, second = step.explain().to_dict()["exchanges"]["ranks"]
        reported = trainer.history["wait"][-1]
    # Not at the first step, in which rank 0 may be the later one to compile.
    slept = 0.01 * (STEPS - 2)
    assert first["wait"] * first["exchanges"] * 1e-3 >= 0.5 * slept
    assert first["waits"] >= STEPS // 2
    assert second["wait"] < first["wait"]
    assert reported >= 0.5 * slept / 2  # the mean of both ranks


def test_gossip_counts_what_is_sent():
    step, trainer = trainer_by(Gossip(0.5))
    with synk.session(2):
        fit(trainer)
        sent = len(trainer.exchanges)
        told = step.explain().to_dict()["exchanges"]["ranks"]
    assert sum(of_rank["exchanges"] for of_rank in told) == sent > 0
