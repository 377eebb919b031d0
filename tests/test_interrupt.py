"""Ctrl-C and other signals: what they interrupt, and what is left afterwards."""

from __future__ import annotations

import functools
import importlib
import linecache
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from processes import (
    PY,
    ROWS,
    TOTAL,
    acting,
    all_pids,
    arrive_and_stay,
    await_arrivals,
    board,
    is_alive,
    note,
    rank_pids,
    reducing,
    reset,
    running,
    summing,
    wait_until,
)

import synk
from synk.workers import zygote as zygote_module

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


def to_master(script):
    os.kill(script.pid, signal.SIGINT)


def by_terminal(script):
    os.write(script.terminal, b"\x03")


def assert_ends_well(script, pids):
    """Assert that the script finds its session usable, and ends with all of it."""
    script.expect("interrupted", 5)
    script.expect("usable")
    script.expect("closed", 5)
    assert script.wait() == 0
    wait_until(lambda: not any(map(is_alive, pids)), 5, "end of all processes")


@pytest.mark.parametrize("rank", [0, 1, None], ids=["master", "rank 1", "all"])
@pytest.mark.parametrize("action", ["arrive_and_stay", "arrive_and_compute"])
def test_ctrl_c_in_an_op_interrupts_all_ranks(action, rank, tmp_path):
    count = 2 if rank is None else 1
    body = CALL.format(rank=rank, action=action, count=count) + AFTERWARDS
    with running(body, tmp_path) as script:
        pids = script.expect_pids()
        script.expect("arrived")
        to_group(script)
        assert_ends_well(script, pids)


def test_an_interrupt_of_the_master_alone_reaches_the_ranks(tmp_path):
    body = CALL.format(rank=1, action="arrive_and_stay", count=1) + AFTERWARDS
    with running(body, tmp_path) as script:
        pids = script.expect_pids()
        script.expect("arrived")
        to_master(script)
        assert_ends_well(script, pids)


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
from synk.session import SESSION

synk.fork(2)
processes.print_pids()
call = acting(1, processes.arrive_and_stay)
processes.release()
assert call(ROWS) == TOTAL  # compiled
processes.reset()
pid = processes.rank_pids()[1]
command = SESSION.control.command
os.kill(pid, signal.SIGSTOP)

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


@pytest.mark.parametrize("closes", [False, True])
def test_a_sigterm_handler_can_exit_while_a_rank_is_busy(closes, tmp_path):
    body = f"""
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
    with running(body, tmp_path) as script:
        pids = script.expect_pids()
        script.expect("arrived")
        os.kill(script.pid, signal.SIGTERM)
        assert script.wait(5) == 7, script.seen
        wait_until(lambda: not any(map(is_alive, pids)), 5, "end of all processes")


def test_an_exception_from_a_signal_handler_stops_the_ranks(tmp_path):
    body = (
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
    with running(body, tmp_path) as script:
        pids = script.expect_pids()
        script.expect("arrived")
        os.kill(script.pid, signal.SIGALRM)
        assert_ends_well(script, pids)


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


# -- an interrupt at any line


SOURCE = str(Path(synk.__file__).parent)

SAFE_FUNCTIONS = ("_sleep", "__del__")
"""Signals are held back there, and what finalizers raise is only printed."""

SAFE_LINES = (
    "self._in_command = False",
    "finally:  # after an interrupt too, which may come before the assignment",
    "finally:  # after an interrupt too",
    "try:",
    "posix_ipc.unlink_shared_memory(name)",
    "posix_ipc.unlink_semaphore(name)",
)
"""Python does not look for signals between the end of a block and its `finally`."""


class InterruptedAt:
    """Raises KeyboardInterrupt at the k-th line of synk that the master comes to.

    Lines are counted when they are run for the first time. With a k beyond the last of
    them nothing is raised.
    """

    def __init__(self, k: int, files: tuple[str, ...] = ()) -> None:
        self.k, self.files, self._pid = k, files, os.getpid()
        self.raised_at: list[str] = []
        self._seen: set[tuple[str, int]] = set()

    def __enter__(self):
        self._before = sys.gettrace()
        sys.settrace(self._enter_function)
        return self

    def __exit__(self, *_):
        sys.settrace(self._before)

    def _enter_function(self, frame, event, arg):
        path = frame.f_code.co_filename
        if not path.startswith(SOURCE):
            return None
        if self.files and not path.endswith(self.files):
            return None
        names = frame.f_code.co_name, frame.f_back.f_code.co_name
        if any(name in SAFE_FUNCTIONS for name in names):
            return None
        return self._line

    def _line(self, frame, event, arg):
        place = frame.f_code.co_filename, frame.f_lineno
        safe = linecache.getline(*place).strip() in SAFE_LINES
        if event == "line" and not safe and place not in self._seen:
            self._seen.add(place)
            if len(self._seen) == self.k and os.getpid() == self._pid:
                self.raised_at.append(f"{place[0]}:{place[1]}")
                raise KeyboardInterrupt
        return self._line


def interrupt_at(k: int, prepare, other) -> bool:
    """Interrupt a call at line k; return whether there was such a line.

    Afterwards `other`, a function that sums, and the call itself must work.
    """
    call, expected = prepare()
    with InterruptedAt(k) as trace:
        try:
            result = call()
        except KeyboardInterrupt:
            result = None
    if result is not None:  # no such line, or in a finalizer
        np.testing.assert_array_equal(result, expected)
    start = time.monotonic()
    # In this order: another call in between might put right what was left half done,
    # and one at the end makes the next trial begin with other things in memory.
    np.testing.assert_array_equal(call(), expected)
    assert other(ROWS) == TOTAL, trace.raised_at
    assert time.monotonic() - start < 5, trace.raised_at
    return bool(trace.raised_at)


def new_call():
    function = summing()
    return lambda: function(ROWS), TOTAL


def new_reduction():
    values = pytensor.shared(np.ones(5))

    def reduce():
        synk.broadcast(values, np.ones(5))
        synk.all_reduce(values, "sum")
        return synk.get_value(1, values)

    return reduce, np.full(5, float(synk.size()))


def new_stages():
    function = reducing()
    return lambda: function(ROWS), TOTAL


def interrupt_everywhere(prepare, least: int) -> None:
    """Interrupt at line 1, 2, ... until there are no more."""
    lines, other = 0, summing()
    while interrupt_at(lines + 1, prepare, other):
        lines += 1
    assert lines >= least


@pytest.mark.parametrize("prepare", [new_call, new_reduction, new_stages])
def test_a_first_call_can_be_interrupted_at_any_line(prepare):
    with synk.session(3):
        interrupt_everywhere(prepare, 100)


@pytest.mark.parametrize("prepare", [new_call, new_reduction, new_stages])
def test_a_later_call_can_be_interrupted_at_any_line(prepare):
    with synk.session(3):
        prepared = prepare()
        prepared[0]()
        interrupt_everywhere(lambda: prepared, 50)


def new_gathering():
    x = pt.matrix("x", dtype="float64")
    function = synk.function([x], (2 * x, "gather"), mode=PY)
    return lambda: function(ROWS), 2 * ROWS


COMMANDS = [
    ("synk.calls", "worker_call"),
    ("synk.collectives", "worker_reduce"),
    ("synk.collectives", "worker_broadcast"),
    ("synk.replication", "worker_replicate_variables"),
    ("synk.replication", "worker_replicate_function"),
]


@pytest.fixture
def interruptible_rank(monkeypatch):
    """Have rank 1 interrupted at line `at(k)` of its commands; `met()` counts them."""

    def interrupted(work):
        @functools.wraps(work)
        def run(session, *args):
            if session.rank != 1 or not board(K):
                return work(session, *args)
            with InterruptedAt(int(board(K))) as trace:
                try:
                    return work(session, *args)
                finally:
                    if trace.raised_at:
                        note(K, 0)
                        note(MET, 1)
                    elif work.__name__ in LAST_COMMANDS:
                        note(K, 0)

        return run

    for module, name in COMMANDS:
        module = importlib.import_module(module)
        monkeypatch.setattr(module, name, interrupted(getattr(module, name)))


K, MET = 10, 11
LAST_COMMANDS = ("worker_call", "worker_reduce")


@pytest.mark.usefixtures("interruptible_rank")
@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize(
    "prepare", [new_call, new_reduction, new_stages, new_gathering]
)
def test_a_rank_can_be_interrupted_at_any_line(prepare, first):
    with synk.session(3):
        prepared = prepare()
        other = summing()
        if not first:
            prepared[0]()
        for k in range(1, 500):
            call, expected = prepare() if first else prepared
            note(K, k)
            note(MET, 0)
            notes = []
            try:
                np.testing.assert_array_equal(call(), expected)
            except KeyboardInterrupt as error:
                notes = error.__notes__
            assert any("rank 1 of 3" in line for line in notes) == board(MET)
            note(K, 0)
            start = time.monotonic()
            np.testing.assert_array_equal(call(), expected)
            assert other(ROWS) == TOTAL
            assert time.monotonic() - start < 5
            if not board(MET):
                break
    assert k > 10
    assert not board(MET)


FORKING = ("session.py", "channel.py", "control.py", "shm.py", "affinity.py", "loop.py")


def test_fork_can_be_interrupted_at_any_line():
    before = os.sched_getaffinity(0), dict(os.environ), children()
    k = 0
    while True:
        k += 1
        with InterruptedAt(k, files=FORKING) as trace:
            try:
                synk.fork(3)
            except KeyboardInterrupt:
                assert not synk.is_forked(), trace.raised_at
                assert synk.size() == 1
        synk.close()
        after = os.sched_getaffinity(0), dict(os.environ), children()
        assert after == before, trace.raised_at
        if not trace.raised_at:
            break
    assert k > 60
    with synk.session(2):
        assert summing()(ROWS) == TOTAL


def children() -> list[str]:
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    return path.read_text().split()


def test_close_ends_everything_though_interrupted(monkeypatch):
    before = os.sched_getaffinity(0), dict(os.environ)
    original = zygote_module.Zygote._has_ended
    raised = []

    def interrupted(self, patience):
        if patience:
            raised.append(1)
            raise KeyboardInterrupt
        return original(self, patience)

    synk.fork(3)
    pids = all_pids()
    monkeypatch.setattr(zygote_module.Zygote, "_has_ended", interrupted)
    with pytest.raises(KeyboardInterrupt):
        synk.close()
    assert raised
    assert not synk.is_forked()
    assert (os.sched_getaffinity(0), dict(os.environ)) == before
    wait_until(lambda: not any(map(is_alive, pids)), 5, "end of the ranks")
    monkeypatch.undo()
    with synk.session(2):
        assert summing()(ROWS) == TOTAL


def test_arrivals_are_seen_by_the_master():
    # What the tests above rely on.
    reset()
    with synk.session(2):
        assert acting(None, arrive_and_stay, 0)(ROWS) == TOTAL
    await_arrivals(2, 0.1)
    reset()
