"""Faults of ranks: deaths, remote exceptions, ranks that hang."""

from __future__ import annotations

import os
import pickle
import resource
import signal
import threading
import time

import numpy as np
import pytensor
import pytest
from processes import (
    DEATHS,
    ROWS,
    TOTAL,
    acting,
    all_pids,
    arrive_and_ignore,
    arrive_and_stay,
    await_arrivals,
    die,
    is_alive,
    nothing,
    rank_pids,
    reducing,
    reset,
    run_script,
    since_death,
    stamp,
    summing,
    wait_until,
    worker_mortal,
)

import synk
from synk.comm.shm import SharedMemoryComm
from synk.errors import RemoteError, RemoteTraceback, WorkerDied
from synk.session import SESSION
from synk.workers import zygote as zygote_module


@pytest.fixture(autouse=True)
def no_core_files():
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    yield
    resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


def shared_ones():
    return pytensor.shared(np.ones(5), name="ones")


def assert_works(n: int) -> None:
    """Assert that the running session of `n` ranks computes the right numbers."""
    assert summing()(ROWS) == TOTAL
    assert reducing()(ROWS) == TOTAL
    values = shared_ones()
    synk.all_reduce(values, "sum")
    for rank in range(n):
        np.testing.assert_array_equal(synk.get_value(rank, values), np.full(5, n))


# -- a rank dies: the table


def at_barrier(number: int, act, monkeypatch) -> None:
    """Have rank 2 act when it comes to its barrier of that number, from 1."""
    original = SharedMemoryComm.next_meeting
    seen = []

    def next_meeting(self):
        if self.rank == 2:
            seen.append(1)
            if len(seen) == number:
                act()
        return original(self)

    monkeypatch.setattr(SharedMemoryComm, "next_meeting", next_meeting)


def while_idle(how, monkeypatch):
    synk.fork(3)
    SESSION.run(worker_mortal, 2, how)
    call = summing()
    assert call(ROWS) == TOTAL
    os.kill(rank_pids()[2], signal.SIGUSR1)
    wait_until(lambda: not is_alive(rank_pids()[2]), 5, "death of the rank")
    return lambda: call(ROWS)


def in_a_call(how, monkeypatch):
    synk.fork(3)
    call = acting(2, die, how)
    return lambda: call(ROWS)


def before_a_barrier(how, monkeypatch):
    at_barrier(1, lambda: die(how), monkeypatch)
    synk.fork(3)
    values = shared_ones()
    return lambda: synk.all_reduce(values)


def between_two_barriers(how, monkeypatch):
    at_barrier(2, lambda: die(how), monkeypatch)
    synk.fork(3)
    values = shared_ones()
    return lambda: synk.all_reduce(values)


def between_two_stages(how, monkeypatch):
    at_barrier(2, lambda: die(how), monkeypatch)
    synk.fork(3)
    call = reducing()
    return lambda: call(ROWS)


PLACES = [
    while_idle,
    in_a_call,
    before_a_barrier,
    between_two_barriers,
    between_two_stages,
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@pytest.mark.parametrize("how", DEATHS)
def test_a_dead_rank_is_reported_within_a_second_and_until_close(
    how, place, monkeypatch
):
    call = place(how, monkeypatch)
    pid = rank_pids()[2]
    later = summing()
    values = shared_ones()
    with pytest.raises(WorkerDied) as caught:
        call()
    assert since_death() < 1
    number, code = DEATHS[how]
    expected = (2, pid, number, code)
    for again in (
        call,
        lambda: later(ROWS),
        lambda: synk.all_reduce(values),
        lambda: synk.get_value(1, values),
        lambda: synk.broadcast(values),
        synk.distribute,
    ):
        error = caught.value
        assert (error.rank, error.pid, error.signal, error.exitcode) == expected
        start = time.monotonic()
        with pytest.raises(WorkerDied) as caught:
            again()
        assert time.monotonic() - start < 1
    assert synk.is_forked()
    monkeypatch.undo()
    synk.close()
    with synk.session(3):
        assert_works(3)


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
    run = SESSION.run

    def run_and_kill(work, *args, **options):
        replies = run(work, *args, **options)
        if work.__name__ == "worker_call":
            stamp()
            os.kill(rank_pids()[1], signal.SIGKILL)
            wait_until(lambda: not is_alive(rank_pids()[1]), 5, "death of the rank")
        return replies

    call = summing()
    with synk.session(2):
        monkeypatch.setattr(SESSION, "run", run_and_kill)
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
        with pytest.raises(WorkerDied, match="the zygote") as caught:
            call(ROWS)
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

    monkeypatch.setattr(SESSION, "_serve", lambda rank: die("exit 3"))
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
    assert "synk.close()" in str(killed)
    left = WorkerDied(1, 78, 3)
    assert "rank 1 (pid 78) exited with code 3" in str(left)
    assert "out-of-memory" not in str(left)
    again = pickle.loads(pickle.dumps(killed))
    assert (again.rank, again.pid, again.signal, again.exitcode) == (2, 77, 9, None)


# -- a rank raises


class OfThisModule(Exception):
    """An exception with more to it than a message."""

    def __init__(self, code, reason):
        super().__init__(code, reason)
        self.code, self.reason = code, reason


class NotPicklable(Exception):
    """An exception whose arguments are not those of its constructor."""

    def __init__(self, code, reason):
        super().__init__(f"{reason} ({code})")
        self.hook = lambda: code


ERRORS = {
    "ValueError": lambda: ValueError("bad value", 7),
    "OSError": lambda: FileNotFoundError(2, "no such thing", "there"),
    "own": lambda: OfThisModule(4, "because"),
    "system exit": lambda: SystemExit(5),
    "long": lambda: RuntimeError("x" * 100_000),
}


def fail(name: str) -> None:
    raise ERRORS[name]()


def fail_in_an_unpicklable_way() -> None:
    raise NotPicklable(6, "nothing to be done")


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_on_a_rank_keeps_its_type_and_says_where(name):
    expected = ERRORS[name]()
    call = acting(1, fail, name)
    with synk.session(3):
        with pytest.raises(type(expected)) as caught:
            call(ROWS)
        error = caught.value
        assert error.args == expected.args
        assert vars(error).items() >= vars(expected).items()
        assert isinstance(error.__cause__, RemoteTraceback)
        assert "raise ERRORS[name]()" in str(error.__cause__)
        assert "in perform" in str(error.__cause__)
        notes = [note for note in error.__notes__ if "rank 1 of 3" in note]
        assert len(notes) == 1
        assert "'acting'" in notes[0]
        assert_works(3)


def test_an_error_that_cannot_be_pickled_comes_as_text():
    call = acting(1, fail_in_an_unpicklable_way)
    with synk.session(2):
        with pytest.raises(RemoteError, match=r"nothing to be done \(6\)") as caught:
            call(ROWS)
        assert "NotPicklable" in str(caught.value)
        assert "in fail_in_an_unpicklable_way" in str(caught.value.__cause__)
        assert any("rank 1 of 2" in note for note in caught.value.__notes__)
        assert_works(2)


def test_an_error_on_the_master_is_raised_as_it_is():
    call = acting(0, fail, "own")
    with synk.session(2):
        with pytest.raises(OfThisModule) as caught:
            call(ROWS)
        assert any("rank 0 of 2" in note for note in caught.value.__notes__)
        assert_works(2)


def test_an_error_on_all_ranks_is_raised_once():
    call = acting(None, fail, "ValueError")
    with synk.session(3):
        with pytest.raises(ValueError, match="bad value"):
            call(ROWS)
        assert_works(3)


def test_an_error_on_a_rank_frees_those_that_wait_in_a_barrier(monkeypatch):
    at_barrier(1, lambda: fail("own"), monkeypatch)
    with synk.session(3):
        assert summing()(ROWS) == TOTAL
        values = shared_ones()
        start = time.monotonic()
        with pytest.raises(OfThisModule) as caught:
            synk.all_reduce(values, "sum")
        assert time.monotonic() - start < 1
        note = caught.value.__notes__[-1]
        assert "rank 2 of 3" in note
        assert note.endswith("in reduce")  # not in the function called before
        synk.all_reduce(values, "sum")
        np.testing.assert_array_equal(synk.get_value(1, values), np.full(5, 3.0))
        assert_works(3)


def test_errors_in_a_row_leave_a_working_session():
    call = acting(1, fail, "ValueError")
    with synk.session(2):
        for _ in range(50):
            with pytest.raises(ValueError, match="bad value"):
                call(ROWS)
        assert_works(2)


def test_an_exception_class_of_the_script_comes_back_as_itself(tmp_path):
    result = run_script(
        """
        synk.fork(2)

        class Mine(Exception):
            pass

        class Fails(Act):
            def perform(self, node, inputs, outputs):
                if synk.rank() == 1:
                    raise Mine("of the script")
                outputs[0][0] = inputs[0]

        x = pt.matrix("x", dtype="float64")
        y = Fails(None, processes.nothing)(x)
        f = synk.function([x], (y.sum(), "sum"), mode=PY)
        try:
            f(ROWS)
        except Mine as error:
            print("caught", error, type(error) is Mine)
            print("cause", type(error.__cause__).__name__)
        assert summing()(ROWS) == TOTAL
        print("goes on")
        """,
        tmp_path,
    )
    assert (
        "caught of the script True\ncause RemoteTraceback\ngoes on" in result.stdout
    ), result
    assert result.returncode == 0


def test_a_function_that_failed_once_can_be_called_again():
    reset()
    call = acting(1, fail_the_first_time)
    with synk.session(2):
        with pytest.raises(ZeroDivisionError):
            call(ROWS)
        assert call(ROWS) == TOTAL


_failed: list[int] = []


def fail_the_first_time() -> None:
    if not _failed:
        _failed.append(1)
        raise ZeroDivisionError


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


def test_nothing_happens_to_a_rank_whose_op_does_nothing():
    with synk.session(3):
        assert acting(1, nothing)(ROWS) == TOTAL
