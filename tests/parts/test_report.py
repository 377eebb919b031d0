"""Of explanations: how times add up, clocks, and what several nodes are shown with."""

from __future__ import annotations

import time
from xml.etree import ElementTree

import numpy as np
import pytest

from synk.report.conclusions import losses, time_alone
from synk.report.explanation import Explanation
from synk.report.facts import (
    Calls,
    Exchanged,
    Facts,
    Inputs,
    NodeFacts,
    RankTimes,
    Serial,
    SpeedUp,
)
from synk.times.timing import COMPUTE, NODES, PHASES, ROWS, WAIT, Times
from synk.times.tracing import Tracer


@pytest.mark.parametrize("serial", [None, 5.0, 50.0])
@pytest.mark.parametrize("seed", range(3))
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


def test_ranks_of_several_nodes_are_shown_with_their_node():
    times = [
        RankTimes(rank, 1, 0.1, 2.0, 0.5, 3.0 - rank, 0.7, 1.25 + rank // 2, rank // 2)
        for rank in range(4)
    ]
    nodes = [
        NodeFacts("first", 2, Exchanged(2, 480_000, 0.5, 1.25)),
        NodeFacts("a" * 60, 2, Exchanged(0, 0, 0.0, 0.0)),
    ]
    made = Facts(
        name="train",
        ranks=4,
        inputs=Inputs([], [], []),
        outputs=[],
        stages=[],
        repeated=None,
        own_statistics=[],
        updates=[],
        precision=None,
        padding=None,
        shapes_compiled=None,
        calls=Calls(7, 1, True, 4, 72, 8, 10.0, times),
        serial=Serial(20.0, 9, 2),
        speed_up=SpeedUp(1.8, 2.0),
        lost=None,
        verdict=None,
        nodes=nodes,
    )
    explanation = Explanation(made)
    lines = str(explanation).splitlines()
    assert lines[0] == "train: 4 ranks on 2 nodes"
    assert max(map(len, lines)) <= 100
    (title,) = (i for i, line in enumerate(lines) if "taking rows" in line)
    found = [line.split() for line in lines[title : title + 7]]
    assert found[0][-1] == "nodes"
    assert found[1] == ["node", "0", "(first)"]
    assert found[4][:2] == ["node", "1"]
    for rank, line in enumerate([*found[2:4], *found[5:7]]):
        assert line[:2] == ["rank", str(rank)]
        assert line[-4:] == ["700", "us", f"{1.25 + rank // 2}", "ms"]
    said = " ".join(str(explanation).split())
    assert (
        "exchanged node 0 (first): 2 times in a call; 500 us until all nodes had met,"
        " then 480 kB sent in 1.25 ms"
    ) in said
    assert "): nothing" in said
    text = "".join(ElementTree.fromstring(explanation._repr_html_()).itertext())
    assert "between nodes" in text
    assert "rank 3 (node 1)" in text


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


def test_counting_costs_less_than_two_microseconds_a_call():
    times, calls = Times("f"), 1000

    def count() -> float:
        began = time.perf_counter()
        for _ in range(calls):
            start = time.perf_counter()
            times.begin(start, 5, None)
            times.spent(ROWS)
            times.end(COMPUTE, 0)
            times.returned(start, time.perf_counter())
        return (time.perf_counter() - began) / calls

    assert min(count() for _ in range(50)) < 2e-6
