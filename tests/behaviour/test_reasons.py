"""What is said of a death or of a rank that hangs, and the timeout of a call."""

from __future__ import annotations

import copy
import os
import pickle
import re
import signal
import threading
import time

import numpy as np
import pytensor.tensor as pt
import pytest
from processes import (
    PY,
    ROWS,
    TOTAL,
    Act,
    Do,
    acting,
    all_pids,
    arrive,
    arrive_and_stay,
    assert_works,
    at_barrier,
    await_arrivals,
    die,
    is_alive,
    rank_pids,
    reset,
    shared_ones,
    summing,
    wait_until,
)

import synk
from synk.errors import WorkerDied
from synk.memory import cgroups
from synk.ranks import reasons
from synk.ranks.session import SESSION
from synk.user_frames import is_ours
from synk.workers import oom

ACTING = r"function 'acting' \(made in processes\.py:\d+\)"


def stay_in_python() -> None:
    arrive()
    while True:
        time.sleep(0.01)


def stay_in_compiled_code() -> None:
    arrive()
    re.match("(a+)+$", "a" * 60 + "b")  # does not let go of the GIL


def meeting_after(action) -> synk.Function:
    """Return a function in which rank 1 acts before it meets the others."""
    x = pt.matrix("x", dtype="float64")
    total = synk.ops.all_reduce(Act(1, Do(action))(x).sum(), "sum")
    return synk.function([x], (total, None), mode=PY, name="meeting")


# -- deaths


def test_a_death_says_what_the_rank_was_doing():
    call = acting(1, die, "SIGTERM")
    with synk.session(3):
        with pytest.raises(WorkerDied, match=f"SIGTERM while computing {ACTING}; "):
            call(ROWS)
        with pytest.raises(WorkerDied, match=ACTING) as caught:
            call(ROWS)
        assert re.fullmatch("computing " + ACTING, caught.value.doing)


def test_a_death_in_a_collective_says_so(monkeypatch):
    at_barrier(1, lambda: die("exit 3"), monkeypatch)
    synk.fork(3)
    with pytest.raises(WorkerDied, match=r"code 3 while .* reduce; ") as caught:
        synk.all_reduce(shared_ones())
    assert caught.value.rank == 2
    monkeypatch.undo()
    synk.close()


def test_an_idle_rank_died_waiting():
    with synk.session(2):
        assert summing()(ROWS) == TOTAL
        pid = rank_pids()[1]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(pid), 5, "death of the rank")
        with pytest.raises(WorkerDied, match="while waiting for a command"):
            summing()(ROWS)


@pytest.mark.parametrize("how", ["SIGSEGV", "SIGABRT"])
def test_a_death_by_a_fault_shows_the_stack_and_stderr_does_not(how, capfd):
    call = acting(1, die, how)
    with synk.session(2):
        for _ in range(2):  # in the call, and from then on
            with pytest.raises(WorkerDied) as caught:
                call(ROWS)
            stack = caught.value.stack
            assert stack.startswith("Fatal Python error")
            assert re.search(r'processes\.py", line \d+ in die\n', stack)
            assert "in serve" not in stack  # nor the frames of the fork
            assert len(list(filter(is_ours, re.findall('File "(.*)"', stack)))) == 1
            assert str(caught.value).endswith(f"\n\nIts Python stack:\n{stack}")
    assert "Fatal" not in capfd.readouterr().err


def test_all_frames_are_shown_on_request(monkeypatch):
    monkeypatch.setenv("SYNK_FULL_TRACEBACK", "1")
    with synk.session(2):
        with pytest.raises(WorkerDied) as caught:
            acting(1, die, "SIGSEGV")(ROWS)
        assert re.search(r"in serve\n(.|\n)*in fork\n", caught.value.stack)


def test_reasons_survive_pickling_and_copying():
    death = WorkerDied(2, 77, -11, "computing f", "  File ...\n", False, "")
    for again in (copy.copy(death), pickle.loads(pickle.dumps(death))):
        assert str(again) == str(death)
        assert vars(again) == vars(death)


def test_every_session_and_what_comes_back_has_records_of_its_own():
    # The zygote of the first one is kept: it has the records of that session.
    for how, name in [("SIGSEGV", "Segmentation fault"), ("SIGABRT", "Aborted")] * 2:
        with synk.session(2):
            for _ in range(2):
                with pytest.raises(
                    WorkerDied, match=f"while computing {ACTING}"
                ) as caught:
                    acting(1, die, how)(ROWS)
                assert caught.value.stack.count("Fatal Python error") == 1
                assert name in caught.value.stack
                synk.recover()
                assert summing()(ROWS) == TOTAL


# -- the out-of-memory killer: its counts, in files that tests write


@pytest.fixture
def counters(tmp_path, monkeypatch):
    """Return a function that writes a file of counts, as the kernel would."""
    monkeypatch.setattr(cgroups, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(cgroups, "PROC", tmp_path / "proc")

    def write(path: str, text: str) -> None:
        place = tmp_path / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    return write


VERSION_2 = "cgroup/jobs/a/memory.events", "low 0\noom 1\noom_kill {}\n"
VERSION_1 = "cgroup/memory/jobs/a/memory.oom_control", "under_oom 0\noom_kill {}\n"
CONTAINER = "cgroup/memory.events", "oom_kill {}\noom_group_kill 0\n"


@pytest.mark.parametrize(("path", "text"), [VERSION_2, VERSION_1, CONTAINER])
def test_kills_of_our_own_control_group_are_told(path, text, counters):
    counters("proc/self/cgroup", "3:cpu:/\n2:memory:/jobs/a\n0::/jobs/a\n")
    counters("proc/vmstat", "oom_kill 5\n")
    counters(path, text.format(2))
    kills = oom.Kills()
    counters("proc/vmstat", "oom_kill 6\n")  # somebody else's
    assert kills.any() is False
    counters(path, text.format(3))
    assert kills.any() is True


def test_the_machines_count_tells_only_that_there_was_none(counters):
    counters("proc/vmstat", "pgfree 1\noom_kill 5\n")
    kills = oom.Kills()
    assert kills.any() is False
    counters("proc/vmstat", "pgfree 1\noom_kill 6\n")
    assert kills.any() is None


def test_without_counts_nothing_is_known(counters):
    assert oom.Kills().any() is None


@pytest.mark.parametrize(
    ("struck", "message"),
    [
        (True, r"by SIGKILL, by the kernel's out-of-memory killer, while comp.* fewer"),
        (False, r"by SIGKILL while comp.*\(not by the kernel's out-of-memory killer"),
        (None, r"by SIGKILL while comp.* is often the kernel's out-of-memory killer"),
    ],
)
def test_a_kill_says_whether_the_kernel_may_have_done_it(struck, message, monkeypatch):
    monkeypatch.setattr(oom.Kills, "any", lambda self: struck)
    with synk.session(2):
        with pytest.raises(WorkerDied, match=message) as caught:
            acting(1, die, "SIGKILL")(ROWS)
        assert caught.value.out_of_memory is struck


# -- ranks that hang


@pytest.mark.parametrize("action", [stay_in_python, stay_in_compiled_code])
def test_a_timeout_of_a_call_shows_where_the_ranks_are(action):
    reset()
    call = acting(1, action)
    with synk.session(3):
        pids = all_pids()
        start = time.monotonic()
        with pytest.raises(synk.RankTimeout) as caught:
            call(ROWS, timeout=0.2)
        assert 0.2 <= time.monotonic() - start < 4
        text = str(caught.value)
        assert "within 0.2 s (the timeout of this call)" in text
        assert re.search(rf"rank 1 \(pid {pids[1]}\), computing {ACTING}:\n", text)
        assert re.search(rf'test_reasons\.py", line \d+ in {action.__name__}\n', text)
        assert "in serve" not in text
        assert not any(map(is_alive, pids))
        with pytest.raises(WorkerDied, match="killed by synk, as it did not answer"):
            call(ROWS)
        assert "call synk.recover()" in text
        synk.recover()
        assert_works(3)


def test_a_timeout_in_a_meeting_shows_who_is_missing():
    reset()
    f = meeting_after(arrive_and_stay)
    with synk.session(3):
        with pytest.raises(synk.RankTimeout) as caught:
            f(ROWS, timeout=0.3)
        text = str(caught.value)
        assert "not all ranks came to a meeting within 0.3 s" in text
        assert "in arrive_and_stay" in text


def test_a_timeout_of_fork_shows_the_stacks_and_a_stopped_rank_has_none():
    call = summing()
    with synk.session(2, timeout=0.3):
        assert call(ROWS) == TOTAL
        os.kill(rank_pids()[1], signal.SIGSTOP)
        with pytest.raises(synk.RankTimeout, match="no stack: it is stopped") as caught:
            call(ROWS)
        assert "rank 1" in str(caught.value)
        assert "the timeout given to synk.fork" in str(caught.value)


def test_the_timeout_of_a_call_is_for_that_call_and_before_that_of_fork():
    reset()
    slow = acting(1, time.sleep, 0.4)
    with synk.session(2, timeout=0.2):
        assert slow(ROWS, timeout=10) == TOTAL
        assert slow.run([slice(0, 12)], ROWS, timeout=10) == [TOTAL]
        with pytest.raises(synk.RankTimeout, match=r"0\.2 s"):
            slow(ROWS)


def test_the_timeout_of_a_run_counts_for_each_wait():
    slow = acting(1, time.sleep, 0.2)
    with synk.session(2):
        batches = [slice(0, 12)] * 3
        assert slow.run(batches, ROWS, timeout=5).tolist() == [TOTAL] * 3
        with pytest.raises(synk.RankTimeout, match=r"0\.1 s \(the timeout of this"):
            slow.run(batches, ROWS, timeout=0.1)


@pytest.mark.parametrize("wrong", [0, -1, float("nan")])
def test_a_timeout_is_a_positive_number(wrong):
    with synk.session(2):
        with pytest.raises(ValueError, match="positive number of seconds"):
            summing()(ROWS, timeout=wrong)
        with pytest.raises(TypeError, match="number of seconds, got 'soon'"):
            summing()(ROWS, timeout="soon")
        assert_works(2)


def test_an_input_may_be_called_timeout():
    x, timeout = pt.vector("x", dtype="float64"), pt.vector("timeout", dtype="float64")
    f = synk.function([x, timeout], (x * timeout).sum(), mode=PY)
    ones = np.ones(4)
    with synk.session(2):
        assert f(ones, timeout=2 * ones) == 8
        assert f.run([slice(0, 4)], x=ones, timeout=ones) == [4]


def test_ranks_that_come_late_leave_the_session_as_it_is(monkeypatch):
    # They come between the end of the time and the look at who is missing.
    call = acting(1, time.sleep, 0.3)
    timed_out = SESSION._timed_out

    def look_later(expired):
        wait_until(lambda: not SESSION._channel.pending(), 5, "the replies")
        return timed_out(expired)

    with synk.session(2):
        monkeypatch.setattr(SESSION, "_timed_out", look_later)
        with pytest.raises(synk.RankTimeout, match="the session goes on"):
            call(ROWS, timeout=0.1)
        monkeypatch.undo()
        assert_works(2)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_timeout_of_the_users_own_is_an_error_like_others(rank):
    with synk.session(2):
        with pytest.raises(synk.RankTimeout, match="of an Op") as caught:
            acting(rank, fail_with_a_timeout)(ROWS)
        assert any(f"on rank {rank} of 2" in note for note in caught.value.__notes__)
        assert_works(2)


def fail_with_a_timeout() -> None:
    raise synk.RankTimeout("of an Op")


def test_a_rank_that_was_stopped_for_a_while_finishes():
    reset()
    call = summing()
    with synk.session(2):
        assert call(ROWS) == TOTAL
        pid = rank_pids()[1]
        os.kill(pid, signal.SIGSTOP)
        going_on = threading.Timer(0.2, os.kill, (pid, signal.SIGCONT))
        going_on.start()
        start = time.monotonic()
        assert call(ROWS) == TOTAL
        assert time.monotonic() - start > 0.1
        going_on.join()
        assert_works(2)


def test_a_rank_stopped_in_a_meeting_finishes():
    reset()
    f = meeting_after(arrive_and_stop)
    with synk.session(2):
        pid = rank_pids()[1]

        def wake() -> None:
            await_arrivals(1)
            time.sleep(0.1)
            os.kill(pid, signal.SIGCONT)

        waking = threading.Thread(target=wake)
        waking.start()
        assert f(ROWS) == TOTAL
        waking.join()


def arrive_and_stop() -> None:
    arrive()
    os.kill(os.getpid(), signal.SIGSTOP)


def test_stacks_are_asked_for_no_longer_than_there_is_time(monkeypatch):
    monkeypatch.setattr(reasons, "STACKS_DEADLINE", 0.1)
    with synk.session(2):
        assert_works(2)  # so that it has started
        pid = rank_pids()[1]
        os.kill(pid, signal.SIGSTOP)
        start = time.monotonic()
        text = reasons.stacks_of([1], SESSION.records)
        assert 0.1 <= time.monotonic() - start < 1
        assert text.endswith("it is stopped, as by SIGSTOP\n")
        os.kill(pid, signal.SIGCONT)
        assert_works(2)


def test_a_death_tells_what_the_rank_had_done_before():
    f = summing()
    with synk.session(3):
        for _ in range(3):
            assert f(ROWS) == TOTAL
        pid = rank_pids()[1]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(pid), 10, "the death of rank 1")
        with pytest.raises(WorkerDied) as info:
            f(ROWS)
    history = info.value.history
    assert 9 < len(history) <= 256
    times = [float(line.split(" ms  ")[0]) for line in history]
    assert times == sorted(times)
    assert times[-1] == 0
    assert sum("computing function 'summing'" in line for line in history) >= 3
    assert str(info.value).rstrip().endswith("\n".join(history[-4:]))
    assert pickle.loads(pickle.dumps(info.value)).history == history
