"""Who may call synk: ranks, threads, calls in calls, and processes of the script."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytensor
import pytest
from processes import (
    ROWS,
    TOTAL,
    acting,
    all_pids,
    arrive_and_stay,
    await_arrivals,
    is_alive,
    release,
    reset,
    summing,
)

import synk
from synk.errors import StateError, WorkerDied
from synk.ranks.session import SESSION

# -- inside a rank


def try_to(what: str) -> None:
    """Do what only the master can; raises StateError."""
    {
        "fork": lambda: synk.fork(2),
        "function": summing,
        "data": lambda: synk.data(np.ones(3)),
        "collective": lambda: synk.all_reduce(pytensor.shared(np.ones(3))),
        "distribute": synk.distribute,
        "call": lambda: _inner[0](ROWS),
    }[what]()


_inner: list[synk.Function] = []


@pytest.mark.parametrize(
    "what", ["fork", "function", "data", "collective", "distribute"]
)
def test_a_rank_that_acts_as_a_master_gets_a_clear_error(what):
    with synk.session(2):
        with pytest.raises(StateError, match="this is rank 1"):
            acting(1, try_to, what)(ROWS)
        assert summing()(ROWS) == TOTAL


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("what", ["fork", "collective", "distribute", "call"])
def test_an_op_on_rank_0_that_calls_synk_is_told_where_it_is(what, ranks):
    with synk.session(ranks):
        _inner[:] = [summing()]
        with pytest.raises(StateError, match="this is rank 0, inside a synk call"):
            acting(0, try_to, what)(ROWS)
        assert _inner.pop()(ROWS) == TOTAL
        assert synk.size() == ranks


def test_close_on_a_rank_does_nothing():
    with synk.session(2):
        assert acting(1, synk.close)(ROWS) == TOTAL
        assert summing()(ROWS) == TOTAL


# -- calls inside calls, and threads


def test_a_call_inside_a_call_is_a_clear_error():
    inner = summing()
    with synk.session(2):
        inner(ROWS)
        with pytest.raises(StateError, match="one at a time"):
            SESSION.run(worker_call_inside, mine=(inner,))
        assert inner(ROWS) == TOTAL


def worker_call_inside(context, function=None):
    """Call a synk function within a command on the master."""
    if function is not None:
        function(ROWS)


def test_a_call_from_a_second_thread_is_a_clear_error():
    reset()
    call = acting(1, arrive_and_stay)
    other = summing()
    with synk.session(2), ThreadPoolExecutor(1) as pool:
        other(ROWS)
        first = pool.submit(call, ROWS)
        await_arrivals(1)
        with pytest.raises(StateError, match="one at a time"):
            other(ROWS)
        values = pytensor.shared(np.ones(3))
        with pytest.raises(StateError, match="one at a time"):
            synk.all_reduce(values)
        release()
        assert first.result(10) == TOTAL
        assert other(ROWS) == TOTAL


def test_a_session_works_from_any_one_thread():
    def work():
        with synk.session(3):
            return summing()(ROWS), all_pids()

    with ThreadPoolExecutor(1) as pool:
        total, pids = pool.submit(work).result(30)
    assert total == TOTAL
    assert not any(map(is_alive, pids))
    before = os.sched_getaffinity(0)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(synk.fork, 3).result(30)
        # The thread that forked ends here, and the ranks stay.
    pids = all_pids()
    call = summing()
    assert call(ROWS) == TOTAL
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(call, ROWS).result(30) == TOTAL
        pool.submit(synk.close).result(30)
    assert not any(map(is_alive, pids))
    assert os.sched_getaffinity(0) == before


def test_of_threads_that_fork_at_once_one_does():
    start = threading.Barrier(4, timeout=30)

    def fork() -> str:
        start.wait()
        try:
            return f"{synk.fork(2)} ranks"
        except StateError as error:
            return str(error)

    for _ in range(5):
        with ThreadPoolExecutor(4) as pool:
            forked = list(pool.map(lambda _: fork(), range(4)))
        try:
            others = [text for text in forked if text != "2 ranks"]
            assert len(others) == 3
            for text in others:
                assert "is forked already" in text
            assert summing()(ROWS) == TOTAL
            assert len(all_pids()) == 2
        finally:
            synk.close()


def test_fork_beside_other_threads_works():
    done = threading.Event()
    threads = [threading.Thread(target=done.wait, args=(30,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    with synk.session(3):
        assert summing()(ROWS) == TOTAL
    done.set()
    for thread in threads:
        thread.join()


# -- processes that the script forks meanwhile


def use_synk_in_child(results, call):
    """Try everything in a child of the master; send what happened."""
    seen = [synk.is_forked(), synk.size()]
    for use in (lambda: call(ROWS), synk.distribute, lambda: try_to("collective")):
        try:
            use()
            seen.append("worked")
        except StateError as error:
            seen.append(str(error))
    synk.close()
    with synk.session(2):  # the child can have ranks of its own
        seen.append(float(summing()(ROWS)))
    results.put(seen)


def test_a_child_of_the_script_has_no_part_in_the_session():
    call = summing()
    context = multiprocessing.get_context("fork")
    with synk.session(3):
        assert call(ROWS) == TOTAL
        pids = all_pids()
        results = context.SimpleQueue()
        child = context.Process(target=use_synk_in_child, args=(results, call))
        child.start()
        child.join(30)
        assert child.exitcode == 0
        forked, size, *errors, total = results.get()
        assert (forked, size, total) == (False, 1, TOTAL)
        assert len(errors) == 3
        assert all("forked from a synk master" in error for error in errors)
        assert all_pids() == pids
        assert all(map(is_alive, pids))
        assert call(ROWS) == TOTAL


def square(number):
    return number * number


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_pool_of_processes_works_beside_a_session(method):
    call = summing()
    context = multiprocessing.get_context(method)
    with synk.session(2):
        with context.Pool(2) as pool:
            assert pool.map(square, range(5)) == [0, 1, 4, 9, 16]
            assert call(ROWS) == TOTAL
        assert call(ROWS) == TOTAL
    if method == "forkserver":
        from multiprocessing.forkserver import _forkserver

        _forkserver._stop()


def test_subprocesses_work_beside_a_session():
    with synk.session(2):
        output = subprocess.run(
            [sys.executable, "-c", "print(6 * 7)"], capture_output=True, check=True
        )
        assert output.stdout == b"42\n"
        assert acting(1, subprocess.run, ("true",))(ROWS) == TOTAL
        assert summing()(ROWS) == TOTAL


def test_somebody_else_may_reap_the_zygote():
    with synk.session(2):
        zygote = all_pids()[0]
        os.kill(zygote, signal.SIGKILL)
        os.waitpid(zygote, 0)
        with pytest.raises(WorkerDied, match="the zygote"):
            summing()(ROWS)
