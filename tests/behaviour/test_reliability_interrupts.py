"""An interrupt at any line of synk: nothing is left half done.

At one of some lines in each run, the same ones; with SYNK_LINES=all in the environment
at every line, which takes an hour, and longer than a test may: with ``--timeout 0``.
"""

import ctypes
import gc
import os
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from interrupted import FORKING, RankInterruptedAt, interrupts, lines
from processes import (
    PY,
    ROWS,
    TOTAL,
    acting,
    all_pids,
    await_end,
    board,
    links,
    note,
    reducing,
    summing,
)

import synk

# -- calls: each returns a call, and what it returns


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


CALLS = [new_reduction, new_stages, new_gathering, new_repetition]


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


def interrupt_everywhere(prepare, step: int, least: int) -> None:
    """Interrupt a call at each `step`-th line until there are no more."""
    other = summing()
    for first in (prepare()[0], partial(other, ROWS)):
        first()  # which compiles: later ones are timed
    for trace in interrupts(step, least):
        call, expected = prepare()
        result = None
        with trace, suppress(KeyboardInterrupt):
            result = call()
        if result is not None:  # no such line, or in a finalizer
            np.testing.assert_array_equal(result, expected)
        assert_works_soon(call, expected, other, trace.raised_at)


@pytest.mark.parametrize("prepare", [new_reduction, new_stages])
def test_a_first_call_can_be_interrupted_at_any_line(prepare):
    with synk.session(3):
        interrupt_everywhere(prepare, 29, 100)


@pytest.mark.parametrize("prepare", CALLS)
def test_a_later_call_can_be_interrupted_at_any_line(prepare):
    with synk.session(3):
        prepared = prepare()
        for _ in range(3):
            prepared[0]()
        interrupt_everywhere(lambda: prepared, 5, 30)


@pytest.mark.parametrize("runs", [True, False])
def test_what_a_script_sets_after_an_interrupt_stays(two_ranks, runs):
    """One that comes as a call ends leaves it to the next to undo the call."""
    x, w = pt.dmatrix("x"), pytensor.shared(1.0, "w")
    f = synk.function([x], x.sum() * w, updates={w: w + x.sum()}, mode=PY)
    f(ROWS)

    def stop(frame, event, arg):
        code = frame.f_code
        if (Path(code.co_filename).name, code.co_name) == ("undoing.py", "__exit__"):
            raise KeyboardInterrupt

    sys.settrace(stop)
    with pytest.raises(KeyboardInterrupt):
        f.run([None] * 2, ROWS) if runs else f(ROWS)
    sys.settrace(None)
    w.set_value(5.0)
    assert f(ROWS) == 5 * TOTAL
    assert [synk.get_value(rank, w) for rank in (0, 1)] == [5 + TOTAL] * 2


def test_an_interrupt_that_code_of_numba_returns_with_is_one(two_ranks):
    """Python makes an error of the system of it, with the interrupt as its cause."""

    def returns_with_an_interrupt():
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as interrupt:
            raise SystemError("a result with an exception set") from interrupt

    f = acting(0, returns_with_an_interrupt)
    with pytest.raises(KeyboardInterrupt):
        f(ROWS)
    assert synk.is_forked()


@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
def test_a_signal_handler_may_close_synk_at_any_line_of_a_call(first):
    for trace in interrupts(173 if first else 53, 50, (), synk.close):
        with synk.session(2):
            call, expected = new_stages()
            if not first:
                call()
            with trace, suppress(synk.StateError):
                np.testing.assert_array_equal(call(), expected)
            assert synk.is_forked() != bool(trace.raised_at)


# -- a rank

ARMED, MET = 10, 11
"""On the board: whether lines of rank 1 count, and whether it was interrupted."""


@pytest.mark.parametrize(
    ("prepare", "first"),
    [(new_stages, True), (new_repetition, True), *((call, False) for call in CALLS)],
)
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


def test_fork_and_close_can_be_interrupted_at_any_line():
    with synk.session(2):
        pass
    before = world_around()
    for trace in interrupts(7, 60, FORKING):
        with trace:
            try:
                synk.fork(3)
            except KeyboardInterrupt:
                assert not synk.is_forked(), trace.raised_at
                assert synk.size() == 1
        synk.close()
        assert world_around() == before, trace.raised_at
    for trace in interrupts(7, 20, FORKING):
        synk.fork(3)
        pids = all_pids()
        with trace, suppress(KeyboardInterrupt):
            synk.close()
        synk.close()
        await_end(pids)
        assert world_around() == before, trace.raised_at
    with synk.session(2):
        assert summing()(ROWS) == TOTAL
