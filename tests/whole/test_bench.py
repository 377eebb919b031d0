"""`python -m tests.bench`: right numbers, in turns; who fails is told of.

And `python -m synk bench`.
"""

from __future__ import annotations

import dataclasses
import doctest
import itertools
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import psutil
import pytest
from bench import __main__ as command
from bench import families, likelihoods, networks, report, rounds
from bench.driver import Memory, Peer, PeerError, Spec
from bench.rounds import Aim, Entry, Family, Table
from bench.work import Options
from places import BENCH, DOCS, ROOT

TINY = Options(
    ranks=2,
    cores=2,
    repeats=3,
    pause=0.01,
    look=0.05,
    turn=0.002,
    follow=0.05,
    points=200,
    layers=(6, 5, 4),
    rows=24,
    steps=("relu 8", "tanh 12"),
    alone=8,
    filters=(2, 3),
    units=(5, 4),
    side=4,
    images=("cnn 8",),
    nbytes=(4, 4096),
    shape=(6, 4),
    start_limit=120,
    ask_limit=60,
    end_limit=2,
)

QUICKLY = "mode=FAST_COMPILE,linker=py,cxx="
"""PyTensor's flags that have peers compile to Python: their speed is not tested."""


def only(family: Family, *peers: str) -> Family:
    """Return a family in which all other peers need what does not exist."""
    absent = {
        name: spec if name in peers else spec._replace(needs=("no-such-library",))
        for name, spec in family.peers.items()
    }
    return dataclasses.replace(family, peers=absent)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return a function that makes a peer's module of its source."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def write(name: str, source: str) -> str:
        Path(tmp_path, f"{name}.py").write_text(textwrap.dedent(source))
        return name

    return write


# -- the peers that need nothing but synk's own dependencies, and JAX


def in_python(family: Family) -> Family:
    """Return a family whose peers take the mode that the environment names."""
    peers = {
        name: spec._replace(options={**spec.options, "mode": None})
        for name, spec in family.peers.items()
    }
    return dataclasses.replace(family, peers=peers)


AS_IT_COMES = "synk, as it comes, 2 ranks"
BY_JAX = "JAX by hand, all cores"
ROWS = {
    families.likelihood: (AS_IT_COMES, "plain PyTensor, C"),
    families.mlp: (AS_IT_COMES, BY_JAX),
    families.all_reduces: (
        *("synk, in place", "synk, two buffers", "synk, whole call of a function"),
        "synk, whole synk.all_reduce(shared)",
    ),
    families.calls: (
        *("synk, 2 ranks", "plain PyTensor, not parallel"),
        *("multiprocessing.Pool.map", "ProcessPoolExecutor.map"),
    ),
}
PEERS = {
    families.all_reduces: ("synk",),
    families.calls: ("synk", "pytensor", "pool", "executor"),
}
"""Where peers have other names than rows."""


@pytest.mark.parametrize("make", ROWS)
def test_every_row_is_right_and_measured_or_said_to_be_skipped(make, monkeypatch):
    """It is not their speed that is tested here: they compile to Python."""
    labels = ROWS[make]
    if BY_JAX in labels:
        pytest.importorskip("jax")
    monkeypatch.setenv("PYTENSOR_FLAGS", QUICKLY)
    family = only(in_python(make(TINY)), *PEERS.get(make, labels))
    table = rounds.run(family, TINY, print)
    assert table.failed == {}
    assert sorted(table.rounds) == sorted(labels)
    rows = [*table.rounds, *table.skipped]
    assert sorted(rows) == sorted(entry.label for entry in family.entries)
    assert all("no-such-library" in why for why in table.skipped.values())
    for label, of_row in table.rounds.items():
        assert list(of_row) == list(family.columns)
        for times in of_row.values():
            assert len(times) == TINY.repeats
            assert all(0 < time < 60 for time in times)
        assert all(1e7 < used < 1e10 for used in table.memory[label])


def test_the_loops_in_numba_are_right_and_so_is_the_read_of_x(monkeypatch):
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")  # compiling takes 10 s
    family = only(families.likelihood(TINY), "numba by hand, all cores")
    table = rounds.run(family, TINY, print)
    assert table.failed == {}
    assert set(table.rounds) == {"numba by hand, all cores", families.READ}


# -- what is right


@pytest.mark.parametrize("kind", ["relu", "tanh", "cnn"])
def test_the_reference_descends_along_the_numerical_gradient(kind):
    options = dataclasses.replace(TINY, rows=8)
    activation = networks.step_of(f"{kind} 8").activation
    x, labels = networks.data(options, kind)
    x = x.astype("float64")
    params = [
        [w.astype("float64"), b + np.linspace(0.1, 0.2, b.size)]
        for w, b in networks.weights(options, kind)
    ]
    _, grads = networks.loss_and_gradients(params, x, labels, activation)
    for of_layer, of_grads in zip(params, grads, strict=True):
        for param, grad in zip(of_layer, of_grads, strict=True):
            for place in np.ndindex(param.shape):
                ends = []
                for step in (1e-6, -2e-6):
                    param[place] += step
                    loss, _ = networks.loss_and_gradients(params, x, labels, activation)
                    ends.append(loss)
                param[place] += 1e-6
                slope = (ends[0] - ends[1]) / 2e-6
                assert slope == pytest.approx(grad[place], abs=1e-7)


def test_what_is_wrong_is_told():
    right = likelihoods.reference(TINY, "student")
    assert families.judge_likelihood(TINY, "student", [right]) is None
    for place in (0, 1, likelihoods.WIDTH):
        wrong = list(right)
        wrong[place] += 1e-6 * abs(right[0])
        told = families.judge_likelihood(TINY, "student", [wrong])
        assert "should be" in told
    assert "should be" in families.judge_likelihood(TINY, "student", [right[:-1]])
    losses = networks.reference(TINY, "relu 8", families.STEPS)
    for error in (0, 1e-6, 1e-3):
        wrong = [*losses[:-1], losses[-1] + error]
        told = families.judge_losses(TINY, "relu 8", [wrong, wrong])
        assert (told is None) == (error < 1e-5)
    for sums, is_right in (([3, 3], True), ([1, 3], False), ([2, 2], False)):
        assert (families.judge_sums(2, "4", [[3, 3], sums]) is None) == is_right


# -- peers that fail

HANG = "import threading; threading.Event().wait(60)"

NONSENSE = f"""
    import socket, sys
    stranger = socket.socket(socket.AF_UNIX)
    stranger.connect(sys.argv[1])
    stranger.sendall(b"hello\\n")
    {HANG}
"""
AT_START = [
    ("import no_such_module", r"bad: ModuleNotFoundError: .*no_such_module"),
    ("import os; os._exit(3)", "bad: (hung up, )?ended with status 3"),
    ("import os; print('last words', flush=True); os._exit(3)", "\nlast words"),
    (HANG, "bad: not ready after 1 s"),
    (NONSENSE, "bad: ProtocolError: not JSON: b'hello'"),
]


@pytest.mark.parametrize(("source", "error"), AT_START)
def test_a_peer_that_does_not_start_is_told_of_and_ended(module, source, error):
    options = dataclasses.replace(TINY, start_limit=1)
    peer = Peer("bad", Spec(module("misbehaving", source)), options)
    try:
        with pytest.raises(PeerError, match=error):
            peer.wait_until_ready()
    finally:
        peer.end()


QUESTIONS = [
    ("1 / 0", "bad: ZeroDivisionError: division by zero"),
    ("__import__('os')._exit(3)", "bad: hung up, ended with status 3"),
    (f"exec({HANG!r})", "bad: no answer to 'it' in 0.5 s"),
    ("object()", "bad: (hung up|TypeError: .*not JSON serializable)"),
]


@pytest.mark.parametrize(("answer", "error"), QUESTIONS)
def test_a_peer_that_does_not_answer_is_told_of_and_ended(module, answer, error):
    source = f"""
    from contextlib import contextmanager

    @contextmanager
    def opened(options, place):
        yield {{"it": lambda number: {answer}}}
    """
    options = dataclasses.replace(TINY, ask_limit=0.5, end_limit=0.5)
    spec = Spec(module("misbehaving", source), processes="each")
    peer = Peer("bad", spec, options)
    try:
        peer.wait_until_ready()
        with pytest.raises(PeerError, match=error):
            peer.ask("it", 1)
    finally:
        peer.end()


# -- turns

CLOCKED = """
    import json, os, time
    from contextlib import contextmanager

    @contextmanager
    def opened(options, place):
        def work(number):
            start = time.monotonic()
            while time.monotonic() < start + 0.01:
                pass
            with open(os.environ["TURNS"], "a") as file:
                print(json.dumps([NAME, start, time.monotonic()]), file=file)
            return 0.01

        yield {"check": lambda number: VALUE, "work 1": work, "work 2": work}
"""


def clocked(module, values: dict[str, object]) -> Family:
    """Return a family of peers that note when they work; 1 is the right value."""
    peers = {}
    for name, value in values.items():
        source = CLOCKED.replace("NAME", repr(name)).replace("VALUE", repr(value))
        peers[name] = Spec(module(name, source))
    return Family(
        title="a family",
        columns={"1": "one", "2": "two"},
        peers=peers,
        entries=[Entry(name, name, "work {}", "check") for name in values],
        steps=1,
        judge=lambda column, answers: None if answers == [1] else f"{answers} is wrong",
        pause=0.01,
    )


def test_one_peer_works_at_a_time_and_others_begin_in_other_rounds(
    module, tmp_path, monkeypatch
):
    turns = tmp_path / "turns"
    monkeypatch.setenv("TURNS", str(turns))
    family = clocked(module, {"first": 1, "second": 1, "third": 1})
    table = rounds.run(family, TINY, print)
    assert table.failed == {}
    worked = [json.loads(line) for line in turns.read_text().splitlines()]
    for (_, _, end), (_, start, _) in itertools.pairwise(worked):
        assert end < start
    names = [name for name, *_ in worked][-18:]  # three rounds of two columns of three
    a, b, c = "first", "second", "third"
    assert names == 2 * [a, b, c] + 2 * [b, c, a] + 2 * [c, a, b]
    assert table.median(b, "1") == 0.01
    assert table.ratio(b, "1") == 1


def test_a_wrong_result_is_a_failure_and_the_others_go_on(
    module, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("TURNS", str(tmp_path / "turns"))
    family = clocked(module, {"right": 1, "wrong": 2})
    monkeypatch.setattr(command, "GROUPS", {"page": {"some": lambda options: family}})
    json_file = tmp_path / "out.json"
    assert command.main(["--quick", "--repeats", "2", "--json", str(json_file)]) == 1
    shown = capsys.readouterr().out
    assert "FAILED: wrong: wrong, 1: [2] is wrong" in shown
    found = json.loads(json_file.read_text())["tables"]["some"]
    assert found["rounds"] == {"right": {"1": [0.01, 0.01], "2": [0.01, 0.01]}}
    assert "wrong" in found["failed"]


# -- first calls

CACHING = """
    import os
    from contextlib import contextmanager
    from pathlib import Path

    def run(seconds):
        flags = os.environ["PYTENSOR_FLAGS"]
        kept = Path(flags.rpartition("base_compiledir=")[2], "kept")
        names = os.environ["XDG_CACHE_HOME"], os.environ["MY_CACHE"]
        assert names == (str(kept.parent),) * 2
        before = kept.read_text() if kept.exists() else ""
        kept.write_text(before + "x")
        return [0.01, 1 + len(before), seconds]

    @contextmanager
    def opened(options, place):
        yield {"run a": run, "run b": run}
"""


def caching(tmp_path: Path, monkeypatch) -> Table:
    """Return a table with rounds, of a peer that counts its processes on disk."""
    Path(tmp_path, "caching.py").write_text(textwrap.dedent(CACHING))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PYTENSOR_FLAGS", "mode=FAST_COMPILE")
    entry = Entry("one", "p", "", "", run="run {}")
    family = Family(
        title="first calls",
        columns={"a": "column a", "b": "column b"},
        peers={"p": Spec("caching", caches=("MY_CACHE",))},
        entries=[entry, entry._replace(label="chooses", tune="tune {}")],
        steps=1,
        judge=lambda column, answers: None,
        pause=0,
        first=("a", "b"),
    )
    of_row = {"a": [0.01], "b": [0.01]}
    return Table(family, {"one": of_row, "chooses": of_row})


def test_a_first_process_finds_nothing_on_disk_and_the_next_what_it_left(
    tmp_path, monkeypatch
):
    table = caching(tmp_path, monkeypatch)
    rounds.measure_firsts(table, TINY, print)
    assert table.failed == {}
    assert table.cold["one"] == {"a": [0.01, 1, 0], "b": [0.01, 1, 0]}
    assert table.warm["one"] == {"a": [0.01, 2, 0], "b": [0.01, 2, 0]}
    assert table.cold["chooses"]["a"] == [0.01, 1, TINY.follow]


# -- the report


def filled() -> Table:
    """Return a table of known times."""
    family = Family(
        title="a title that is longer than the column of labels, as some of them are",
        columns={str(i): f"column {i}" for i in range(4)},
        peers={},
        entries=[Entry(name, "p", "", "") for name in ("ours", "peer a", "peer b")],
        steps=1,
        judge=lambda column, answers: None,
        pause=0,
        aims=[Aim("peer", {"0": 2, "1": 2})],
    )
    table = Table(family)
    for i, label in enumerate(["ours", "peer a", "peer b"]):
        row = {str(j): [10.0**-j * (i + 1), 1e3, 1e-9] for j in range(4)}
        table.rounds[label] = row
    table.rounds["peer a"]["1"] = [0.3, 0.5, 0.4]
    table.skipped["someone"] = "needs something"
    table.idle = {"peer a": 0.5, "peer b": 0.0}
    return table


def test_the_picture_shows_what_the_command_writes(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.syspath_prepend(str(DOCS))
    for name in [name for name in sys.modules if name.split(".")[0] == "pictures"]:
        monkeypatch.delitem(sys.modules, name)
    from pictures import of_engines

    table = Table(families.likelihood(TINY))
    for i, entry in enumerate(table.family.entries):
        times = {column: [(i + 1) * 1e-3] for column in table.family.columns}
        table.rounds[entry.label] = times
    table.memory[AS_IT_COMES] = Memory(1, 1)
    (tmp_path / "engines.inc").write_text(report.rst([table], TINY))
    monkeypatch.setattr(of_engines, "DOCS", tmp_path)
    (found,) = of_engines.gather()
    assert found.title.startswith("Log-likelihood and its gradient")
    assert list(found.columns) == list(table.family.columns.values())
    for times in found.columns.values():
        assert list(times) == list(table.rounds)
        assert times["synk, C, 2 ranks"] == (0.002, 2.0)
    figure = of_engines.draw([found])
    (part,) = figure.subfigs
    assert len(part.axes) == len(found.columns)
    for ax in part.axes:
        assert len(ax.patches) == len(table.rounds) - 1  # a line for the read of X


@pytest.mark.parametrize("module", [families, networks, report, rounds])
def test_examples_in_docstrings_run(module):
    results = doctest.testmod(module)
    assert results.attempted > 0
    assert results.failed == 0


# -- the program


def test_a_group_in_full_is_written_to_its_page(tmp_path, monkeypatch, capsys):
    family = filled().family
    family.aims.clear()
    groups = {
        "one": {"some": lambda options: family, "more": lambda options: family},
        "two": {"others": lambda options: family},
    }
    monkeypatch.setattr(command, "GROUPS", groups)
    monkeypatch.setattr(command, "DOCS", tmp_path)
    monkeypatch.setattr(command.rounds, "run", lambda *_: filled())
    assert command.main(["one", "--write"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["one.inc"]
    text = (tmp_path / "one.inc").read_text()
    assert text.count("A title that is longer") == 2
    assert "400 ms (4.00)" in text


def test_ending_the_program_ends_all_peers(monkeypatch):
    monkeypatch.setenv("PYTENSOR_FLAGS", QUICKLY)
    program = subprocess.Popen(
        [sys.executable, str(BENCH), "--quick", "--only", "alone"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for line in program.stderr:
            if "round 1" in line:
                break
        else:
            pytest.fail("it ended before the first round")
        peers = psutil.Process(program.pid).children(recursive=True)
        assert peers
        program.terminate()
        assert program.wait(60) == 143
        _, alive = psutil.wait_procs(peers, 60)
        assert not alive
    finally:
        program.kill()
        program.stderr.close()
        program.wait()


@pytest.mark.parametrize("page", [*DOCS.glob("*.rst")], ids=lambda page: page.stem)
def test_scripts_that_pages_name_are_there_and_have_these_options(page):
    text = " ".join(page.read_text().split())
    for name, rest in re.findall(r"python tests/bench/(\w+)\.py([^`]*)", text):
        source = (BENCH / f"{name}.py").read_text()
        compile(source, name, "exec")
        for option in re.findall(r"--[\w-]+", rest):
            assert f'"{option}"' in source, (name, option)


def test_the_command_measures_calls_beside_the_plain_function(tmp_path):
    file = tmp_path / "figures.json"
    command = [sys.executable, "-m", "synk", "bench", "--quick", "--only", "call"]
    done = subprocess.run(
        [*command, "--ranks", "2", "--json", str(file)],
        env=dict(os.environ, PYTENSOR_FLAGS="mode=FAST_COMPILE,cxx="),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(file.read_text())
    for row in rows:
        assert row["ratio"] == row["synk"] / row["other"] > 0
        assert row["what"] in done.stdout
    assert any("empty function" in row["what"] for row in rows)
