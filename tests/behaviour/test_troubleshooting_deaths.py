"""Ranks that die or hang, the timeout of a call, and memory that there is not."""

import copy
import errno
import gc
import os
import pickle
import re
import signal
import time

import numpy as np
import pytensor
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
    die,
    is_alive,
    rank_pids,
    reset,
    summing,
    wait_until,
)

import synk

X = pt.dmatrix("x")

ACTING = r"function 'acting' \(made in processes\.py:\d+\)"


def stay_in_compiled_code() -> None:
    arrive()
    re.match("(a+)+$", "a" * 60 + "b")  # does not let go of the GIL


# -- deaths ----------------------------------------------------------------------------


def test_a_death_says_what_the_rank_was_doing_and_had_done_before():
    call, f = acting(1, die, "SIGTERM"), summing()
    with synk.session(3):
        assert f(ROWS) == TOTAL
        told = f"SIGTERM while computing {ACTING}; "
        with pytest.raises(synk.WorkerDied, match=told):
            call(ROWS)
        with pytest.raises(synk.WorkerDied, match=ACTING) as caught:
            f(ROWS)
        assert re.fullmatch("computing " + ACTING, caught.value.doing)
        synk.recover()
        for _ in range(3):
            assert f(ROWS) == TOTAL
        pid = rank_pids()[1]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(pid), 10, "the death of rank 1")
        with pytest.raises(synk.WorkerDied, match="waiting for a command") as caught:
            f(ROWS)
    history = caught.value.history
    assert 9 < len(history) <= 256
    times = [float(line.split(" ms  ")[0]) for line in history]
    assert times == sorted(times)
    assert times[-1] == 0
    assert sum("computing function 'summing'" in line for line in history) >= 3
    assert str(caught.value).rstrip().endswith("\n".join(history[-4:]))
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.history == history


def test_a_death_by_a_fault_shows_the_stack_and_stderr_does_not(capfd, monkeypatch):
    names = {"SIGSEGV": "Segmentation fault", "SIGABRT": "Aborted"}
    with synk.session(2):
        for how in (*names, "SIGSEGV"):  # what comes back has records of its own
            call = acting(1, die, how)
            for _ in range(2):  # in the call, and from then on
                with pytest.raises(synk.WorkerDied, match=ACTING) as caught:
                    call(ROWS)
                stack = caught.value.stack
                assert stack.startswith("Fatal Python error")
                assert stack.count("Fatal Python error") == 1
                assert names[how] in stack
                assert re.search(r'processes\.py", line \d+ in die\n', stack)
                assert "in serve" not in stack  # nor the frames of the fork
                assert (
                    stack.count(f'File "{os.path.dirname(synk.__file__)}{os.sep}') == 1
                )
                assert str(caught.value).endswith(f"\n\nIts Python stack:\n{stack}")
            synk.recover()
            assert summing()(ROWS) == TOTAL
        assert "Fatal" not in capfd.readouterr().err
        monkeypatch.setenv("SYNK_FULL_TRACEBACK", "1")
        with pytest.raises(synk.WorkerDied) as caught:
            acting(1, die, "SIGSEGV")(ROWS)
        assert re.search(r"in serve\n(.|\n)*in fork\n", caught.value.stack)


def test_a_kill_says_whether_the_kernel_may_have_done_it():
    for struck, message in (
        (True, r"by SIGKILL, by the kernel's out-of-memory killer, while comp.* fewer"),
        (False, r"by SIGKILL while comp.*\(not by the kernel's out-of-memory killer"),
        (None, r"by SIGKILL while comp.* is often the kernel's out-of-memory killer"),
    ):
        died = synk.WorkerDied(2, 77, -9, "computing f", out_of_memory=struck)
        assert re.search(message, str(died))
        fault = synk.WorkerDied(2, 77, -11, "computing f", "  File ...\n", struck, "")
        for again in (copy.copy(fault), pickle.loads(pickle.dumps(fault))):
            assert str(again) == str(fault)
            assert vars(again) == vars(fault)


# -- ranks that hang -------------------------------------------------------------------


def test_a_timeout_of_a_call_shows_where_the_ranks_are():
    with synk.session(3):
        for action in (arrive_and_stay, stay_in_compiled_code):
            reset()
            call = acting(1, action)
            synk.distribute()  # to compile it may take longer than the timeout
            pids = all_pids()
            start = time.monotonic()
            with pytest.raises(synk.RankTimeout) as caught:
                call(ROWS, timeout=0.5)
            assert time.monotonic() - start >= 0.5
            text = str(caught.value)
            assert "within 0.5 s (the timeout of this call)" in text
            assert re.search(rf"rank 1 \(pid {pids[1]}\), computing {ACTING}:\n", text)
            assert re.search(rf'py", line \d+ in {action.__name__}\n', text)
            assert "in serve" not in text
            assert "call synk.recover()" in text
            assert not any(map(is_alive, pids))
            with pytest.raises(synk.WorkerDied, match="as it did not answer"):
                call(ROWS)
            synk.recover()
        # In a meeting
        reset()
        total = synk.ops.all_reduce(X.sum(), "sum")
        late = Act(1, Do(arrive_and_stay))(X * total)
        outputs = (synk.ops.all_reduce(late.sum(), "sum"), None)
        f = synk.function([X], outputs, mode=PY, name="late")
        synk.distribute()
        with pytest.raises(synk.RankTimeout) as caught:
            f(ROWS, timeout=1)
        text = str(caught.value)
        assert "not all ranks came to a meeting within 1 s" in text
        assert "in arrive_and_stay" in text
        place = r"rank 1 \(pid \d+\), computing stage 2 of function 'late'"
        assert re.search(place, text)
        synk.recover()
        assert_works(3)


def test_timeouts_of_fork_of_calls_and_of_runs():
    slow, batches = acting(1, time.sleep, 0.4), [slice(0, 12)] * 2
    with synk.session(2, timeout=0.3):
        # That of a call is for that call, and before that of fork.
        assert slow(ROWS, timeout=10) == TOTAL
        assert slow.run(batches, ROWS, timeout=10).tolist() == [TOTAL] * 2
        os.kill(rank_pids()[1], signal.SIGSTOP)
        with pytest.raises(synk.RankTimeout, match="no stack: it is stopped") as caught:
            slow(ROWS)
        assert "rank 1" in str(caught.value)
        assert "0.3 s (the timeout given to synk.fork" in str(caught.value)
    of_run = pytest.raises(synk.RankTimeout, match=r"0\.1 s \(the timeout of this")
    with synk.session(2), of_run:
        slow.run(batches, ROWS, timeout=0.1)


def test_what_a_timeout_may_be_and_an_input_of_that_name(two_ranks):
    for wrong in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="positive number of seconds"):
            summing()(ROWS, timeout=wrong)
    with pytest.raises(TypeError, match="number of seconds, got 'soon'"):
        summing()(ROWS, timeout="soon")
    x, timeout = pt.dvector("x"), pt.dvector("timeout")
    f = synk.function([x, timeout], (x * timeout).sum(), mode=PY)
    ones = np.ones(4)
    assert f(ones, timeout=2 * ones) == 8
    assert f.run([slice(0, 4)], x=ones, timeout=ones) == [4]


# -- memory ----------------------------------------------------------------------------


def limit(monkeypatch, most: int) -> None:
    """Have the kernel refuse larger pieces of memory, to ranks that are forked too."""
    fallocate = os.posix_fallocate

    def limited(fd, offset, length):
        if length > most:
            raise OSError(errno.ENOSPC, "No space left on device")
        return fallocate(fd, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", limited)


def test_more_than_there_is_says_what_is_needed_and_free():
    gc.collect()  # what earlier tests have left
    descriptors = len(os.listdir("/proc/self/fd"))
    needed = 10**13 * 8
    told = r"bytes are free of \D+'s [\d,]+\."
    with pytest.raises(synk.SharedMemoryFull, match=told) as no:
        synk.data(shape=(10**13,), dtype="float64")
    assert f"no room for {needed:,} bytes of shared memory: " in str(no.value)
    assert isinstance(no.value, MemoryError)
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_session_goes_on_after_memory_was_refused(monkeypatch):
    limit(monkeypatch, 1 << 20)
    call = summing()
    gather = synk.function([X], (X * 2, "gather"), mode=PY)
    large = np.ones(1_000_000)
    var, of_text = pytensor.shared(large), pytensor.shared(list(range(1_000_000)))
    values = pytensor.shared(np.ones(4))
    data = synk.data(np.arange(10.0))
    with synk.session(2):
        assert call(ROWS) == TOTAL
        for refused in (
            lambda: call(np.ones((1_000_000, 2))),
            lambda: synk.data(large),
            lambda: data.set_length(1_000_000),
            lambda: synk.broadcast(values, large),
            lambda: synk.all_reduce(var),
            lambda: synk.broadcast(of_text),
        ):
            with pytest.raises(synk.SharedMemoryFull):
                refused()
        np.testing.assert_array_equal(data[:], np.arange(10.0))
        data.set_length(20)
        np.testing.assert_array_equal(data[:10], np.arange(10.0))
        assert call(ROWS) == TOTAL
        synk.all_reduce(values, "sum")
        np.testing.assert_array_equal(synk.get_value(1, values), np.full(4, 2.0))
        monkeypatch.undo()  # in the script, and not in rank 1
        assert call(np.ones((1_000_000, 2))) == 2_000_000
        with pytest.raises(synk.SharedMemoryFull) as caught:
            gather(np.ones((500_000, 2)))
        assert any("rank 1 of 2" in note for note in caught.value.__notes__)
        np.testing.assert_array_equal(gather(ROWS), 2 * ROWS)


def test_fork_without_memory_is_a_clear_error(monkeypatch):
    limit(monkeypatch, 0)
    with pytest.raises(synk.SharedMemoryFull):
        synk.fork(2)
    assert not synk.is_forked()
