"""What users are told: lines, errors of several ranks, notices; how times add up."""

import gc
import io
import itertools
import time
import traceback

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest

import synk
from synk.errors import Aborted
from synk.memory import limits
from synk.report.explain import losses, time_alone
from synk.report.facts import RankTimes
from synk.signals import without_collection
from synk.times.compile_notice import is_shown
from synk.times.timing import COMPUTE, ROWS, Times
from synk.user_frames import is_users, made_in
from synk.workers.failure import Failure, as_one

# -- errors of ranks -------------------------------------------------------------------


def test_a_group_is_in_the_order_of_time():
    kinds = ValueError, IndexError, KeyError
    for order in itertools.permutations(range(3)):
        failures = {rank: Failure(kinds[rank](), "there", rank) for rank in order}
        stopped = Failure(Aborted(), "there", 3)
        group = as_one([*(failures[rank] for rank in range(3)), stopped], 4)
        assert [type(error) for error in group.exceptions] == [kinds[r] for r in order]


# -- the out-of-memory killer: its counts, in files that tests write -------------------


@pytest.fixture
def counters(tmp_path, monkeypatch):
    """Return a function that writes a file of counts, as the kernel would."""
    monkeypatch.setattr(limits, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(limits, "PROC", tmp_path / "proc")

    def write(path: str, text: str) -> None:
        place = tmp_path / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    return write


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("cgroup/jobs/a/memory.events", "low 0\noom 1\noom_kill {}\n"),  # version 2
        ("cgroup/memory/jobs/a/memory.oom_control", "under_oom 0\noom_kill {}\n"),
        ("cgroup/memory.events", "oom_kill {}\noom_group_kill 0\n"),  # in a container
    ],
)
def test_kills_of_our_own_control_group_are_told(path, text, counters):
    counters("proc/self/cgroup", "3:cpu:/\n2:memory:/jobs/a\n0::/jobs/a\n")
    counters("proc/vmstat", "oom_kill 5\n")
    counters(path, text.format(2))
    kills = limits.OomKills()
    counters("proc/vmstat", "oom_kill 6\n")  # somebody else's
    assert kills.any() is False
    counters(path, text.format(3))
    assert kills.any() is True


def test_the_machines_count_tells_only_that_there_was_none(counters):
    assert limits.OomKills().any() is None  # there are no counts
    counters("proc/vmstat", "pgfree 1\noom_kill 5\n")
    kills = limits.OomKills()
    assert kills.any() is False
    counters("proc/vmstat", "pgfree 1\noom_kill 6\n")
    assert kills.any() is None


# -- whose files and lines -------------------------------------------------------------


def test_whose_a_file_is():
    for path in (__file__, "/home/user/fit.py", "<stdin>"):
        assert is_users(path)
    for path in (synk.__file__, pytensor.__file__, np.__file__, traceback.__file__):
        assert not is_users(path)
    assert not is_users("<frozen runpy>")
    assert not is_users("scipy/linalg/_cythonized_array_utils.pyx")


@pytest.mark.parametrize(
    ("path", "line", "expected"),
    [
        ("/home/user/fit.py", "loss = x", "fit.py:7: `loss = x`"),
        ("/home/user/fit.py", None, "fit.py:7"),
        ("/home/user/fit.py", "loss  =  x + \\", "fit.py:7: `loss = x +`"),
        ("<stdin>", None, None),
        ("<python-input-3>", "loss = x", "`loss = x`"),
        ("/tmp/ipykernel_12/345.py", "loss = x", "a cell:7: `loss = x`"),
        ("/home/user/fit.py", "f(" + "a, " * 40 + ")", "fit.py:7: `f(a, a, a, "),
    ],
)
def test_how_a_line_is_named(path, line, expected):
    x = pt.vector("x")
    inner = (pt.__file__, 1, "vector", "return x")
    x.tag.trace = [[(path, 7, "<module>", line), inner]]
    made = made_in(x)
    assert made == expected or (made or "").startswith(f"{expected}a, ")
    assert len(made or "") < 80


# -- who is told of compilations, and collections of garbage ---------------------------


@pytest.mark.parametrize(
    ("asked", "variable", "in_terminal", "in_file"),
    [
        (None, None, True, False),
        (None, "", True, False),
        (None, "0", False, False),
        (None, "1", True, True),
        (True, "0", True, True),
        (False, "1", False, False),
    ],
)
def test_who_is_asked_decides_where_notices_are_shown(
    asked, variable, in_terminal, in_file, monkeypatch
):
    monkeypatch.delenv("SYNK_COMPILE_NOTICE", raising=False)
    if variable is not None:
        monkeypatch.setenv("SYNK_COMPILE_NOTICE", variable)
    Terminal = type("Terminal", (io.StringIO,), {"isatty": lambda self: True})
    OutStream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})
    synk.compile_notice(asked)
    try:
        assert is_shown(Terminal()) == is_shown(OutStream()) == in_terminal
        assert is_shown(io.StringIO()) == in_file
        assert not is_shown(None)
    finally:
        synk.compile_notice(None)


def test_collection_of_garbage_is_as_it_was_after_the_block():
    try:
        for was_on in (True, False):
            (gc.enable if was_on else gc.disable)()
            with without_collection():
                with without_collection():
                    assert not gc.isenabled()
                assert not gc.isenabled()
            assert gc.isenabled() is was_on
            with pytest.raises(KeyError), without_collection():
                raise KeyError
            assert gc.isenabled() is was_on
    finally:
        gc.enable()


# -- explanations ---------------------------------------------------------------------


@pytest.mark.parametrize("serial", [None, 5.0, 50.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_parts_of_a_calls_time_add_up(serial, seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 6))
    ranks = []
    for rank, (rows, own, common, *late) in enumerate(rng.uniform(0, 10, (n, 5))):
        ranks.append(RankTimes(rank, 1, rows, own + common, common, 0.0, *late))
    call = 55.0  # longer than any rank is busy
    lost = losses(ranks, call, serial)
    alone, parts = time_alone(ranks), lost.pop("parts")
    assert call == pytest.approx(alone / n + sum(lost.values()))
    assert min(lost.values()) >= 0
    if serial is not None and serial < alone:
        assert alone / n - parts == pytest.approx(serial / n)


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
