"""Ctrl-C and other signals: what they interrupt, and what is left afterwards."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from processes import (
    ROWS,
    TOTAL,
    acting,
    all_pids,
    arrive_and_stay,
    await_arrivals,
    is_alive,
    rank_pids,
    reset,
    running,
    running_in_turn,
    summing,
    wait_until,
)

import synk

# -- real signals, to scripts

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
synk.fork(2)
processes.print_pids()
call = acting({rank}, processes.{action})
processes.print_on_arrival({count})
try:
    call(ROWS)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def to_group(script):
    os.killpg(script.pid, signal.SIGINT)


def by_terminal(script):
    os.write(script.terminal, b"\x03")


def assert_ends_well(script, pids):
    """Assert that the script finds its session usable, and ends with all of it."""
    assert_is_usable(script)
    assert script.wait() == 0
    assert_have_ended(pids)


def assert_turn_ends_well(script, pids):
    """Assert the same of a script in turn."""
    assert_is_usable(script)
    assert script.expect("ended", 10) == "0"
    assert_have_ended(pids)


def assert_have_ended(pids):
    wait_until(lambda: not any(map(is_alive, pids)), 5, "end of all processes")


def assert_is_usable(script):
    script.expect("interrupted", 5)
    script.expect("usable")
    script.expect("closed", 5)


def test_ctrl_c_in_an_op_interrupts_all_ranks(tmp_path):
    actions = ["arrive_and_stay", "arrive_and_compute"]
    cases = {
        f"{action} on {rank}": CALL.format(
            rank=rank, action=action, count=2 if rank is None else 1
        )
        + AFTERWARDS
        for action in actions
        for rank in (0, 1, None)
    }
    with running_in_turn(cases, tmp_path) as script:
        for name in cases:
            assert script.expect("turn") == name
            pids = script.expect_pids()
            script.expect("arrived")
            os.killpg(pids[0], signal.SIGINT)
            assert_turn_ends_well(script, pids)


TOO_LATE = (
    """
def too_late(*_):
    raise TimeoutError("alarm")

signal.signal(signal.SIGALRM, too_late)
synk.fork(2)
processes.print_pids()
call = acting(1, processes.arrive_and_stay)
processes.print_on_arrival()
try:
    call(ROWS)
except TimeoutError as error:
    print("interrupted", error, flush=True)
"""
    + AFTERWARDS
)


def test_a_signal_to_the_master_alone_stops_the_ranks(tmp_path):
    # Ctrl-C, and another signal whose handler raises an exception.
    ctrl_c = CALL.format(rank=1, action="arrive_and_stay", count=1) + AFTERWARDS
    cases = {"SIGINT": ctrl_c, "SIGALRM": TOO_LATE}
    with running_in_turn(cases, tmp_path) as script:
        for name in cases:
            assert script.expect("turn") == name
            pids = script.expect_pids()
            script.expect("arrived")
            os.kill(pids[0], signal.Signals[name])
            assert_turn_ends_well(script, pids)


def test_ctrl_c_at_a_terminal_interrupts_all_ranks(tmp_path):
    body = CALL.format(rank=None, action="arrive_and_stay", count=2) + AFTERWARDS
    with running(body, tmp_path, terminal=True) as script:
        pids = script.expect_pids()
        script.expect("arrived")
        by_terminal(script)
        assert_ends_well(script, pids)


def test_ctrl_c_while_ranks_wait_in_a_barrier(tmp_path):
    body = """
    from synk.comm.shm import SharedMemoryComm

    with synk.session(3):  # compiles the kernels: what is interrupted is a wait
        synk.all_reduce(pytensor.shared(np.ones(5)), "sum")
    original = SharedMemoryComm.next_meeting

    def next_meeting(self):
        if self.rank == 1:
            processes.arrive_and_stay()
        return original(self)

    SharedMemoryComm.next_meeting = next_meeting
    synk.fork(3)
    processes.print_pids()
    values = pytensor.shared(np.ones(5))
    processes.print_on_arrival()
    try:
        synk.all_reduce(values, "sum")
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    processes.release()
    synk.broadcast(values, np.ones(5))
    synk.all_reduce(values, "sum")
    assert (synk.get_value(2, values) == 3).all(), synk.get_value(2, values)
    print("usable", flush=True)
    synk.close()
    print("closed", flush=True)
    """
    with running(body, tmp_path) as script:
        pids = script.expect_pids()
        script.expect("arrived")
        to_group(script)
        assert_ends_well(script, pids)


def test_a_second_ctrl_c_kills_ranks_that_do_not_stop(tmp_path):
    body = (
        CALL.format(rank=1, action="arrive_and_ignore", count=1)
        + """
try:
    call(ROWS)
except synk.WorkerDied as error:
    print("dead", error.rank, flush=True)
synk.close()
synk.fork(2)
"""
        + AFTERWARDS
    )
    with running(body, tmp_path) as script:
        pids = script.expect_pids()
        script.expect("arrived")
        to_group(script)
        script.expect("ignored", 5)
        to_group(script)
        script.expect("interrupted", 5)
        wait_until(lambda: not any(map(is_alive, pids[1:])), 5, "end of the ranks")
        assert script.expect("dead", 5) == "1"
        script.expect("usable")
        script.expect("closed", 5)
        assert script.wait() == 0


def test_ctrl_c_again_and_again_leaves_a_usable_session(tmp_path):
    body = (
        """
synk.fork(2)
processes.print_pids()
call = acting(None, processes.arrive_and_stay)
for _ in range(5):
    processes.reset()
    processes.print_on_arrival(2)
    try:
        call(ROWS)
    except KeyboardInterrupt:
        print("again", flush=True)
print("interrupted")
"""
        + AFTERWARDS
    )
    with running(body, tmp_path) as script:
        pids = script.expect_pids()
        for _ in range(5):
            script.expect("arrived")
            to_group(script)
            script.expect("again", 5)
        assert_ends_well(script, pids)


def test_an_interrupt_before_a_rank_has_begun_is_not_lost(tmp_path):
    # The rank is asleep, as one may be that shares its core, when the signal comes.
    body = (
        """
import threading
import psutil
from synk.ranks.session import SESSION

synk.fork(2)
processes.print_pids()
call = acting(1, processes.arrive_and_stay)
processes.release()
assert call(ROWS) == TOTAL  # compiled
processes.reset()
pid = processes.rank_pids()[1]
command = SESSION.control.command
os.kill(pid, signal.SIGSTOP)
# A signal that comes before it has stopped would be taken first.
processes.wait_until(lambda: psutil.Process(pid).status() == "stopped", 10, "stop")

def interrupt():
    launched = lambda: SESSION.control.command > command
    processes.wait_until(launched, 10, "launch")
    os.kill(os.getpid(), signal.SIGINT)
    aborted = lambda: SESSION.control.aborted
    processes.wait_until(aborted, 10, "abort")
    signalled = lambda: int(open(f"/proc/{pid}/status").read().split(
        "ShdPnd:")[1].split()[0], 16) & 2
    processes.wait_until(signalled, 10, "the rank's signal")
    os.kill(pid, signal.SIGCONT)

threading.Thread(target=interrupt).start()
try:
    call(ROWS)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
        + AFTERWARDS
    )
    with running(body, tmp_path) as script:
        pids = script.expect_pids()
        assert_ends_well(script, pids)


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


def test_a_sigterm_handler_can_exit_while_a_rank_is_busy(tmp_path):
    cases = {f"closes: {closes}": LEAVE.format(closes=closes) for closes in (0, 1)}
    with running_in_turn(cases, tmp_path) as script:
        for name in cases:
            assert script.expect("turn") == name
            pids = script.expect_pids()
            script.expect("arrived")
            os.kill(pids[0], signal.SIGTERM)
            assert script.expect("ended", 5) == "7"
            assert_have_ended(pids)


# -- signals to ranks


def test_sigint_does_nothing_to_an_idle_rank_or_the_zygote():
    with synk.session(3):
        call = summing()
        assert call(ROWS) == TOTAL
        before = all_pids()
        for pid in before:
            os.kill(pid, signal.SIGINT)
        assert call(ROWS) == TOTAL
        assert all_pids() == before
        assert all(map(is_alive, before))


def test_sigint_to_a_busy_rank_alone_does_nothing():
    # It may be one that the master sent in the command before.
    with synk.session(2):
        assert acting(1, interrupt_oneself)(ROWS) == TOTAL


def interrupt_oneself() -> None:
    for _ in range(100):
        signal.raise_signal(signal.SIGINT)


def test_the_scripts_signal_handlers_do_not_run_in_the_zygote_or_ranks(tmp_path):
    # One for SIGCHLD that reaps everything would hide how a rank ended.
    caught = []

    def reap(*_):
        caught.append(os.getpid())
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass

    before = signal.signal(signal.SIGCHLD, reap)
    note = signal.signal(signal.SIGUSR2, lambda *_: (tmp_path / "ran").touch())
    try:
        synk.fork(3)
        pids = all_pids()
        assert summing()(ROWS) == TOTAL
        for pid in pids:
            assert not catches(pid, signal.SIGUSR2)
            assert not catches(pid, signal.SIGCHLD)
        os.kill(rank_pids()[2], signal.SIGKILL)
        with pytest.raises(synk.WorkerDied) as error:
            summing()(ROWS)
        assert (error.value.rank, error.value.signal) == (2, signal.SIGKILL)
        synk.close()
    finally:
        signal.signal(signal.SIGCHLD, before)
        signal.signal(signal.SIGUSR2, note)
    assert set(caught) <= {os.getpid()}
    assert not any(map(is_alive, pids))


def catches(pid: int, number: int) -> bool:
    """Tell whether a process has a handler for a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    mask = int(status.split("SigCgt:")[1].split()[0], 16)
    return bool(mask & 1 << (number - 1))


def test_arrivals_are_seen_by_the_master():
    # What the tests above rely on.
    reset()
    with synk.session(2):
        assert acting(None, arrive_and_stay, 0)(ROWS) == TOTAL
    await_arrivals(2, 0.1)
    reset()
