"""Faults of whole scripts: what is left of them, and what they share."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from elsewhere import ELSEWHERE
from processes import environment, is_alive, running, wait_until

TESTS = Path(__file__).parents[1]

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


@pytest.mark.parametrize("end", ENDS)
def test_a_session_of_a_thread_ends_with_the_script(end, tmp_path):
    then, daemon, main = ENDS[end]
    body = IN_A_THREAD.format(then=then, daemon=daemon, main=main)
    with running(body, tmp_path) as script:
        pids = script.expect_pids()
        assert script.wait(20) == 0
        wait_until(lambda: not any(map(is_alive, pids)), 5, "end of the ranks")


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
        env=environment(),
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
    wait_until(lambda: not any(map(is_alive, pids)), 5, "end of the ranks")


JOB = """
import time
x = pt.matrix("x")
f = synk.function([x], [pt.exp(-x).sum(), pt.tanh(x).mean(axis=0)])
synk.fork(2)
while time.time() < {start}:  # both begin to compile at once
    time.sleep(0.001)
total, means = f(ROWS)
np.testing.assert_allclose(total, np.exp(-ROWS).sum())
np.testing.assert_allclose(means, np.tanh(ROWS).mean(axis=0))
synk.close()
print("right", flush=True)
"""


def test_two_jobs_share_a_compile_cache(tmp_path):
    import time

    body = JOB.format(start=time.time() + 4)
    flags = f"{os.environ.get('PYTENSOR_FLAGS', '')},base_compiledir={tmp_path}/code"
    shared = {"PYTENSOR_FLAGS": flags, "NUMBA_CACHE_DIR": f"{tmp_path}/numba"}
    with (
        running(textwrap.dedent(body), tmp_path, **shared) as one,
        running(textwrap.dedent(body), tmp_path, **shared) as other,
    ):
        for script in (one, other):
            script.expect("right", 60)
            assert script.wait(20) == 0


@pytest.mark.parametrize("fault", ELSEWHERE)
def test_what_is_said_to_be_tested_elsewhere_is(fault):
    file, _, test = ELSEWHERE[fault].partition("::")
    assert f"\ndef {test}(" in (TESTS / file).read_text()
