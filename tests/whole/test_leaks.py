"""Nothing grows: not over many calls, not over many sessions."""

import gc
import os

import numpy as np
import psutil
import pytensor
import pytensor.tensor as pt
import pytest
from processes import (
    PY,
    ROWS,
    TOTAL,
    acting,
    all_pids,
    run_script,
    segments_of,
    summing,
)

import synk

CALLS = int(os.environ.get("SYNK_LEAK_CALLS", "3000"))
PATIENCE = 105 * CALLS
"""Bytes that may come and go, for `CALLS` calls."""
ROUNDS = 6
"""A used heap takes 2 MB once, and then up to 0.3 in a round; a leak grows in each."""


def everyone() -> list[int]:
    return [os.getpid(), *all_pids()]


def census() -> dict[str, list]:
    """Return what processes have that must not grow."""
    gc.collect()
    return {
        "descriptors": [psutil.Process(pid).num_fds() for pid in everyone()],
        "threads": [len(os.listdir(f"/proc/{pid}/task")) for pid in everyone()],
        "segments": sorted(segments_of(everyone())),
    }


def assert_same(after: dict[str, list], before: dict[str, list]) -> None:
    """Compare censuses; a thread of somebody else's may have ended meanwhile."""
    for now, of_before in zip(after["threads"], before["threads"], strict=True):
        assert now <= of_before
    assert after | {"threads": ()} == before | {"threads": ()}


def look() -> tuple[dict[str, list], list[int]]:
    """Return the census, and the memory of each process."""
    census()  # what looking itself takes is taken before the memory is measured
    # What ranks share with no other process would grow by itself after a fork: each
    # page that is written to, if only to count references, becomes their own.
    return census(), [psutil.Process(pid).memory_info().rss for pid in everyone()]


def assert_nothing_grows(work) -> None:
    """Assert that a piece of work leaves all as it was, in one of some rounds."""
    grown = []
    for _ in range(ROUNDS):
        before = look()
        work()
        after = look()
        assert_same(after[0], before[0])
        grown.append([new - old for old, new in zip(before[1], after[1], strict=True)])
        if max(grown[-1]) < PATIENCE:
            return
    pytest.fail(f"bytes by which the processes grew, in each round: {grown}")


def calls_of_every_kind():
    """Return a function that makes one of each kind of call."""
    x = pt.matrix("x", dtype="float64")
    weights = pytensor.shared(np.zeros(2), name="weights")
    train = synk.function(
        [x],
        [(x.sum(), "sum"), (x, "gather")],
        updates=[(weights, weights + synk.ops.all_reduce(x.sum(axis=0), "sum"))],
        mode=PY,
    )
    data = synk.data(ROWS)
    gradient = pytensor.shared(np.ones(5), name="gradient")

    def call():
        train(ROWS)
        train(data, batch=[3, 1, 2, 0])
        train(data, num_slices=2, output_subset=[0])
        synk.all_reduce(gradient)
        synk.broadcast(gradient, np.ones(5))
        synk.get_value(1, gradient)

    return call


def test_calls_of_every_kind_leave_nothing_behind():
    with synk.session(2):
        call = calls_of_every_kind()

        def work(calls):
            for _ in range(calls // 6):
                call()

        work(CALLS // 10)
        assert_nothing_grows(lambda: work(CALLS))


def test_errors_and_what_is_dropped_leave_nothing_behind():
    failing, keeper = acting(1, os.stat, "no such file"), summing()

    def fail_and_drop():
        calls_of_every_kind()()
        gc.collect()
        for _ in range(3):
            with pytest.raises(FileNotFoundError):
                failing(ROWS)

    with synk.session(2):
        for _ in range(3):
            fail_and_drop()
        assert keeper(ROWS) == TOTAL
        before = census()
        for _ in range(8):
            fail_and_drop()
        assert keeper(ROWS) == TOTAL
        assert_same(census(), before)


SESSIONS = """
import ctypes, gc, psutil

values, data = pytensor.shared(np.ones(100)), synk.data(ROWS)
call, dies = summing(), acting(1, os._exit, 3)

def session(kills):
    with synk.session(3):
        pids.extend(processes.all_pids())
        assert call(data) == TOTAL
        values.set_value(np.ones(100))
        synk.all_reduce(values, "sum")
        assert values.get_value()[-1] == 3
        try:
            kills and dies(ROWS)
        except synk.WorkerDied:
            pass

def look():
    gc.collect()
    with open("/proc/self/maps") as maps:
        shared = sum("memfd:synk-" in line for line in maps)
    return (len(me.children()), me.num_fds(), shared, me.num_threads(),
            len(processes.segments_of([me.pid])))

def resident():
    # What the heap has free goes back to the kernel first: that comes and goes
    # otherwise, by half a megabyte and more, whoever leaks.
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return me.memory_info().rss

me, pids = psutil.Process(), []
for kills in (False, True, False, False, False):
    session(kills)
before, held = look(), [resident()]
for number in range(25):
    session(number % 5 == 0)
    if number % 5 == 4:
        held.append(resident())
print("same", look() == before, before, look())
print("alive", sum(map(processes.is_alive, pids)), "of", len(pids))
more = np.diff(held)  # of five sessions each; up to 28 kB were seen
print("grew little", max(more) < 100 << 10, more)
"""


def test_many_sessions_leave_nothing_behind(tmp_path):
    result = run_script(SESSIONS, tmp_path, seconds=120)
    assert result.returncode == 0, result
    assert "same True" in result.stdout, result.stdout
    assert "alive 0 of 90" in result.stdout, result.stdout
    assert "grew little True" in result.stdout, result.stdout
