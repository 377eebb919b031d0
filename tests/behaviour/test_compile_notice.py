"""What a person who waits is told while a function is compiled, and who is told."""

from __future__ import annotations

import io
import os
import re
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from processes import PY, ROWS, TOTAL, run_script, running, summing
from pytensor.compile.mode import Mode
from pytensor.link.vm import VMLinker

import synk
from synk.engines import described
from synk.programs import running as running_programs
from synk.times import compile_notice
from synk.times.compile_notice import Notice

SLOW = """
    import time
    from pytensor.compile.mode import Mode
    from pytensor.link.basic import PerformLinker
    from synk.times import compile_notice

    compile_notice.AFTER, compile_notice.EVERY = 0.1, 0.05

    class SlowLinker(PerformLinker):
        def make_all(self, *args, **kwargs):
            time.sleep({seconds} if synk.rank() == 0 else 0)
            return super().make_all(*args, **kwargs)

    def slow(name):
        x = pt.matrix("x", dtype="float64")
        mode = Mode(SlowLinker(), None)
        return synk.function([x], (x.sum(), "sum"), mode=mode, name=name)

    synk.fork(2)
    f = slow("total")
    {ask}
    {act}
    print("done", f(ROWS), [t.name for t in threading.enumerate()])
    synk.close()
"""
COMPILING = (
    re.escape("synk: compiling total(x) for 2 ranks, a mode of its own (Python): ")
    + r"\d+ s"
)
COMPILED = COMPILING.replace("compiling", "compiled").replace(r"\d+", r"\d+\.\d")


def script(seconds: float = 0.5, ask: str = "", act: str = "") -> str:
    return "    import threading\n" + SLOW.format(seconds=seconds, ask=ask, act=act)


def in_terminal(body: str, path) -> list[str]:
    """Return the lines that come to a terminal; each rewriting is one."""
    with running(body, path, terminal=True) as process:
        assert process.expect("done").startswith(str(TOTAL))
        assert process.wait() == 0
    return [line.rstrip() for line in process.seen if line.strip()]


def test_a_terminal_sees_the_function_the_ranks_the_mode_and_the_seconds(tmp_path):
    *notice, done = in_terminal(script(), tmp_path)
    assert len(notice) >= 3
    for line in notice[:-1]:
        assert re.fullmatch(COMPILING, line), line
    assert re.fullmatch(COMPILED, notice[-1]), notice
    assert 0.5 <= float(notice[-1].split()[-2]) < 5
    assert done.endswith("['MainThread']")  # the thread has ended


def test_a_terminal_sees_nothing_of_what_is_fast(tmp_path):
    (done,) = in_terminal(script(seconds=0), tmp_path)
    assert done.startswith("done")


def test_the_functions_that_distribute_compiles_have_a_line_each(tmp_path):
    act = 'g = slow("other"); synk.distribute()'
    *notice, _ = in_terminal(script(act=act), tmp_path)
    ends = [line for line in notice if line.startswith("synk: compiled")]
    names = {re.match(r"synk: compiled (\w+)", line)[1] for line in ends}
    assert len(ends) == 2
    assert names == {"total", "other"}


def test_a_file_sees_nothing(tmp_path):
    done = run_script(script(), tmp_path)
    assert done.stderr == ""
    assert done.stdout.startswith(f"done {TOTAL}")


def test_a_file_sees_two_lines_if_asked_for(tmp_path):
    done = run_script(script(ask="synk.compile_notice(True)"), tmp_path)
    first, last = done.stderr.splitlines()
    assert re.fullmatch(COMPILING, first)
    assert re.fullmatch(COMPILED, last)


def test_ctrl_c_ends_the_line_and_the_compilation(tmp_path):
    act = "print('go', flush=True)"
    body = script(30, act=act).replace(
        'print("done", f(ROWS)', 'print("done", caught(f)'
    )
    body = body.replace(
        "    synk.fork(2)",
        """
    def caught(f):
        try:
            f(ROWS)
        except KeyboardInterrupt:
            return "interrupted"

    synk.fork(2)""",
    )
    with running(body, tmp_path, terminal=True) as process:
        process.expect("synk: compiling")
        os.write(process.terminal, b"\x03")
        process.expect("synk: stopped compiling total(x) for 2 ranks")
        assert process.expect("done") == "interrupted ['MainThread']"
        assert process.wait() == 0


# -- in this process ------------------------------------------------------------------


class Terminal(io.StringIO):
    """Takes what is written, as a terminal would."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch):
    """Return what is written to stderr, as a terminal that is told at once."""
    stream = Terminal()
    # Not sys.stderr itself, which pytest sets anew when the test begins.
    monkeypatch.setattr(compile_notice, "sys", SimpleNamespace(stderr=stream))
    monkeypatch.setattr(compile_notice, "AFTER", 0.01)
    monkeypatch.setattr(compile_notice, "EVERY", 0.01)
    monkeypatch.delenv(compile_notice.VARIABLE, raising=False)
    return stream


def waited(stream, text: str, seconds: float = 5) -> None:
    deadline = time.monotonic() + seconds
    while text not in stream.getvalue():
        assert time.monotonic() < deadline, stream.getvalue()
        time.sleep(0.002)


def test_a_line_never_breaks_and_covers_the_one_before(terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    with Notice(lambda: f"f({', '.join('x' * 50)})") as notice:
        notice.begin()
        waited(terminal, "compiling")
    *before, last = terminal.getvalue().split("\r")[1:]
    assert all(len(line) <= 59 and "..." in line for line in before)
    assert last.endswith(" s\n")
    assert len(last) > len(before[-1].rstrip())


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
    asked, variable, in_terminal, in_file, terminal, monkeypatch
):
    monkeypatch.setattr(compile_notice, "_asked", [None])
    if variable is not None:
        monkeypatch.setenv("SYNK_COMPILE_NOTICE", variable)
    synk.compile_notice(asked)
    assert compile_notice.is_shown(terminal) == in_terminal
    assert compile_notice.is_shown(io.StringIO()) == in_file


def test_a_notebook_is_looked_at(terminal, monkeypatch):
    OutStream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})
    assert compile_notice.is_shown(OutStream())
    assert not compile_notice.is_shown(io.StringIO())
    assert not compile_notice.is_shown(None)


def test_a_stream_that_is_gone_does_no_harm(terminal):
    with Notice(lambda: "f(x)") as notice:
        notice.begin()
        waited(terminal, "compiling")
        terminal.close()
    assert threading.active_count() >= 1


def test_an_error_is_seen_below_the_line(terminal):
    notice = Notice(lambda: "f(x)")
    with pytest.raises(ZeroDivisionError), notice:
        notice.begin() or waited(terminal, "compiling") or 1 / 0
    *_, last = terminal.getvalue().split("\r")
    assert re.fullmatch(r"synk: stopped compiling f\(x\): \d\.\d s\n", last)


@pytest.mark.parametrize("asked", ["yes", 2, 0.5])
def test_what_is_no_answer_is_refused(asked):
    with pytest.raises(TypeError, match="True, False or None"):
        synk.compile_notice(asked)


def test_the_first_call_is_told_of_where_that_compiles(terminal, monkeypatch):
    monkeypatch.setattr("synk.call.share.compiles_in_calls", lambda mode: True)
    monkeypatch.setattr("synk.ranks.replication.compiles_in_calls", lambda mode: True)
    original = running_programs.run

    def slow(*args):
        waited(terminal, "compiling summing(x) for 1 rank,")
        return original(*args)

    f = summing()
    with synk.session(1), monkeypatch.context() as patched:
        patched.setattr(running_programs, "run", slow)
        assert f(ROWS) == TOTAL
        assert "compiled summing(x) for 1 rank," in terminal.getvalue()
        patched.undo()
        said = terminal.getvalue()
        assert f(ROWS) == TOTAL
        assert terminal.getvalue() == said


def test_a_serial_run_is_told_of_too(terminal, monkeypatch):
    f = summing()
    monkeypatch.setattr(
        f._serial,
        "_compile",
        lambda *args, make=f._serial._compile: (
            waited(terminal, "compiling summing(x) for 1 rank"),
            make(*args),
        )[1],
    )
    with synk.session(2):
        assert f(ROWS, check="serial") == TOTAL


def test_modes_are_described():
    assert described("JAX") == "mode JAX"
    assert described(PY) == "a mode of its own (Python)"
    assert described(Mode(VMLinker(c_thunks=False), None)).endswith("(Python)")
    assert re.fullmatch(r"default mode \((numba|C|Python)\)", described(None))


# -- the progress bar -----------------------------------------------------------------


def test_a_progress_bar_begins_when_everything_is_compiled(monkeypatch):
    tqdm = pytest.importorskip("tqdm")
    made = []

    class Recorded(tqdm.tqdm):
        def __init__(self, *args, **kwargs):
            made.append((kwargs["initial"], times.counted, times.left_out))
            super().__init__(*args, file=io.StringIO(), **kwargs)

    monkeypatch.setattr(tqdm, "tqdm", Recorded)
    f = summing()
    batches = [slice(0, 4)] * 5
    with synk.session(2):
        f._engines.prepare_usual()
        times = f._engines.present.local().times
        totals = f.run(batches, ROWS, progress=True)
        np.testing.assert_array_equal(totals, [ROWS[:4].sum()] * 5)
        f.run(iter(batches), ROWS, progress=True)
    # The first call of all, which compiles for some engines, comes before its bar.
    assert made == [(1, 0, 1), (0, 4, 1)]
