"""Whole scripts: how signals and their ends leave the session, and what they share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from processes import (
    ROWS,
    TOTAL,
    Beginner,
    acting,
    all_pids,
    is_alive,
    running,
    script_environment,
    summing,
    wait_until,
)

import synk


@pytest.fixture(scope="module")
def beginner(tmp_path_factory):
    beginner = Beginner(tmp_path_factory.mktemp("scripts"))
    yield beginner
    beginner.close()


@pytest.fixture(autouse=True)
def world(beginner):
    """Assert that no process is left but the one that begins scripts."""
    yield
    synk.close()
    left = [pid for pid in all_pids() if pid != beginner.script.pid]
    assert not left


def assert_have_ended(pids: list[int]) -> None:
    wait_until(lambda: not any(map(is_alive, pids)), 10, f"end of {pids}")


# -- signals

AFTERWARDS = """
values = pytensor.shared(np.ones(5))
synk.all_reduce(values, "sum")
assert (synk.get_value(1, values) == 2).all(), synk.get_value(1, values)
assert summing()(ROWS) == TOTAL
print("usable", flush=True)
synk.close()
print("closed", flush=True)
"""

CALL = """
def too_late(*_):
    raise TimeoutError("alarm")

signal.signal(signal.SIGALRM, too_late)
synk.fork(2)
processes.print_pids()
call = acting({rank}, processes.{action})
for _ in range({times}):
    processes.reset()
    processes.print_on_arrival({count})
    try:
        call(ROWS)
    except (KeyboardInterrupt, TimeoutError) as error:
        print("interrupted", type(error).__name__, flush=True)
"""


@pytest.mark.parametrize(
    ("action", "rank", "times"),
    [
        ("arrive_and_stay", 0, 1),
        ("arrive_and_stay", 1, 1),
        ("arrive_and_stay", None, 3),
        ("arrive_and_compute", 1, 1),
    ],
)
def test_ctrl_c_in_an_op_interrupts_all_ranks(action, rank, times, beginner):
    count = 2 if rank is None else 1
    body = CALL.format(rank=rank, action=action, count=count, times=times)
    script = beginner.begin(body + AFTERWARDS)
    pids = script.expect_pids()
    for _ in range(times):
        script.expect("arrived")
        os.killpg(pids[0], signal.SIGINT)
        assert script.expect("interrupted") == "KeyboardInterrupt"
    script.expect("closed")
    assert beginner.ended() == 0
    assert_have_ended(pids)


def test_another_signal_whose_handler_raises_stops_the_ranks(beginner):
    body = CALL.format(rank=1, action="arrive_and_stay", count=1, times=1)
    script = beginner.begin(body + AFTERWARDS)
    pids = script.expect_pids()
    script.expect("arrived")
    os.kill(pids[0], signal.SIGALRM)
    assert script.expect("interrupted") == "TimeoutError"
    script.expect("closed")
    assert beginner.ended() == 0
    assert_have_ended(pids)


def test_ctrl_c_at_a_terminal_interrupts_all_ranks(tmp_path):
    body = CALL.format(rank=None, action="arrive_and_stay", count=2, times=1)
    with running(body + AFTERWARDS, tmp_path, terminal=True) as script:
        pids = script.expect_pids()
        script.expect("arrived")
        os.write(script.terminal, b"\x03")
        assert script.expect("interrupted") == "KeyboardInterrupt"
        script.expect("closed")
        assert script.wait() == 0
        assert_have_ended(pids)


STOPPED = """
import threading

def pending(pid):
    "Tell whether SIGINT waits for a process to go on."
    status = open(f"/proc/{pid}/status").read()
    return int(status.split("ShdPnd:")[1].split()[0], 16) & 2

synk.fork(2)
call = acting(1, processes.arrive_and_stay)
processes.release()
assert call(ROWS) == TOTAL  # compiled
processes.reset()
pid = processes.rank_pids()[1]
os.kill(pid, signal.SIGSTOP)
ended = []

def interrupt():
    time.sleep(0.2)  # until the call waits for the rank
    os.kill(os.getpid(), signal.SIGINT)
    processes.wait_until(lambda: ended or pending(pid), 10, "the rank's signal")
    os.kill(pid, signal.SIGCONT)

thread = threading.Thread(target=interrupt)
thread.start()
try:
    call(ROWS)
except KeyboardInterrupt:
    ended.append(1)
    print("interrupted", flush=True)
thread.join()
"""


def test_an_interrupt_before_a_rank_has_begun_is_not_lost(beginner):
    """The rank is asleep, as one may be that shares its core, when the signal comes."""
    script = beginner.begin(STOPPED + AFTERWARDS)
    script.expect("interrupted")
    script.expect("closed")
    assert beginner.ended() == 0


LEAVE = """
def leave(*_):
    if {closes}:
        synk.close()
    sys.exit(7)

signal.signal(signal.SIGTERM, leave)
synk.fork(2)
processes.print_pids()
call = acting(1, processes.arrive_and_stay)
processes.print_on_arrival()
call(ROWS)
"""


@pytest.mark.parametrize("closes", [False, True])
def test_a_sigterm_handler_can_exit_while_a_rank_is_busy(closes, beginner):
    script = beginner.begin(LEAVE.format(closes=closes))
    pids = script.expect_pids()
    script.expect("arrived")
    os.kill(pids[0], signal.SIGTERM)
    assert beginner.ended() == 7
    assert_have_ended(pids)


def test_sigint_does_nothing_to_a_rank_or_the_zygote():
    with synk.session(3):
        call = summing()
        assert call(ROWS) == TOTAL
        before = all_pids()[-3:]
        for pid in before:
            os.kill(pid, signal.SIGINT)
        assert call(ROWS) == TOTAL
        # One that computes may get it late, for the command before.
        assert acting(1, interrupt_oneself)(ROWS) == TOTAL
        assert all_pids()[-3:] == before


def interrupt_oneself() -> None:
    for _ in range(100):
        signal.raise_signal(signal.SIGINT)


HANDLERS = """
caught = []

def reap(*_):
    "Reap everything, which hides how a child has ended."
    caught.append(os.getpid())
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass

def catches(pid, number):
    status = open(f"/proc/{pid}/status").read()
    return int(status.split("SigCgt:")[1].split()[0], 16) >> (number - 1) & 1

signal.signal(signal.SIGCHLD, reap)
signal.signal(signal.SIGUSR2, lambda *_: None)
synk.fork(3)
pids = processes.all_pids()
assert summing()(ROWS) == TOTAL
numbers = signal.SIGUSR2, signal.SIGCHLD
print("handlers", [catches(pid, number) for pid in pids for number in numbers])
os.kill(pids[2], signal.SIGKILL)
try:
    summing()(ROWS)
except synk.WorkerDied as error:
    print("died", error.rank, error.signal)
synk.close()
print("in others", set(caught) - {os.getpid()}, flush=True)
"""


def test_the_scripts_signal_handlers_do_not_run_in_the_zygote_or_ranks(beginner):
    script = beginner.begin(HANDLERS)
    assert script.expect("handlers") == "[0, 0, 0, 0, 0, 0]"
    assert script.expect("died") == "2 9"
    assert script.expect("in others") == "set()"
    assert beginner.ended() == 0


# -- ends

IN_A_THREAD = """
import threading

def work():
    synk.fork(3)
    processes.print_pids()
    assert summing()(ROWS) == TOTAL
    forked.set()
    {then}

forked = threading.Event()
thread = threading.Thread(target=work, daemon={daemon})
thread.start()
{main}
"""
ENDS = {
    "with its thread": ("pass", False, "thread.join()"),
    "before its thread": ("time.sleep(0.3)", False, ""),
    "and leaves its thread": ("time.sleep(60)", True, "forked.wait()"),
    "by an error of the thread": ("raise SystemExit(3)", False, "thread.join()"),
}


@pytest.mark.parametrize(("then", "daemon", "main"), ENDS.values(), ids=[*ENDS])
def test_a_session_of_a_thread_ends_with_the_script(then, daemon, main, beginner):
    script = beginner.begin(IN_A_THREAD.format(then=then, daemon=daemon, main=main))
    pids = script.expect_pids()
    assert beginner.ended() == 0
    assert_have_ended(pids)


CHILD = """
synk.fork(3)
call = summing()
assert call(ROWS) == TOTAL
for ending in (lambda: os.kill(os.getpid(), 9), lambda: sys.exit(0), lambda: None):
    pid = os.fork()
    if pid == 0:
        ending()
        break  # and on to its end, through all exit handlers
    os.waitpid(pid, 0)
    assert call(ROWS) == TOTAL
else:
    print("ranks", all(map(processes.is_alive, processes.all_pids())), flush=True)
"""


def test_a_child_of_the_script_ends_without_harm_to_the_session(beginner):
    assert beginner.begin(CHILD).expect("ranks") == "True"
    assert beginner.ended() == 0


KEEPER = """
synk.fork(3)
processes.print_pids()
pid = os.fork()
if pid == 0:
    signal.alarm(30)
    signal.pause()
print("child", pid, flush=True)
{}os.kill(processes.all_pids()[0], signal.SIGSTOP)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_child_of_the_script_does_not_keep_ranks_alive(beginner):
    """It has copies of the pipes; ranks end with the master all the same."""
    script = beginner.begin(KEEPER.format("# "))
    pids = script.expect_pids()
    child = int(script.expect("child"))
    assert beginner.ended() == -signal.SIGKILL
    assert_have_ended(pids)
    assert is_alive(child)
    os.kill(child, signal.SIGKILL)


def test_idle_ranks_end_with_the_master_though_the_zygote_is_stopped(beginner):
    script = beginner.begin(KEEPER.format(""))
    _, zygote, *ranks = script.expect_pids()
    child = int(script.expect("child"))
    beginner.ended()
    assert_have_ended(ranks)
    os.kill(zygote, signal.SIGCONT)
    assert_have_ended([zygote])
    os.kill(child, signal.SIGKILL)


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


# -- what scripts share

JOB = """
import time
from pytensor.compile.mode import Mode
x = pt.dmatrix("x")
f = synk.function([x], pt.exp(x), mode=Mode("c|py", None))
synk.fork(2)
print("ready", flush=True)
while not os.path.exists({start!r}):  # both begin to compile at once
    time.sleep(0.001)
np.testing.assert_allclose(f(ROWS), np.exp(ROWS))
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
