"""fork, close and session: what they check, what state they leave, who may call."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
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
    nothing,
    release,
    reset,
    run_script,
    running,
    sockets,
    summing,
    wait_until,
)

import synk
from synk.errors import StateError, WorkerDied
from synk.session import SESSION
from synk.workers import affinity, preconditions, zygote

# -- the states


def test_the_functions_that_tell_the_state():
    assert (synk.rank(), synk.size(), synk.is_forked()) == (0, 1, False)
    assert synk.fork(3) == 3
    assert (synk.rank(), synk.size(), synk.is_forked()) == (0, 3, True)
    seen = SESSION.run(worker_state)
    assert seen == [
        (rank, 3, True, os.getpid() if not rank else None) for rank in range(3)
    ]
    synk.close()
    assert (synk.rank(), synk.size(), synk.is_forked()) == (0, 1, False)


def worker_state(session):
    pid = None if session.rank else os.getpid()
    return synk.rank(), synk.size(), synk.is_forked(), pid


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ("unforked", r"not forked: call synk\.fork"),
        ("closed", r"closed: call synk\.fork"),
    ],
)
def test_calls_need_a_running_session(state, message, monkeypatch):
    call = summing()
    values = pytensor.shared(np.ones(3))
    calls = [
        lambda: call(ROWS),
        lambda: synk.all_reduce(values),
        lambda: synk.broadcast(values),
        lambda: synk.get_value(0, values),
        synk.distribute,
    ]
    with synk.session(2):
        assert call(ROWS) == TOTAL
    monkeypatch.setattr(SESSION, "state", state)
    for uncallable in calls:
        with pytest.raises(StateError, match=message):
            uncallable()
    assert call.as_theano(ROWS) == TOTAL


def test_closing_twice_and_unforked_is_fine():
    synk.close()
    synk.fork(2)
    synk.close()
    synk.close()


def test_a_session_block_closes_after_an_exception():
    pids = []

    def fail():
        with synk.session(2):
            pids.extend(all_pids())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not synk.is_forked()
    assert len(pids) == 2
    assert not any(map(is_alive, pids))


def test_a_session_block_that_was_closed_inside_is_fine():
    with synk.session(2):
        synk.close()
    with synk.session(2):
        assert summing()(ROWS) == TOTAL


def test_functions_and_data_outlive_a_session():
    call = summing()
    rows = synk.data(ROWS)
    for n in (1, 3, 2):
        with synk.session(n):
            assert call(rows) == TOTAL
            assert call(ROWS, batch=4) == ROWS[:4].sum()


def test_a_variable_of_a_former_session_can_be_dropped_in_a_later_one():
    with synk.session(2):
        old = pytensor.shared(np.ones(3))
        synk.all_reduce(old, "sum")
    with synk.session(2):
        new = pytensor.shared(np.ones(3))
        synk.all_reduce(new, "sum")
        del old
        summing()(ROWS)  # whatever ranks are to forget goes along with a command
        synk.all_reduce(new, "sum")
        np.testing.assert_array_equal(synk.get_value(1, new), np.full(3, 4.0))


def test_one_rank_forks_nothing():
    before = psutil.Process().children()
    with synk.session(1) as n:
        assert n == 1
        assert psutil.Process().children() == before
        assert summing()(ROWS) == TOTAL
        values = pytensor.shared(np.ones(3))
        synk.all_reduce(values, "sum")
        np.testing.assert_array_equal(synk.get_value(0, values), np.ones(3))
        with pytest.raises(ZeroDivisionError) as caught:
            acting(0, divide_by_zero)(ROWS)
        assert any("rank 0 of 1" in note for note in caught.value.__notes__)


def divide_by_zero():
    return 1 / 0


def test_by_default_there_is_a_rank_for_every_usable_core():
    cores = affinity.usable_cores()
    with synk.session() as n:
        assert n == len(cores)


# -- the world, looked at from outside


def test_the_processes_are_a_zygote_and_its_ranks():
    before = psutil.Process().children()
    with synk.session(4):
        (zygote,) = {*psutil.Process().children()} - {*before}
        ranks = zygote.children()
        assert [zygote.pid, *(rank.pid for rank in ranks)] == all_pids()
        assert len(ranks) == 3
    assert psutil.Process().children() == before


def test_no_process_has_a_socket():
    before = sockets(os.getpid())
    with synk.session(3):
        assert summing()(ROWS) == TOTAL
        values = pytensor.shared(np.ones(3))
        synk.all_reduce(values, "sum")
        assert sockets(os.getpid()) == before
        for pid in all_pids():
            assert sockets(pid) == before


def test_ranks_are_in_a_process_group_of_their_own():
    # So that Ctrl-C at a terminal reaches the master alone.
    with synk.session(2):
        groups = {os.getpgid(pid) for pid in all_pids()}
    assert len(groups) == 1
    assert os.getpgid(0) not in groups


# -- preconditions: each raises before anything is forked


@pytest.fixture
def nothing_forked(monkeypatch):
    """Assert that the test forks no process."""

    def fork():
        raise AssertionError("forked")

    monkeypatch.setattr(os, "fork", fork)
    yield
    assert not synk.is_forked()
    assert synk.size() == 1


@pytest.mark.usefixtures("nothing_forked")
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"n": 0}, ValueError, "n must be at least 1, got 0"),
        ({"n": -2}, ValueError, "n must be at least 1, got -2"),
        ({"n": 2.0}, TypeError, r"n must be an int, got 2\.0"),
        ({"n": "2"}, TypeError, "n must be an int, got '2'"),
        ({"n": 2, "devices": "gpu"}, ValueError, "devices must be .*'gpu'"),
        ({"n": 2, "threads": 0}, ValueError, "threads must be at least 1, got 0"),
        ({"n": 2, "threads": "1"}, TypeError, "threads must be an int, got '1'"),
        ({"n": 2, "timeout": 0}, ValueError, "timeout must be .* got 0"),
        ({"n": 2, "timeout": -1}, ValueError, "timeout must be .* got -1"),
        ({"n": 2, "timeout": float("nan")}, ValueError, "timeout must be .* got nan"),
        ({"n": 2, "timeout": "5"}, TypeError, "timeout must be .* got '5'"),
        ({"n": 2, "cores": 2}, TypeError, "cores"),
    ],
    ids=str,
)
def test_arguments_of_fork_are_checked(arguments, error, message):
    with pytest.raises(error, match=message):
        synk.fork(**arguments)


def test_a_forked_session_cannot_be_forked():
    with synk.session(2):
        pids = all_pids()
        with pytest.raises(StateError, match=r"forked already, with 2 ranks.*close"):
            synk.fork(2)
        assert all_pids() == pids
        assert summing()(ROWS) == TOTAL


def test_a_broken_session_must_be_closed_before_it_is_forked():
    synk.fork(2)
    with pytest.raises(WorkerDied):
        acting(1, os._exit, 1)(ROWS)
    with pytest.raises(StateError, match=r"close\(\) first"):
        synk.fork(2)
    synk.close()


@pytest.mark.usefixtures("nothing_forked")
@pytest.mark.parametrize("device", ["/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"])
def test_fork_after_a_cuda_context_is_refused(device, monkeypatch):
    readlink = os.readlink
    fd = os.open(os.devnull, os.O_RDONLY)

    def linked(path, **options):
        if str(path) == f"/proc/self/fd/{fd}":
            return device
        return readlink(path, **options)

    monkeypatch.setattr(os, "readlink", linked)
    with pytest.raises(StateError, match=r"CUDA context.*earlier"):
        synk.fork(2)
    os.close(fd)


@pytest.mark.parametrize("name", ["tf_XLATfrtCpuClient", "XLA_run", "py_xla_execute"])
def test_fork_beside_an_xla_backend_is_refused(name):
    go, done = threading.Event(), threading.Event()

    def run():
        with open("/proc/thread-self/comm", "w") as comm:
            comm.write(name[:15])
        go.set()
        done.wait(20)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert go.wait(10)
        before = psutil.Process().children()
        with pytest.raises(StateError, match=r"XLA.*earlier"):
            synk.fork(2)
        assert psutil.Process().children() == before
    finally:
        done.set()
        thread.join()
    # A thread is joined a moment before the kernel sees it end.
    wait_until(lambda: not preconditions._xla_is_up(), 5, "end of the thread")
    with synk.session(2):
        assert summing()(ROWS) == TOTAL


@pytest.mark.usefixtures("nothing_forked")
def test_other_platforms_are_refused(monkeypatch):
    monkeypatch.setattr(preconditions.sys, "platform", "darwin")
    with pytest.raises(StateError, match=r"Linux.*darwin"):
        synk.fork(2)


def test_a_python_without_pidfd_open_will_do(monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    with pytest.raises(ProcessLookupError, match="pidfd_open"):
        zygote.open_pidfd(2**22)
    with synk.session(3):
        assert summing()(ROWS) == TOTAL
        with pytest.raises(WorkerDied):
            acting(2, os._exit, 3)(ROWS)


def test_a_fork_that_fails_leaves_nothing_and_can_be_repeated(monkeypatch):
    def full():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", full)
    descriptors = psutil.Process().num_fds()
    for _ in range(3):
        with pytest.raises(BlockingIOError):
            synk.fork(2)
        assert (synk.is_forked(), synk.size()) == (False, 1)
    assert psutil.Process().num_fds() <= descriptors + 3  # the last control segment
    monkeypatch.undo()
    with synk.session(2):
        assert summing()(ROWS) == TOTAL


# -- inside a rank


def try_to(what: str) -> None:
    """Do what only the master can; raises StateError."""
    {
        "fork": lambda: synk.fork(2),
        "function": summing,
        "data": lambda: synk.data(np.ones(3)),
        "collective": lambda: synk.all_reduce(pytensor.shared(np.ones(3))),
        "distribute": synk.distribute,
    }[what]()


@pytest.mark.parametrize(
    "what", ["fork", "function", "data", "collective", "distribute"]
)
def test_a_rank_that_acts_as_a_master_gets_a_clear_error(what):
    with synk.session(2):
        with pytest.raises(StateError, match="this is rank 1"):
            acting(1, try_to, what)(ROWS)
        assert summing()(ROWS) == TOTAL


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


def worker_call_inside(session, function=None):
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


@pytest.mark.parametrize("ending", ["return", "exit", "kill"])
def test_a_child_of_the_script_ends_without_harm_to_the_session(ending, tmp_path):
    result = run_script(
        f"""
        synk.fork(3)
        call = summing()
        assert call(ROWS) == TOTAL
        pid = os.fork()
        if pid == 0:
            if {ending!r} == "exit":
                sys.exit(0)
            if {ending!r} == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
        else:
            os.waitpid(pid, 0)
            assert call(ROWS) == TOTAL
            print("ranks", all(map(processes.is_alive, processes.all_pids())))
        # The child goes on to its end here, through all exit handlers.
        """,
        tmp_path,
    )
    assert result.returncode == 0, result
    assert result.stdout == "ranks True\n"
    assert result.stderr == ""


def test_a_child_of_the_script_does_not_keep_ranks_alive(tmp_path):
    # It has copies of the pipes; ranks must end with the master all the same.
    body = """
    synk.fork(3)
    processes.print_pids()
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        signal.pause()
    print("child", pid, flush=True)
    signal.pause()
    """
    with running(body, tmp_path) as script:
        pids = script.expect_pids()
        child = int(script.expect("child"))
        os.kill(script.pid, signal.SIGKILL)
        script.wait(5)
        wait_until(lambda: not any(map(is_alive, pids)), 5, "end of the ranks")
        assert is_alive(child)
        os.kill(child, signal.SIGKILL)


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


def test_an_op_that_does_nothing_is_fine():
    with synk.session(2):
        assert acting(0, nothing)(ROWS) == TOTAL
