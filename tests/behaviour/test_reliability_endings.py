"""What a script shows while it runs, and what is left of it, however it ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys

import pytest
from processes import TOTAL, Beginner, is_alive, running, segments_of, wait_until

import synk

HOLDS = """
import threading
synk.fork(3)
data = synk.data(np.ones(1000))
values = pytensor.shared(np.ones(100))
assert summing()(ROWS) == TOTAL
synk.all_reduce(values, "sum")
processes.print_pids()
"""
"""A session with ranks that hold shared memory of every kind."""

IDLE = """
print("there", flush=True)
signal.pause()
"""

IN_A_CALL = """
call = acting({rank}, processes.arrive_and_stay)

threading.Thread(target=lambda: (processes.await_arrivals(1),
                                 print("there", flush=True)), daemon=True).start()
call(ROWS)
"""

IN_A_MEETING = """
x = pt.matrix("x", dtype="float64")
late = Act(1, processes.arrive_and_stay)(x)
call = synk.function([x], (synk.ops.all_reduce(late.sum(), "sum"), None), mode=PY)
threading.Thread(target=lambda: (processes.await_arrivals(1),
                                 print("there", flush=True)), daemon=True).start()
call(ROWS)
"""

PLACES = {
    "idle": IDLE,
    "master in a call": IN_A_CALL.format(rank=0),
    "rank in a call": IN_A_CALL.format(rank=1),
    "in a meeting": IN_A_MEETING,
}


def kill_zygote_first(pids: list[int]) -> None:
    os.kill(pids[1], signal.SIGKILL)
    os.kill(pids[0], signal.SIGKILL)


def kill_group(pids: list[int]) -> None:
    os.killpg(pids[0], signal.SIGKILL)


def send(number: int):
    return lambda pids: os.kill(pids[0], number)


KILLS = {
    "SIGKILL when idle": ("idle", send(signal.SIGKILL), signal.SIGKILL),
    "SIGKILL in a call": ("master in a call", send(signal.SIGKILL), signal.SIGKILL),
    "SIGKILL for a rank": ("rank in a call", send(signal.SIGKILL), signal.SIGKILL),
    "SIGKILL in a meeting": ("in a meeting", send(signal.SIGKILL), signal.SIGKILL),
    "SIGTERM in a call": ("rank in a call", send(signal.SIGTERM), signal.SIGTERM),
    "SIGHUP when idle": ("idle", send(signal.SIGHUP), signal.SIGHUP),
    "the zygote first": ("idle", kill_zygote_first, signal.SIGKILL),
    "the group": ("idle", kill_group, signal.SIGKILL),
}

ENDINGS = {
    "the end": ("pass", 0),
    "sys.exit": ("sys.exit(4)", 4),
    "an exception": ("raise ValueError('unhandled')", 1),
    "an exception in a block": (
        "synk.close()\nwith synk.session(2):\n    raise ValueError('unhandled')",
        1,
    ),
    "os._exit": ("os._exit(6)", 6),
    "close": ("synk.close()\nsynk.close()", 0),
    "an error on a rank": ("acting(1, os.stat, 'no such file')(ROWS)", 1),
    "a dead rank": (
        "os.kill(processes.rank_pids()[1], signal.SIGKILL)\nsumming()(ROWS)",
        1,
    ),
    "abort": ("os.abort()", -signal.SIGABRT),
}


def assert_nothing_is_left(pids: list[int]) -> None:
    wait_until(lambda: not any(map(is_alive, pids)), 5, f"end of {pids}")
    # The kernel frees the memory of a process a moment after its end is seen.
    wait_until(lambda: not segments_of(pids), 5, "end of the shared memory")


def test_nothing_outlives_a_master_that_is_killed(tmp_path):
    with contextlib.closing(Beginner(tmp_path)) as beginner:
        for place, kill, number in KILLS.values():
            script = beginner.begin(HOLDS + PLACES[place])
            pids = script.expect_pids()
            assert len(pids) == 4
            script.expect("there")
            assert all(map(is_alive, pids))
            assert segments_of(pids)
            kill(pids)
            assert beginner.ended() == -number
            assert_nothing_is_left(pids)
        assert beginner.end() == 0


def test_nothing_outlives_a_script_that_ends(tmp_path):
    errors = {}
    with contextlib.closing(Beginner(tmp_path)) as beginner:
        for name, (code, status) in ENDINGS.items():
            script = beginner.begin(HOLDS + code)
            pids = script.expect_pids()
            start = len(script.seen)
            assert beginner.ended() == status, script.seen
            errors[name] = "\n".join(script.seen[start:])
            assert_nothing_is_left(pids)
        assert beginner.end() == 0
    assert "FileNotFoundError" in errors["an error on a rank"]
    assert "rank 1 of 3" in errors["an error on a rank"]
    assert "WorkerDied: rank 1" in errors["a dead rank"]
    for name in ("the end", "sys.exit", "os._exit", "close"):
        assert errors[name] == f"ended {ENDINGS[name][1]}"


WORKS = {
    "prints": """
        sys.stdout = os.fdopen(os.dup(1), "w")  # with a buffer, which ranks have too
        print("before", end=" ")
        synk.fork(3)
        acting(None, print, "rank")(ROWS)
        synk.close()
        print("after")
    """,
    # In a process with threads, Python 3.12 and later warn of every fork.
    "warnings are errors": """
        import threading, warnings
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", synk.OversubscriptionWarning)  # is meant here
        done = threading.Event()
        thread = threading.Thread(target=done.wait)
        thread.start()
        with synk.session(3):
            print("total", summing()(ROWS) == TOTAL)
        done.set()
        thread.join()
    """,
    # Functions travel to the ranks through memory.
    "writes no files": """
        os.mkdir(os.path.dirname(__file__) + "/here")
        os.chdir(os.path.dirname(__file__) + "/here")
        for _ in range(2):
            with synk.session(2):
                synk.distribute()
                assert summing()(ROWS) == TOTAL
        print("files", os.listdir("."))
    """,
    "closed streams": """
        for stream in (0, 1, 2):
            os.close(stream)
        sys.stdin = sys.stdout = sys.stderr = None
        with synk.session(3):
            done = summing()(ROWS) == TOTAL
        with open(__file__ + ".out", "w") as file:
            file.write(f"total {done}")
    """,
    "many open files": """
        import resource
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert hard >= 1500
        resource.setrlimit(resource.RLIMIT_NOFILE, (1500, hard))
        files = [open(os.devnull) for _ in range(1100)]
        for _ in range(2):
            synk.fork(3)
            assert summing()(ROWS) == TOTAL
            try:
                acting(1, os._exit, 3)(ROWS)
            except synk.WorkerDied as error:
                print("died", error.exitcode)
            synk.close()
    """,
}

PRINTED = {
    "warnings are errors": ["total True"],
    "writes no files": ["files []"],
    "closed streams": [],
    "many open files": ["died 3", "died 3"],
}


def test_scripts_print_once_write_nothing_and_need_no_streams(tmp_path):
    printed = {}
    with contextlib.closing(Beginner(tmp_path)) as beginner:
        for name, body in WORKS.items():
            start = len(beginner.script.seen)
            script = beginner.begin(body)
            assert beginner.ended() == 0, script.seen
            printed[name] = script.seen[start:-1]
        assert beginner.end() == 0
    text = " ".join(printed.pop("prints"))
    assert [text.count(word) for word in ("before", "rank", "after")] == [1, 3, 1]
    assert printed == PRINTED
    assert (tmp_path / "script.py.out").read_text() == "total True"


# -- what a person who waits is told --------------------------------------------------


SLOW = """
    import io, threading
    from pytensor.compile.mode import Mode
    from pytensor.link.basic import PerformLinker

    class SlowLinker(PerformLinker):
        seconds = 3.0  # the line comes after two

        def make_all(self, *args, **kwargs):
            time.sleep(self.seconds if synk.rank() == 0 else 0)
            return super().make_all(*args, **kwargs)

    def slow(name):
        x = pt.matrix("x", dtype="float64")
        mode = Mode(SlowLinker(), None)
        return synk.function([x], (x.sum(), "sum"), mode=mode, name=name)

    def caught(f):
        try:
            f(ROWS)
        except KeyboardInterrupt:
            return "interrupted"

    synk.fork(2)
    SlowLinker.seconds = 0
    print("fast", slow("fast")(ROWS), flush=True)
    SlowLinker.seconds = 3.0
"""

IN_TERMINAL = (
    SLOW
    + """
    f = slow("total")
    print("done", f(ROWS), [t.name for t in threading.enumerate()], flush=True)
    f(ROWS)
    os.environ["COLUMNS"] = "60"
    g, h = slow("other" * 20), slow("third")
    synk.distribute()
    print("distributed", flush=True)
    print("serial", f(ROWS, check="serial"), flush=True)
    SlowLinker.seconds = 30
    print("end", caught(slow("total")), [t.name for t in threading.enumerate()])
    synk.close()
"""
)

IN_FILE = (
    SLOW
    + """
    print("unasked", slow("unasked")(ROWS), flush=True)
    synk.compile_notice(True)
    print("asked", slow("total")(ROWS), flush=True)
    stderr, sys.stderr = sys.stderr, None
    print("nowhere", slow("nowhere")(ROWS), flush=True)
    sys.stderr = io.StringIO()
    sys.stderr.close()
    print("closed", slow("closed")(ROWS), flush=True)
    sys.stderr = stderr
    synk.close()
"""
)

COMPILING = (
    re.escape("synk: compiling total(x) for 2 ranks, a mode of its own (Python): ")
    + r"\d+ s"
)
COMPILED = COMPILING.replace("compiling", "compiled").replace(r"\d+", r"\d+\.\d")


def lines_to(script, start: str) -> list[str]:
    """Return what comes before a line that starts so."""
    before = len(script.seen)
    script.expect(start, 60)
    return [line.rstrip() for line in script.seen[before:-1] if line.strip()]


def test_a_terminal_sees_the_function_the_ranks_the_mode_and_the_seconds(tmp_path):
    with running(IN_TERMINAL, tmp_path, terminal=True) as script:
        assert lines_to(script, f"fast {TOTAL}") == []
        *notice, last = lines_to(script, "done")
        assert notice
        for line in notice:  # each rewriting is one
            assert re.fullmatch(COMPILING, line), line
        assert re.fullmatch(COMPILED, last), last
        assert float(last.split()[-2]) >= 3.0
        # The thread has ended, and a call that compiles nothing says nothing.
        assert script.seen[-1].endswith("['MainThread']")
        notice = lines_to(script, "distributed")
        assert all(len(line) <= 59 for line in notice)
        ends = [line for line in notice if line.startswith("synk: compiled")]
        assert len(ends) == 2
        assert "compiled third(x)" in "".join(ends)
        assert any("compiled otherother" in line and "..." in line for line in ends)
        assert any(
            "compiled total(x) for 1 rank" in x for x in lines_to(script, "serial")
        )
        script.expect("synk: compiling")
        os.write(script.terminal, b"\x03")
        script.expect("synk: stopped compiling total(x) for 2 ranks")
        assert script.expect("end") == "interrupted ['MainThread']"
        assert script.wait() == 0


def test_a_file_sees_nothing_and_two_lines_if_asked_for(tmp_path):
    with running(IN_FILE, tmp_path, SYNK_COMPILE_NOTICE="") as script:
        assert lines_to(script, "unasked") == [f"fast {TOTAL}"]
        first, last = lines_to(script, "asked")
        assert re.fullmatch(COMPILING, first)
        assert re.fullmatch(COMPILED, last)
        # A stream that is not there, or is gone, does no harm.
        assert lines_to(script, f"nowhere {TOTAL}") == []
        assert lines_to(script, f"closed {TOTAL}") == []
        assert script.wait() == 0


@pytest.mark.parametrize("asked", ["yes", 2, 0.5])
def test_what_is_no_answer_is_refused(asked):
    with pytest.raises(TypeError, match="True, False or None"):
        synk.compile_notice(asked)


# -- nothing else, with empty caches --------------------------------------------------


STEP = """
import numpy as np, pytensor, pytensor.tensor as pt, synk
x, y = pt.matrix("x"), pt.lvector("y")
w = pytensor.shared(np.full((6, 3), 0.1))
loss = LOSS
updates = synk.updates.sgd(synk.grad(loss, [w]), [w], 0.1)
step = synk.function([x, y], loss, updates=updates, mode="MODE")
synk.fork(2)
rng = np.random.default_rng(0)
print(step(rng.normal(size=(8, 6)), rng.integers(0, 3, 8)) > 0)
synk.close()
"""

LOSSES = {
    # Few Ops: each takes long to compile.
    "NUMBA": "((pt.tanh(x @ w).sum(axis=1) - y) ** 2).mean()",
    "JAX": "-synk.nn.log_softmax(x @ w)[pt.arange(y.shape[0]), y].mean()",
}


@pytest.mark.parametrize("mode", [pytest.param("NUMBA", marks=pytest.mark.slow), "JAX"])
def test_a_step_of_a_network_prints_nothing(mode, tmp_path):
    if mode == "JAX":
        pytest.importorskip("jax")
    script = STEP.replace("LOSS", LOSSES[mode]).replace("MODE", mode)
    flags = f"{os.environ.get('PYTENSOR_FLAGS', '')},base_compiledir={tmp_path}/code"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"PYTENSOR_FLAGS": flags.lstrip(",")},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert (done.stdout, done.stderr) == ("True\n", "")
