"""`python -m tests.bench`: right numbers, in turns; who fails is told of."""

import dataclasses
import doctest
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from bench import __main__ as command
from bench import families, likelihoods, networks, report, rounds
from bench.driver import Peer, PeerError, Spec
from bench.rounds import Entry, Family, Table
from bench.work import Options
from places import BENCH, DOCS, ROOT

TINY = Options(
    ranks=2,
    cores=2,
    repeats=3,
    pause=0.01,
    look=0.05,
    turn=0.002,
    points=200,
    layers=(6, 5, 4),
    rows=24,
    steps=("relu 8", "tanh 12"),
    each=6,
    filters=(2, 3),
    units=(5, 4),
    side=4,
    nbytes=(4, 4096),
    shape=(6, 4),
    start_limit=120,
    ask_limit=60,
    end_limit=2,
)

QUICKLY = "mode=FAST_COMPILE,linker=py,cxx="
"""PyTensor's flags that have peers compile to Python: their speed is not tested."""


def only(family: Family, *peers: str) -> Family:
    """Return a family in which all other peers need what does not exist.

    Those that are left take the mode that the environment names.
    """
    found = {
        name: spec._replace(options={**spec.options, "mode": None})
        if name in peers
        else spec._replace(needs=("no-such-library",))
        for name, spec in family.peers.items()
    }
    return dataclasses.replace(family, peers=found)


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return a function that makes a peer's module of its source."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def write(name: str, source: str) -> str:
        Path(tmp_path, f"{name}.py").write_text(textwrap.dedent(source))
        return name

    return write


# -- the peers that need nothing but synk's own dependencies, and JAX

AS_IT_COMES = "synk, as it comes, 2 ranks"
BY_JAX = "JAX by hand, all cores"
IN_C = "plain PyTensor, C"
ROWS = {
    families.likelihood: (AS_IT_COMES, IN_C),
    families.mlp: (AS_IT_COMES, BY_JAX),
    families.all_reduces: (
        *("synk, in place", "synk, two buffers", "synk, whole call of a function"),
        "synk, whole synk.all_reduce(shared)",
    ),
    families.calls: (
        *("synk, 2 ranks", "plain PyTensor, not parallel"),
        *("multiprocessing.Pool.map", "ProcessPoolExecutor.map"),
    ),
    families.exchange: ("a copy, by one core", "1 rank"),
    families.training: ("2 ranks, EASGD",),
}
PEERS = {
    families.all_reduces: ("synk",),
    families.calls: ("synk", "pytensor", "pool", "executor"),
    families.exchange: ("1 rank",),
}
"""Where peers have other names than rows."""


@pytest.mark.parametrize("make", ROWS)
def test_every_row_is_right_and_measured_or_said_to_be_skipped(make, monkeypatch):
    """It is not their speed that is tested here: they compile to Python."""
    labels = ROWS[make]
    if BY_JAX in labels:
        pytest.importorskip("jax")
    if IN_C in labels and not shutil.which("g++"):
        pytest.skip("there is no C compiler")
    monkeypatch.setenv("PYTENSOR_FLAGS", QUICKLY)
    family = only(make(TINY), *PEERS.get(make, labels))
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
        assert 1e7 < table.memory[label] < 1e10


# -- what is right


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
    seen = {}
    for losses, is_right in (([1, 2], True), ([1, 2.00001], True), ([1, 2.1], False)):
        told = families.judge_as_first(seen, 1e-4, "cnn 8", [losses])
        assert (told is None) == is_right
    for sums, is_right in (([3, 3], True), ([1, 3], False), ([2, 2], False)):
        assert (families.judge_sums(2, "4", [[3, 3], sums]) is None) == is_right


# -- peers that fail

HANG = "import threading; threading.Event().wait(60)"
DIES = "import os; print('last words', flush=True); os._exit(3)"


def answering(what: str) -> str:
    return f"""
    from contextlib import contextmanager

    @contextmanager
    def opened(options, place):
        yield {{"it": lambda number: {what}}}
    """


FAILING = [
    ("import no_such_module", {}, r"ModuleNotFoundError: .*no_such_module"),
    (DIES, {}, "(hung up, )?ended with status 3\nlast words"),
    (HANG, {"start_limit": 0.5}, "not ready after 0.5 s"),
    (answering("1 / 0"), {}, "ZeroDivisionError: division by zero"),
    (answering(f"exec({DIES!r})"), {}, "hung up, ended with status 3\nlast words"),
    (answering(f"exec({HANG!r})"), {"ask_limit": 0.5}, "no answer to 'it' in 0.5 s"),
    (answering("lambda: 1"), {}, ".*Can't (get local object|pickle)"),
]


@pytest.mark.parametrize(("source", "limits", "error"), FAILING)
def test_a_peer_that_fails_is_told_of_and_ended(module, source, limits, error):
    options = dataclasses.replace(TINY, end_limit=0.5, **limits)
    spec = Spec(module("misbehaving", source), processes="each")
    peer = Peer("bad", spec, options)

    def use() -> None:
        peer.wait_until_ready()
        peer.ask("it", 1)

    try:
        with pytest.raises(PeerError, match=f"bad: {error}"):
            use()
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


def family_of(peers: dict[str, Spec], entries: list[Entry], **more) -> Family:
    """Return a family of two columns, of which 1 is the right value."""
    return Family(
        title="a family",
        columns={name: f"column {name}" for name in more.get("first", ("1", "2"))},
        peers=peers,
        entries=entries,
        judge=lambda column, answers: None if answers == [1] else f"{answers} is wrong",
        **more,
    )


def test_one_peer_works_at_a_time_and_others_begin_in_other_rounds(
    module, tmp_path, monkeypatch, capsys
):
    turns = tmp_path / "turns"
    monkeypatch.setenv("TURNS", str(turns))
    peers = {}
    for name, value in (("first", 1), ("wrong", 2), ("second", 1), ("third", 1)):
        source = CLOCKED.replace("NAME", repr(name)).replace("VALUE", repr(value))
        peers[name] = Spec(module(name, source))
    family = family_of(peers, [Entry(name, name, "work {}", "check") for name in peers])
    monkeypatch.setattr(command, "GROUPS", {"page": {"some": lambda options: family}})
    assert command.main(["--quick", "--repeats", "3"]) == 1
    worked = [json.loads(line) for line in turns.read_text().splitlines()]
    for (_, _, end), (_, start, _) in itertools.pairwise(worked):
        assert end < start
    names = [name for name, *_ in worked][-18:]  # three rounds of two columns of three
    a, b, c = "first", "second", "third"
    assert names == 2 * [a, b, c] + 2 * [b, c, a] + 2 * [c, a, b]
    shown = capsys.readouterr().out
    assert re.search(r"^second +10\.0 ms \(1\.00\) +10\.0 ms \(1\.00\)$", shown, re.M)
    assert "FAILED: wrong: wrong, 1: [2] is wrong" in shown


# -- first calls

CACHING = """
    import os
    from contextlib import contextmanager
    from pathlib import Path

    def run(_):
        flags = os.environ["PYTENSOR_FLAGS"]
        kept = Path(flags.rpartition("base_compiledir=")[2], "kept")
        names = os.environ["XDG_CACHE_HOME"], os.environ["MY_CACHE"]
        assert names == (str(kept.parent),) * 2
        before = kept.read_text() if kept.exists() else ""
        kept.write_text(before + "x")
        return 1.0 + len(before)

    @contextmanager
    def opened(options, place):
        yield {"run a": run, "run b": run}
"""


def test_a_first_process_finds_nothing_on_disk_and_the_next_what_it_left(
    module, monkeypatch
):
    spec = Spec(module("caching", CACHING), caches=("MY_CACHE",))
    monkeypatch.setenv("PYTENSOR_FLAGS", "mode=FAST_COMPILE")
    entry = Entry("one", "p", run="run {}")
    family = family_of({"p": spec}, [entry], first=("a", "b"))
    table = Table(family, {"one": {"a": [0.01], "b": [0.01]}})
    rounds.measure_firsts(table, TINY, print)
    assert table.failed == {}
    assert table.firsts["one"] == {"a": [1, 2], "b": [1, 2]}
    assert "one  1.00 s / 2.00 s" in report.text(table)


# -- the report, and the program


def test_examples_in_docstrings_run():
    for module in (families, networks, report):
        results = doctest.testmod(module)
        assert results.attempted > 0
        assert results.failed == 0


def test_a_group_in_full_is_written_to_its_page(tmp_path, monkeypatch):
    family = families.calls(TINY)
    times = {column: [2e-3, 9, 0] for column in family.columns}
    table = Table(family, {entry.label: times for entry in family.entries})
    one = {"some": lambda options: family, "more": lambda options: family}
    monkeypatch.setattr(command, "GROUPS", {"one": one, "two": one})
    monkeypatch.setattr(command, "DOCS", tmp_path)
    monkeypatch.setattr(command.rounds, "run", lambda *_: table)
    assert command.main(["one", "--write"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["one.inc"]
    text = (tmp_path / "one.inc").read_text()
    assert text.count("A call of 2 processes that do nothing") == 2
    assert "plain PyTensor, not parallel  2.00 ms (1.00)" in text


def test_commands_that_pages_name_are_there_and_have_these_options():
    named = 0
    for page in DOCS.glob("*.rst"):
        text = " ".join(page.read_text().split())
        for name, rest in re.findall(r"python tests/bench/(\w+)\.py([^`]*)", text):
            source = (BENCH / f"{name}.py").read_text()
            compile(source, name, "exec")
            for option in re.findall(r"--[\w-]+", rest):
                assert f'"{option}"' in source, (name, option)
            named += 1
        asked = r"python -m tests\.bench ([a-z]+(?: --only [a-z-]+)?)"
        for words in re.findall(asked, text):
            command.parse(words.split())
            named += 1
    assert named > 5


def test_the_command_measures_calls_beside_the_plain_function():
    command = [sys.executable, "-m", "tests.bench.beside", "--quick", "--only", "call"]
    done = subprocess.run(
        [*command, "--ranks", "2"],
        env=dict(os.environ, PYTENSOR_FLAGS="mode=FAST_COMPILE,cxx="),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    time = r"([\d.]+) (?:us|ms)"
    rows = re.findall(rf"^(call \D+?) +{time} +{time} +([\d.]+)x", done.stdout, re.M)
    assert [row[0] for row in rows] == [
        "call of an empty function",
        "call with one input and one output",
    ]
    assert all(float(ratio) > 0 for *_, ratio in rows)
