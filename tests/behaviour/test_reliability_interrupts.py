"""An interrupt at any line of synk: nothing is left half done.

At one of some lines in each run, the same ones; with SYNK_LINES=all in the environment
at every line, which takes an hour, and longer than a test may: with ``--timeout 0``.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from interrupted import FORKING, SOURCE, InterruptedAt, RankInterruptedAt, lines
from processes import (
    PY,
    ROWS,
    TOTAL,
    acting,
    all_pids,
    board,
    is_alive,
    links,
    note,
    reducing,
    summing,
    wait_until,
)

import synk

# -- calls: each returns a call, and what it returns


def new_call():
    function = summing()
    return lambda: function(ROWS), TOTAL


def new_stages():
    function = reducing()
    return lambda: function(ROWS), TOTAL


def new_gathering():
    x = pt.matrix("x", dtype="float64")
    function = synk.function([x], (2 * x, "gather"), mode=PY)
    return lambda: function(ROWS), 2 * ROWS


def new_reduction():
    values = pytensor.shared(np.ones(5))

    def reduce():
        synk.broadcast(values, np.ones(5))
        synk.all_reduce(values, "sum")
        return synk.get_value(1, values)

    return reduce, np.full(5, float(synk.size()))


def new_repetition():
    """Return a call with an update; an interrupted one has done all or nothing."""
    x, n = pt.dmatrix("x"), pytensor.shared(np.int64(0), "n")
    function = synk.function([x], x.sum(), updates=[(n, n + 1)], mode=PY)
    data = synk.data(ROWS)

    def call():
        before = int(n.get_value())
        try:
            total = function(data)
        finally:
            on_ranks = [int(synk.get_value(rank, n)) for rank in range(synk.size())]
            assert on_ranks == on_ranks[:1] * synk.size()
            assert before <= on_ranks[0] <= before + 1
        assert on_ranks[0] == before + 1
        return total

    return call, TOTAL


CALLS = [new_call, new_reduction, new_stages, new_gathering, new_repetition]


# -- the master


def assert_works_soon(call, expected, other, where) -> None:
    """Assert that a call that was interrupted works, and then `other`, which sums.

    In this order: another call in between might put right what was left half done, and
    one at the end makes the next trial begin with other things in memory.
    """
    start = time.monotonic()
    np.testing.assert_array_equal(call(), expected, err_msg=str(where))
    assert other(ROWS) == TOTAL, where
    assert time.monotonic() - start < 20, where


def interrupt_everywhere(prepare, step: int, least: int, but=()) -> None:
    """Interrupt a call at each `step`-th line until there are no more."""
    other = summing()
    for k in lines(step):
        call, expected = prepare()
        with InterruptedAt(k, but=but) as trace:
            try:
                result = call()
            except KeyboardInterrupt:
                result = None
        if result is not None:  # no such line, or in a finalizer
            np.testing.assert_array_equal(result, expected)
        assert_works_soon(call, expected, other, trace.raised_at)
        if not trace.raised_at:
            break
    assert k > least


@pytest.mark.parametrize("prepare", [new_call, new_reduction, new_stages])
def test_a_first_call_can_be_interrupted_at_any_line(prepare):
    with synk.session(3):
        but = compiling() if prepare is new_call else ()
        interrupt_everywhere(prepare, 29, 100, but)


def compiling() -> set[tuple[str, int]]:
    """Return the lines of a first call with stages that look at its graph.

    They know of no ranks, and a call without stages has most of them, too.
    """
    call, expected = new_stages()
    with InterruptedAt(sys.maxsize) as trace:
        np.testing.assert_array_equal(call(), expected)
    rooms = tuple(f"{SOURCE}/{room}/" for room in ("compiler", "engines"))
    found = {place for place in trace.seen if place[0].startswith(rooms)}
    assert len(found) > 100
    return found


@pytest.mark.parametrize("prepare", CALLS)
def test_a_later_call_can_be_interrupted_at_any_line(prepare):
    with synk.session(3):
        prepared = prepare()
        for _ in range(3):
            prepared[0]()
        interrupt_everywhere(lambda: prepared, 5, 30)


@pytest.mark.parametrize("prepare", [new_call, new_reduction, new_stages])
def test_a_signal_handler_may_close_synk_at_any_line_of_a_call(prepare):
    for k in lines(173):
        with synk.session(2):
            call, expected = prepare()
            if k % 2:
                call()
            closed = contextlib.suppress(synk.StateError)
            with InterruptedAt(k, handler=synk.close) as trace, closed:
                np.testing.assert_array_equal(call(), expected)
            assert synk.is_forked() != bool(trace.raised_at)
        if not trace.raised_at and not k % 2:
            break
    assert k > 100


# -- a rank

ARMED, MET = 10, 11
"""On the board: whether lines of rank 1 count, and whether it was interrupted."""


@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize("prepare", CALLS)
def test_a_rank_can_be_interrupted_at_any_line(prepare, first):
    with synk.session(3):
        prepared, other = prepare(), summing()
        if not first:
            prepared[0]()
        for k in lines(29 if first else 7):
            call, expected = prepare() if first else prepared
            note(MET, 0)
            trace = RankInterruptedAt(k, partial(board, ARMED), partial(note, MET, 1))
            acting(1, trace.start)(ROWS)
            note(ARMED, 1)
            notes = []
            try:
                np.testing.assert_array_equal(call(), expected)
            except KeyboardInterrupt as error:
                notes = error.__notes__
            note(ARMED, 0)
            assert any("rank 1 of 3" in line for line in notes) == board(MET)
            assert_works_soon(call, expected, other, k)
            if not board(MET):
                break
    assert k > 10


# -- fork, close and recover


def world_around() -> tuple:
    """Return what a session changes in the master, and must put back."""
    gc.collect()
    getenv = ctypes.CDLL(None).getenv  # as libraries see it
    getenv.restype = ctypes.c_char_p
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return (
        os.sched_getaffinity(0),
        dict(os.environ),
        getenv(b"OMP_NUM_THREADS"),
        (os.system, os.execv, os.posix_spawn),
        children,
        # Not of segments, which a traceback may keep.
        sorted(link for link in links(os.getpid()) if "memfd" not in link),
    )


def interrupted_fork(k: int) -> InterruptedAt:
    with InterruptedAt(k, FORKING) as trace:
        try:
            synk.fork(3)
        except KeyboardInterrupt:
            assert not synk.is_forked(), trace.raised_at
            assert synk.size() == 1
    return trace


def interrupted_close(k: int) -> InterruptedAt:
    synk.fork(3)
    pids = all_pids()
    suppressed = contextlib.suppress(KeyboardInterrupt)
    with InterruptedAt(k, FORKING) as trace, suppressed:
        synk.close()
    synk.close()
    wait_until(lambda: not any(map(is_alive, pids)), 5, f"end after {trace.raised_at}")
    return trace


@pytest.mark.parametrize(
    ("interrupted", "step", "least"),
    [(interrupted_fork, 7, 60), (interrupted_close, 7, 20)],
    ids=["fork", "close"],
)
def test_fork_and_close_can_be_interrupted_at_any_line(interrupted, step, least):
    synk.fork(2)
    synk.close()
    before = world_around()
    for k in lines(step):
        trace = interrupted(k)
        synk.close()
        assert world_around() == before, trace.raised_at
        if not trace.raised_at:
            break
    assert k > least
    with synk.session(2):
        assert summing()(ROWS) == TOTAL


def kill_a_rank() -> None:
    pid = all_pids()[1]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), 5, "death")


def test_a_recovery_can_be_interrupted_at_any_line():
    x = pt.matrix("x", dtype="float64")
    own = pytensor.shared(np.zeros(()), name="own")
    store_own = synk.function([x], updates={own: x.sum()}, local=True, mode=PY)
    call = summing()
    synk.fork(2)
    for k in lines(29):
        store_own(ROWS)
        kill_a_rank()
        with contextlib.suppress(synk.WorkerDied):
            call(ROWS)
        interrupted = contextlib.suppress(KeyboardInterrupt)
        with InterruptedAt(k, (*FORKING, "aftermath.py")) as trace, interrupted:
            synk.recover()
        if not trace.raised_at:
            break
        assert synk.is_forked(), trace.raised_at
        assert synk.recover() in ([own], []), trace.raised_at
        assert "died" in synk.state(own), trace.raised_at
        assert call(ROWS) == TOTAL, trace.raised_at
    assert k > 100
    assert call(ROWS) == TOTAL
    synk.close()


def test_a_signal_handler_may_close_synk_while_it_recovers():
    for k in lines(61):
        synk.fork(2)
        kill_a_rank()
        closed = contextlib.suppress(synk.StateError)
        with InterruptedAt(k, FORKING, handler=synk.close) as trace, closed:
            synk.recover()
        synk.close()
        assert not synk.is_forked()
        if not trace.raised_at:
            break
    assert k > 60
