"""The model of calls on many nodes sends what calls send on two and three."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
import scaling
from launching import ROOT, run
from scaling_inputs import Recorded, heads, likelihood, oversubscribed, step

PAGE = ROOT / "docs" / "performance.rst"
RANKS = 2

CALLS = """
import json, sys
import numpy as np
import synk
sys.path.insert(0, sys.argv[2])
from scaling_inputs import ROWS, likelihood, step

n = synk.fork(int(sys.argv[1]))
from synk.ranks.session import SESSION

class Counting:
    # Takes note of what this master hands to collectives.
    def __init__(self, comm):
        self.comm, self.log = comm, []

    def __getattr__(self, name):
        method = getattr(self.comm, name)
        def call(*args, **kwargs):
            if args:
                self.log.append((name, sizes(*args)))
            return method(*args, **kwargs)
        return call

def sizes(given, into=None, *_):
    # Of the array that is given; what each node receives of all, where that is said.
    counts = list(into[1][0]) if isinstance(into, list) and len(into) == 3 else None
    return memoryview(given[0]).nbytes, counts

link = SESSION.cluster.link
link._comm = counting = Counting(link._comm)
data = synk.data(np.ones((ROWS * n, 24)))
found = []
for f in likelihood(), step(25), step(25_001):
    for _ in range(3):
        counting.log.clear()
        f(data)
    found.append(list(counting.log))
print(json.dumps(found))
link._comm = counting.comm
"""

COLLECTIVES = {
    "heads": "Iallgather",
    "bcast": "Ibcast",
    "all-to-all": "Ialltoallv",
    "all-gather": "Iallgatherv",
    "gather": "Igatherv",
}


@pytest.mark.slow
def test_calls_send_what_the_model_says(tmp_path):
    with oversubscribed(RANKS + 1):
        made = likelihood(), step(25), step(25_001)
        recorded = [Recorded(f, 3 * RANKS) for f in made]
        replies = [len(call.reply()) for call in recorded]
        commands = {
            nodes: [len(call.kept(nodes, RANKS)().message) for call in recorded]
            for nodes in (2, 3)
        }
    large = scaling.LARGE._replace(reduced=scaling.with_loss(8 * 25_001))
    calls = scaling.LIKELIHOOD, scaling.SMALL, large
    for nodes in (2, 3):
        _, out, error = run(CALLS, tmp_path, nodes, RANKS, Path(__file__).parent)
        assert out, error
        said = [
            list(call.steps(nodes, RANKS, *sizes))
            for call, *sizes in zip(calls, commands[nodes], replies, strict=True)
        ]
        for steps, seen in zip(said, json.loads(out), strict=True):
            compare(steps, seen, nodes)


def compare(steps: list[scaling.Step], seen: list[list], nodes: int) -> None:
    """Compare a call's steps with what node 0 has handed to MPI."""
    assert [name for name, _ in seen] == [COLLECTIVES[said.kind] for said in steps]
    for said, (_, (given, counts)) in zip(steps, seen, strict=True):
        if said.kind == "gather":  # node 0 has nothing to reply to itself
            assert counts[0] == 0
            assert counts[1:] == pytest.approx([said.nbytes] * (nodes - 1), rel=0.1)
        elif said.kind == "bcast":
            assert given == pytest.approx(said.nbytes, rel=0.1)
        elif said.kind == "all-gather":
            assert sum(counts) == said.nbytes
        else:
            assert given == said.nbytes, said


def test_a_thousand_heads_take_no_longer_than_they_travel():
    network = scaling.NETWORKS[-1]
    step = scaling.Step("heads", scaling.HEAD)
    assert heads(1024) < scaling.seconds(step, 1024, network, network.message)


def test_the_page_shows_what_the_program_prints(monkeypatch, capsys):
    whole = PAGE.read_text()
    command, *shown = whole.split("$ python tests/whole/nodes/scaling.py")[
        1
    ].splitlines()
    monkeypatch.chdir(ROOT)
    inputs = ["--inputs", str(PAGE.relative_to(ROOT))]
    monkeypatch.setattr(sys, "argv", ["scaling.py", *shlex.split(command), *inputs])
    scaling.main()
    printed = capsys.readouterr().out.splitlines()
    assert printed == [line[4:] for line in shown[: len(printed)]]
