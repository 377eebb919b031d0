"""`tests/bench`: peers take turns, compute the same, and are told of if they fail."""

from __future__ import annotations

import dataclasses
import doctest
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
from bench import cli, engines, families, firsts, networks, report, rounds, units
from bench.driver import Peer, PeerError, Spec
from bench.link import Link
from bench.rounds import Aim, Entry, Family, Table
from places import BENCH
from tiny_bench import QUICKLY, TINY, only


@pytest.fixture
def quickly_compiled(monkeypatch):
    """Have peers compile to Python: it is not their speed that is tested here."""
    monkeypatch.setenv("PYTENSOR_FLAGS", QUICKLY)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return a function that makes a peer's module of its source."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def write(name: str, source: str) -> str:
        Path(tmp_path, f"{name}.py").write_text(textwrap.dedent(source))
        return name

    return write


# -- the peers that need nothing but synk's own dependencies


@pytest.mark.parametrize(
    ("make", "peers", "labels"),
    [
        (families.alone, ("alone",), ["synk, 1 rank", "plain PyTensor"]),
        (
            families.all_reduces,
            ("synk",),
            [
                "synk, in place",
                "synk, two buffers",
                "synk, whole call of a function",
                "synk, whole synk.all_reduce(shared)",
            ],
        ),
        (
            families.calls,
            ("synk", "pytensor", "pool", "executor"),
            [
                "synk, 2 ranks",
                "plain PyTensor, not parallel",
                "multiprocessing.Pool.map",
                "ProcessPoolExecutor.map",
            ],
        ),
    ],
    ids=["alone", "all-reduce", "call"],
)
def test_every_row_is_measured_or_said_to_be_skipped(
    make, peers, labels, quickly_compiled
):
    family = only(make(TINY), *peers)
    table = rounds.run(family, TINY, print)
    assert table.failed == {}
    assert sorted(table.rounds) == sorted(labels)
    assert sorted([*table.rounds, *table.skipped]) == sorted(
        entry.label for entry in family.entries
    )
    assert all("no-such-library" in why for why in table.skipped.values())
    for of_row in table.rounds.values():
        assert list(of_row) == list(family.columns)
        for times in of_row.values():
            assert len(times) == TINY.repeats
            assert all(0 < time < 10 for time in times)


# -- what is right


@pytest.mark.parametrize(
    ("answers", "is_right"),
    [([[3, 3], [3, 3]], True), ([[3, 3], [1, 3]], False), ([[2, 2], [2, 2]], False)],
)
def test_every_sum_on_every_rank_must_be_right(answers, is_right):
    assert (families.judge_sums(2, "4", answers) is None) == is_right


# -- peers that fail

GOOD = """
    from contextlib import contextmanager

    @contextmanager
    def opened(options, place):
        yield {"echo": lambda number: [place.rank, number]}
"""

HANG = "import threading; threading.Event().wait(60)"

AT_START = [
    ("import no_such_module", r"bad: ModuleNotFoundError: .*no_such_module"),
    ("def opened(*_): raise ValueError('not today')", "bad: ValueError: not today"),
    ("import os; os._exit(3)", "bad: (hung up, )?ended with status 3"),
    ("import os; print('last words', flush=True); os._exit(3)", "\nlast words"),
    ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "ended with status -9"),
    (HANG, "bad: not ready after 1 s"),
]
SPEAKING = """
    import socket, sys
    stranger = socket.socket(socket.AF_UNIX)
    stranger.connect(sys.argv[1])
    stranger.sendall({!r})
    {}
"""
NONSENSE = [
    (b"hello\n", "bad: ProtocolError: not JSON: b'hello'"),
    (b"[1]\n", r"bad: ProtocolError: not an object: b'\[1\]'"),
    (b'{"rang": 0}\n', "bad: no greeting: .*rang"),
    (b"begun and not ended", "bad: .*(timed out|TimeoutError)"),
]
AT_START += [(SPEAKING.format(line, HANG), error) for line, error in NONSENSE]


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


@pytest.mark.parametrize("processes", ["one", "each"])
@pytest.mark.parametrize(("answer", "error"), QUESTIONS)
def test_a_peer_that_does_not_answer_is_told_of_and_ended(
    module, answer, error, processes
):
    source = f"""
    from contextlib import contextmanager

    @contextmanager
    def opened(options, place):
        yield {{"it": lambda number: {answer}}}
    """
    options = dataclasses.replace(TINY, ask_limit=0.5, end_limit=0.5)
    spec = Spec(module("misbehaving", source), processes=processes)
    peer = Peer("bad", spec, options)
    try:
        peer.wait_until_ready()
        with pytest.raises(PeerError, match=error):
            peer.ask("it", 1)
    finally:
        peer.end()


def test_all_processes_answer_in_the_order_of_their_ranks(module):
    options = dataclasses.replace(TINY, ranks=3)
    peer = Peer("good", Spec(module("good", GOOD), processes="each"), options)
    try:
        peer.wait_until_ready()
        assert peer.ask("echo", 7) == [[0, 7], [1, 7], [2, 7]]
        with pytest.raises(PeerError, match="KeyError: 'what'"):
            peer.ask("what", 1)
    finally:
        peer.end()


def test_messages_that_come_in_pieces_or_together_are_told_apart():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        link = Link(ours)
        theirs.sendall(b'{"a": 1}\n{"b"')
        assert link.receive(5) == {"a": 1}
        theirs.sendall(b": 2}\n")
        assert link.receive(5) == {"b": 2}
        with pytest.raises(TimeoutError):
            link.receive(0.01)
        theirs.close()
        assert link.receive(5) is None


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
    monkeypatch.setattr(cli, "GROUPS", {"page": {"some": lambda options: family}})
    json_file = tmp_path / "out.json"
    assert cli.main(["--quick", "--repeats", "2", "--json", str(json_file)]) == 1
    shown = capsys.readouterr().out
    assert "FAILED: wrong: wrong, 1: [2] is wrong" in shown
    found = json.loads(json_file.read_text())["tables"]["some"]
    assert found["rounds"] == {"right": {"1": [0.01, 0.01], "2": [0.01, 0.01]}}
    assert "wrong" in found["failed"]


def test_what_is_missing_is_said_to_be_skipped(module, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TURNS", str(tmp_path / "turns"))
    family = clocked(module, {"here": 1, "away": 1, "far": 1})
    family.peers["away"] = family.peers["away"]._replace(needs=("no-such-library",))
    family.peers["far"] = family.peers["far"]._replace(programs=("no-such-program",))
    monkeypatch.setattr(cli, "GROUPS", {"page": {"some": lambda options: family}})
    assert cli.main(["--quick", "--repeats", "1"]) == 0
    shown = capsys.readouterr().out
    assert "skipped: away: needs no-such-library" in shown
    assert "skipped: far: needs no-such-program" in shown


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


def test_a_table_shows_medians_and_multiples_of_the_first_row_in_100_columns():
    lines = report.text(filled()).splitlines()
    assert max(map(len, lines)) <= 100
    at = report.LABEL
    rows = {line[:at].strip(): line[at:].split() for line in lines}
    assert rows["ours"][:6] == ["1.00", "s", "1.00x", "100", "ms", "1.00x"]
    assert rows["peer a"][:6] == ["2.00", "s", "2.00x", "400", "ms", "4.00x"]
    assert rows["peer b"][6:] == ["30.0", "ms", "3.00x", "3.00", "ms", "3.00x"]
    text = "\n".join(lines)
    assert "skipped: someone: needs something" in text
    assert "peer a 50%" in text
    assert "peer b 0%" not in text


def test_aims_are_about_the_fastest_of_each_side():
    table = filled()
    # In column 0 the rows take 1, 2 and 3 s; in column 1 100, 400 and 300 ms.
    assert report.aims(table, Aim("peer", {"0": 2, "1": 2})) == {
        "0": (pytest.approx(2), 2),
        "1": (pytest.approx(3), 2),
    }
    of_two = Aim("peer b", {"1": 2}, ours=("ours", "peer a"))
    assert report.aims(table, of_two) == {"1": (pytest.approx(3), 2)}
    of_one = Aim("peer b", {"0": 2}, ours=("peer a",))
    assert report.aims(table, of_one) == {"0": (pytest.approx(1.5), 2)}
    assert report.aims(table, Aim("nobody", {"0": 2})) == {}
    table.family.aims[:] = [Aim("peer", {"0": 2.5, "1": 2})]
    text = report.text(table)
    assert (
        "aim, peer / synk: column 0 2.00x (>= 2.5 NO), column 1 3.00x (>= 2 yes)"
        in text
    )


def test_tables_of_the_documentation_have_every_cell_under_its_rule():
    text = report.rst([filled()], TINY)
    lines = text.splitlines()
    rules = [i for i, line in enumerate(lines) if line.startswith("==")]
    assert len(rules) == 3
    assert len({lines[i] for i in rules}) == 1
    gaps = [i for i, char in enumerate(lines[rules[0]]) if char == " "]
    for line in lines[rules[0] + 1 : rules[-1]]:
        assert all(i >= len(line) or line[i] in " =" for i in gaps), line
    assert "peer a" in text
    assert "400 ms (4.00)" in text
    assert "Not measured: someone (needs something)." in text


@pytest.mark.parametrize("module", [engines, firsts, networks, units])
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
    monkeypatch.setattr(cli, "GROUPS", groups)
    monkeypatch.setattr(cli, "DOCS", tmp_path)
    monkeypatch.setattr(cli.rounds, "run", lambda *_: filled())
    assert cli.main(["one", "--write"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["one.inc"]
    text = (tmp_path / "one.inc").read_text()
    assert text.count("A title that is longer") == 2
    assert "400 ms (4.00)" in text


@pytest.mark.parametrize("other", [["--quick"], ["--only", "mlp"]])
def test_pages_have_no_figures_of_a_part_or_of_small_sizes(other, capsys):
    with pytest.raises(SystemExit):
        cli.main(["engines", "--write", *other])
    assert "--write is for all of a group in full" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("by", "status"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)], ids=str
)
def test_ending_the_program_ends_all_peers(quickly_compiled, by, status):
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
        os.kill(program.pid, by)
        assert program.wait(20) == status
        _, alive = psutil.wait_procs(peers, 10)
        assert not alive
    finally:
        program.kill()
        program.stderr.close()
        program.wait()
