"""Faults of ranks: deaths, and ranks that hang."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import threading
import time

import pytest
from processes import (
    ROWS,
    TOTAL,
    acting,
    all_pids,
    arrive_and_ignore,
    arrive_and_stay,
    assert_works,
    await_arrivals,
    die,
    is_alive,
    nothing,
    rank_pids,
    reset,
    running,
    shared_ones,
    since_death,
    stamp,
    summing,
    wait_until,
)

import synk
from synk.errors import WorkerDied
from synk.ranks.session import SESSION
from synk.workers import zygote as zygote_module


@pytest.fixture(autouse=True)
def no_core_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


# -- a rank dies: more than the table in faults/ has


def test_a_rank_killed_from_outside_while_it_computes_is_reported():
    reset()
    call = acting(1, arrive_and_stay)
    with synk.session(2):
        pid = rank_pids()[1]

        def kill():
            await_arrivals(1)
            stamp()
            os.kill(pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        with pytest.raises(WorkerDied) as caught:
            call(ROWS)
        assert since_death() < 1
        killer.join()
    assert (caught.value.rank, caught.value.pid) == (1, pid)
    assert caught.value.signal == signal.SIGKILL


def test_a_rank_that_dies_with_its_reply_unread_is_reported(monkeypatch):
    # The outputs lie in the rank's memory, and the master has not mapped that yet.
    run = SESSION.run_args

    def run_and_kill(work, *args):
        replies = run(work, *args)
        if work.__name__ == "worker_call":
            stamp()
            os.kill(rank_pids()[1], signal.SIGKILL)
            wait_until(lambda: not is_alive(rank_pids()[1]), 5, "death of the rank")
        return replies

    call = summing()
    with synk.session(2):
        monkeypatch.setattr(SESSION, "run_args", run_and_kill)
        with pytest.raises(WorkerDied) as caught:
            call(ROWS)
        assert since_death() < 1
        monkeypatch.undo()
    assert (caught.value.rank, caught.value.signal) == (1, signal.SIGKILL)


def test_the_first_of_many_deaths_is_reported_and_the_session_closes():
    with synk.session(5):
        call = summing()
        assert call(ROWS) == TOTAL
        pids = rank_pids()
        for pid in pids.values():
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(WorkerDied) as caught:
            call(ROWS)
        assert pids[caught.value.rank] == caught.value.pid
    assert not any(map(is_alive, pids.values()))


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "in a call"])
def test_a_killed_zygote_is_reported_and_takes_the_ranks_along(busy):
    reset()
    call = acting(1, arrive_and_stay) if busy else summing()
    with synk.session(3):
        zygote, *pids = all_pids()

        def kill():
            if busy:
                await_arrivals(1)
            stamp()
            os.kill(zygote, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        if not busy:
            killer.join()

        def call_for_a_second():
            call(ROWS)
            # Its ranks outlive it for a moment, and may do one more call.
            while not busy and since_death() < 1:
                call(ROWS)

        with pytest.raises(WorkerDied, match="the zygote") as caught:
            call_for_a_second()
        assert since_death() < 1
        killer.join()
        error = caught.value
        assert (error.rank, error.pid, error.signal) == (-1, zygote, signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, pids)), 5, "end of the ranks")
        with pytest.raises(WorkerDied):
            call(ROWS)
    with synk.session(3):
        assert_works(3)


def test_a_rank_that_cannot_start_is_reported_by_fork(monkeypatch):
    def fork_and_call():
        # A rank runs before it dies: the next fork or the first call says so.
        synk.fork(3)
        summing()(ROWS)

    monkeypatch.setattr(SESSION._zygotes, "_serve", lambda *_: die("exit 3"))
    with pytest.raises(WorkerDied) as caught:
        fork_and_call()
    assert caught.value.exitcode == 3
    monkeypatch.undo()
    synk.close()
    with synk.session(3):
        assert_works(3)


def test_worker_died_says_who_how_and_what_to_do():
    killed = WorkerDied(2, 77, -signal.SIGKILL)
    assert "rank 2 (pid 77) was killed by SIGKILL" in str(killed)
    assert "out-of-memory" in str(killed)
    assert str(killed).endswith("; call synk.recover() or synk.close()")
    left = WorkerDied(1, 78, 3)
    assert "rank 1 (pid 78) exited with code 3" in str(left)
    assert "out-of-memory" not in str(left)
    again = pickle.loads(pickle.dumps(killed))
    assert (again.rank, again.pid, again.signal, again.exitcode) == (2, 77, 9, None)


# -- a rank hangs


def stop_rank(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


@pytest.mark.parametrize("where", ["call", "barrier", "stopped"])
def test_a_rank_that_hangs_is_a_rank_timeout(where):
    reset()
    with synk.session(2, timeout=0.4):
        pids = all_pids()
        if where == "call":
            call = acting(1, arrive_and_ignore)
            values = [ROWS]
        elif where == "stopped":
            call = summing()
            values = [ROWS]
            assert call(ROWS) == TOTAL
            stop_rank(rank_pids()[1])
        else:
            call = synk.all_reduce
            values = [shared_ones()]
            call(*values)
            stop_rank(rank_pids()[1])
        start = time.monotonic()
        with pytest.raises(synk.RankTimeout, match=r"0\.4 s"):
            call(*values)
        assert 0.4 <= time.monotonic() - start < 3
        assert not any(map(is_alive, pids))
        with pytest.raises(WorkerDied):
            call(*values)
    with synk.session(2, timeout=20):
        assert_works(2)


def test_the_time_of_the_masters_own_share_does_not_count():
    reset()
    with synk.session(2, timeout=0.3):
        call = acting(0, take_a_while)
        assert call(ROWS) == TOTAL


def take_a_while() -> None:
    deadline = time.monotonic() + 0.6
    while time.monotonic() < deadline:
        time.sleep(0.01)


def test_close_is_quick_with_ranks_that_hang():
    synk.fork(3)
    pids = all_pids()
    for pid in pids[1:]:
        stop_rank(pid)
    start = time.monotonic()
    synk.close()
    assert time.monotonic() - start < 2
    assert not any(map(is_alive, pids))


def test_close_kills_a_zygote_that_hangs(monkeypatch):
    assert zygote_module._END_DEADLINE == 5
    monkeypatch.setattr(zygote_module, "_END_DEADLINE", 0.2)
    synk.fork(3)
    pids = all_pids()
    stop_rank(pids[0])
    start = time.monotonic()
    synk.close()
    assert time.monotonic() - start < 2
    wait_until(lambda: not any(map(is_alive, pids)), 5, "end of the ranks")


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "in a call"])
def test_a_dead_rank_is_reported_while_the_zygote_is_stopped(busy, monkeypatch):
    monkeypatch.setattr(zygote_module, "_END_DEADLINE", 0.2)
    synk.fork(3)
    call = acting(2, die, "exit 3") if busy else summing()
    zygote, *pids = all_pids()
    stop_rank(zygote)
    if not busy:
        assert call(ROWS) == TOTAL
        stamp()
        os.kill(rank_pids()[2], signal.SIGKILL)
        # It is a zombie until the zygote goes on.
        wait_until(lambda: not is_alive(pids[1]), 5, "death of the rank")
    with pytest.raises(WorkerDied, match=r"rank 2 .* ended") as caught:
        call(ROWS)
    assert since_death() < 1
    error = caught.value
    assert (error.rank, error.pid) == (2, pids[1])
    assert (error.status, error.signal, error.exitcode) == (None, None, None)
    assert synk.recover() == []
    assert not any(map(is_alive, [zygote, *pids]))
    assert_works(3)
    synk.close()


def test_idle_ranks_end_with_the_master_though_the_zygote_is_stopped(tmp_path):
    body = """
    synk.fork(3)
    processes.print_pids()
    assert summing()(ROWS) == TOTAL
    os.kill(processes.all_pids()[0], signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGKILL)
    """
    with running(body, tmp_path) as script:
        _, zygote, *ranks = script.expect_pids()
        script.wait()
        wait_until(lambda: not any(map(is_alive, ranks)), 5, "end of the ranks")
        os.kill(zygote, signal.SIGCONT)
        wait_until(lambda: not is_alive(zygote), 5, "end of the zygote")


def test_nothing_happens_to_a_rank_whose_op_does_nothing():
    with synk.session(3):
        assert acting(1, nothing)(ROWS) == TOTAL
