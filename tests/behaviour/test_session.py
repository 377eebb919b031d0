"""fork, close and session: what they check, and what state they leave."""

from __future__ import annotations

import gc
import os
import resource
import warnings

import numpy as np
import psutil
import pytensor
import pytest
from processes import (
    ROWS,
    TOTAL,
    acting,
    all_pids,
    is_alive,
    links,
    nothing,
    run_script,
    sockets,
    summing,
)

import synk
from synk.errors import StateError, WorkerDied
from synk.ranks.session import SESSION
from synk.workers import affinity, forks, preconditions, zygote_loop
from synk.workers.devices import Device
from synk.workers.gpus import GPU

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


def worker_state(context):
    pid = None if context.rank else os.getpid()
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


@pytest.mark.parametrize("there", [None, 64])
def test_more_ranks_than_cores_are_warned_of_at_the_callers_line(there, monkeypatch):
    cores = sorted(os.sched_getaffinity(0))[:1]
    monkeypatch.setattr(affinity, "usable_cores", lambda: cores)
    monkeypatch.setattr(os, "cpu_count", lambda: there)
    said = "1 usable core" if there is None else r"1 usable core \(of 64: .*quota"
    match = rf"^2 ranks on {said}.* slower than with synk.fork\(1\)$"
    with pytest.warns(synk.OversubscriptionWarning, match=match) as caught:
        synk.fork(2)
    synk.close()
    assert [warning.filename for warning in caught] == [__file__]
    warned = pytest.warns(synk.OversubscriptionWarning, match=match)
    with warned as caught, synk.session(2):
        assert summing()(ROWS) == TOTAL
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("n", [1, 2, None])
def test_as_many_ranks_as_cores_are_not_warned_of(n, monkeypatch):
    cores = (sorted(os.sched_getaffinity(0)) * 2)[:2]
    monkeypatch.setattr(affinity, "usable_cores", lambda: cores)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with synk.session(n, devices="cpu"):
            pass


def test_ranks_on_gpus_are_warned_of_cores_that_they_share():
    gpu = Device(GPU(0, "GPU-0", "a GPU", 1 << 30, ()))
    match = "^3 ranks on GPUs and 2 usable cores.*take turns to start"
    with pytest.warns(synk.OversubscriptionWarning, match=match):
        preconditions.warn_of_few_cores([gpu] * 3, [0, 1])


def test_with_warnings_as_errors_too_many_ranks_are_refused(monkeypatch):
    monkeypatch.setattr(affinity, "usable_cores", lambda: [0])
    with warnings.catch_warnings():
        warnings.simplefilter("error", synk.OversubscriptionWarning)
        with pytest.raises(synk.OversubscriptionWarning):
            synk.fork(2)
    assert not synk.is_forked()


def test_a_broken_session_must_be_closed_before_it_is_forked():
    synk.fork(2)
    with pytest.raises(WorkerDied):
        acting(1, os._exit, 1)(ROWS)
    with pytest.raises(StateError, match=r"close\(\) first"):
        synk.fork(2)
    synk.close()


@pytest.mark.usefixtures("nothing_forked")
def test_other_platforms_are_refused(monkeypatch):
    monkeypatch.setattr(preconditions.sys, "platform", "darwin")
    with pytest.raises(StateError, match=r"Linux.*darwin"):
        synk.fork(2)


def test_a_python_without_pidfd_open_will_do(monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    with pytest.raises(ProcessLookupError, match="pidfd_open"):
        forks.open_pidfd(2**22)
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
        with pytest.raises(synk.SynkError, match=r"2 ranks.*ulimit -u is \w+"):
            synk.fork(2)
        assert (synk.is_forked(), synk.size()) == (False, 1)
    assert psutil.Process().num_fds() <= descriptors + 3  # the last control segment
    monkeypatch.undo()
    with synk.session(2):
        assert summing()(ROWS) == TOTAL


def test_a_rank_that_cannot_be_forked_is_an_error_that_names_the_limit(monkeypatch):
    def full():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(zygote_loop, "fork_quietly", full)  # which the zygote calls
    match = r"rank 1 was not forked.*ulimit -u is \w+.* fewer ranks"
    with pytest.raises(synk.SynkError, match=match):
        synk.fork(2)
    assert not synk.is_forked()
    monkeypatch.undo()
    with synk.session(2):
        assert summing()(ROWS) == TOTAL


def test_too_few_descriptors_are_an_error_that_names_the_limit():
    call = summing()
    with synk.session(2):
        call(ROWS)
    gc.collect()  # or what earlier tests have left is counted, and goes later
    used = len(links(os.getpid()))
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def attempt(limit: int) -> str:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
        try:
            with synk.session(2):
                return f"works {call(ROWS) == TOTAL}"
        except synk.SynkError as error:
            return str(error)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)

    found = []
    for limit in range(used, used + 16):
        found.append(attempt(limit))
        assert f"ulimit -n is {limit}" in found[-1] or found[-1] == "works True"
        gc.collect()
        assert len(links(os.getpid())) <= used + 2  # the last control segment
    assert "works True" in found
    assert any("were not forked" in said for said in found)


def test_too_few_processes_are_an_error_that_names_the_limit(tmp_path, monkeypatch):
    # Where OpenBLAS cannot start its threads it sends SIGINT.
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    # Root may have any number, and is somebody else here.
    script = """
    import resource
    def attempt():
        try:
            with synk.session(2):
                print("works", summing()(ROWS) == TOTAL)
        except synk.SynkError as error:
            print(error)
    attempt()  # all modules are imported now, which nobody else may read
    if not os.geteuid():
        os.setgid(65534)
        os.setuid(65534)
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, hard))
    attempt()
    resource.setrlimit(resource.RLIMIT_NPROC, (soft, hard))
    attempt()
    """
    result = run_script(script, tmp_path)
    first, refused, last = result.stdout.splitlines()
    assert (first, last) == ("works True", "works True"), result
    assert "2 ranks were not forked" in refused
    assert "ulimit -u is 1," in refused


def test_an_op_that_does_nothing_is_fine():
    with synk.session(2):
        assert acting(0, nothing)(ROWS) == TOTAL
