"""Faults of whole scripts: what is left of them, and what they share."""

from __future__ import annotations

import os
import subprocess
import sys

from processes import is_alive, running, running_in_turn, script_environment, wait_until

IN_A_THREAD = """
import threading

def work():
    synk.fork(3)
    processes.print_pids()
    assert summing()(ROWS) == TOTAL
    {then}

thread = threading.Thread(target=work, daemon={daemon})
thread.start()
{main}
"""
ENDS = {
    "with its thread": ("pass", False, "thread.join()"),
    "before its thread": ("time.sleep(0.5)", False, ""),
    "and leaves its thread": ("time.sleep(60)", True, "time.sleep(0.5)"),
    "by an error of the thread": ("raise SystemExit(3)", False, "thread.join()"),
}


def test_a_session_of_a_thread_ends_with_the_script(tmp_path):
    bodies = {
        name: IN_A_THREAD.format(then=then, daemon=daemon, main=main)
        for name, (then, daemon, main) in ENDS.items()
    }
    with running_in_turn(bodies, tmp_path) as script:
        for name in bodies:
            assert script.expect("turn") == name
            pids = script.expect_pids()
            assert script.expect("ended") == "0"
            assert_have_ended(pids)
        assert script.wait() == 0


def assert_have_ended(pids: list[int]) -> None:
    wait_until(lambda: not any(map(is_alive, pids)), 5, f"end of {pids}")


PYTEST = """
from pathlib import Path
import processes, synk

def test_one():
    synk.fork(2)
    assert processes.summing()(processes.ROWS) == processes.TOTAL
    Path("pids").write_text(" ".join(map(str, processes.all_pids())))
    assert False

def test_two():
    Path("two").touch()
"""


def test_nothing_outlives_pytest_x(tmp_path):
    (tmp_path / "test_of_a_user.py").write_text(PYTEST)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env=script_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done
    assert "1 failed" in done.stdout
    assert not (tmp_path / "two").exists()
    pids = list(map(int, (tmp_path / "pids").read_text().split()))
    assert len(pids) == 2
    assert_have_ended(pids)


JOB = """
import time
from pytensor.compile.mode import Mode
x = pt.dmatrix("x")
f = synk.function([x], pt.exp(-x).sum(), mode=Mode("cvm", "fast_compile"))
synk.fork(2)
print("ready", flush=True)
while not os.path.exists({start!r}):  # both begin to compile at once
    time.sleep(0.001)
np.testing.assert_allclose(f(ROWS), np.exp(-ROWS).sum())
synk.close()
print("right", flush=True)
"""


def test_two_jobs_share_a_compile_cache(tmp_path):
    start = tmp_path / "start"
    body = JOB.format(start=str(start))
    flags = f"{os.environ.get('PYTENSOR_FLAGS', '')},base_compiledir={tmp_path}/code"
    folders = tmp_path / "one", tmp_path / "other"
    for folder in folders:
        folder.mkdir()
    with (
        running(body, folders[0], PYTENSOR_FLAGS=flags) as one,
        running(body, folders[1], PYTENSOR_FLAGS=flags) as other,
    ):
        for script in (one, other):
            script.expect("ready", 60)
        start.touch()
        for script in (one, other):
            script.expect("right", 60)
            assert script.wait(20) == 0
    assert any((tmp_path / "code").rglob("*.so"))
