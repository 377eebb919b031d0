"""The model of calls on many nodes sends what calls send on three."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest
import scaling
from launching import ROOT, run
from places import SUPPORT
from scaling_inputs import Recorded, likelihood, oversubscribed, step

from synk.cluster.keeping import Keeping

PAGE = ROOT / "docs" / "performance.rst"
NODES, RANKS = 3, 2

CALLS = """
import json, sys
import numpy as np
import synk
sys.path[:0] = sys.argv[2:]
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
        recorded = [Recorded(f, NODES * RANKS) for f in made]
        many = Recorded(made[0], 1000 * RANKS)  # told in as few bytes as two
        for nodes in (2, 1000):
            sent = many.command(nodes, RANKS, Keeping(room=0))
            assert len(sent.message) < 1000
        replies = [len(call.reply()) for call in recorded]
        commands = [len(call.kept(NODES, RANKS)().message) for call in recorded]
    large = scaling.LARGE._replace(reduced=scaling.with_loss(8 * 25_001))
    calls = scaling.LIKELIHOOD, scaling.SMALL, large
    _, out, error = run(CALLS, tmp_path, NODES, RANKS, Path(__file__).parent, SUPPORT)
    assert out, error
    seen = json.loads(out)
    for call, *sizes, found in zip(calls, commands, replies, seen, strict=True):
        compare(list(call.steps(NODES, RANKS, *sizes)), found)


def compare(steps: list[scaling.Step], seen: list[list]) -> None:
    """Compare a call's steps with what node 0 has handed to MPI."""
    assert [name for name, _ in seen] == [COLLECTIVES[said.kind] for said in steps]
    for said, (_, (given, counts)) in zip(steps, seen, strict=True):
        if said.kind == "gather":  # node 0 has nothing to reply to itself
            assert counts[0] == 0
            assert counts[1:] == pytest.approx([said.nbytes] * (NODES - 1), rel=0.1)
        elif said.kind == "bcast":
            assert given == pytest.approx(said.nbytes, rel=0.1)
        elif said.kind == "all-gather":
            assert sum(counts) == said.nbytes
        else:
            assert given == said.nbytes, said


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
