"""An interrupt at any line of synk: nothing is left half done."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import linecache
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from processes import (
    PY,
    ROWS,
    TOTAL,
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
from synk.workers import waiting
from synk.workers import zygote as zygote_module

SOURCE = str(Path(synk.__file__).parent)

SAFE_FUNCTIONS = ("with_signals_held_back", "__del__")
"""Signals are held back there, and what finalizers raise is only printed."""

SAFE_LINES = (
    "self._in_command = False",
    "self._is_starting = False",
    "finally:  # after an interrupt too",
    "try:",
)
"""Python does not look for signals between the end of a block and its `finally`, or
between a loop and what is set next."""


@pytest.fixture(autouse=True)
def short_ticks(monkeypatch):
    """Have ranks notice soon that others have stopped: of hundreds of calls each."""
    monkeypatch.setattr(waiting, "TICK", 0.002)


def interrupt() -> None:
    raise KeyboardInterrupt


class InterruptedAt:
    """Raises KeyboardInterrupt at the k-th line of synk that the master comes to.

    Lines are counted when they are run for the first time. With a k beyond the last of
    them nothing is raised. What else a handler of signals does may be given.
    """

    def __init__(
        self,
        k: int,
        files: tuple[str, ...] = (),
        handler: Callable = interrupt,
        but: Collection[tuple[str, int]] = (),
    ) -> None:
        self.k, self.files, self._pid = k, files, os.getpid()
        self._but = but
        self._handler = handler
        self.raised_at: list[str] = []
        self.seen: set[tuple[str, int]] = set()

    def __enter__(self):
        self._before, self._caller = sys.gettrace(), sys._getframe(1)
        sys.settrace(self._enter_function)
        return self

    def __exit__(self, *_):
        sys.settrace(self._before)
        self._caller = None  # or what the caller has made would live on, in a cycle

    def _enter_function(self, frame, event, arg):
        path = frame.f_code.co_filename
        if not path.startswith(SOURCE):
            return None
        if self.files and not path.endswith(self.files):
            return None
        # In a rank, not those of the zygote, which was forked with signals held back.
        # Nor those of pytest: fifty, for each call of a function.
        ends = None, self._caller
        while frame not in ends and frame.f_code.co_name != "run_to_end":
            if frame.f_code.co_name in SAFE_FUNCTIONS:
                return None
            frame = frame.f_back
        return self._line

    def _line(self, frame, event, arg):
        place = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and place not in self.seen and not is_safe(*place):
            if place in self._but:
                return self._line
            self.seen.add(place)
            if len(self.seen) == self.k and os.getpid() == self._pid:
                self.raised_at.append(f"{place[0]}:{place[1]}")
                self._handler()
        return self._line


@functools.cache
def is_safe(path: str, number: int) -> bool:
    """Tell whether nothing can come between a line and the one before."""
    return linecache.getline(path, number).strip() in SAFE_LINES


def interrupt_at(k: int, prepare, other, but=()) -> bool:
    """Interrupt a call at line k; return whether there was such a line.

    Lines in `but` are not counted.

    Afterwards `other`, a function that sums, and the call itself must work.
    """
    call, expected = prepare()
    with InterruptedAt(k, but=but) as trace:
        try:
            result = call()
        except KeyboardInterrupt:
            result = None
    if result is not None:  # no such line, or in a finalizer
        np.testing.assert_array_equal(result, expected)
    start = time.monotonic()
    # In this order: another call in between might put right what was left half done,
    # and one at the end makes the next trial begin with other things in memory.
    np.testing.assert_array_equal(call(), expected)
    assert other(ROWS) == TOTAL, trace.raised_at
    assert time.monotonic() - start < 5, trace.raised_at
    return bool(trace.raised_at)


def new_call():
    function = summing()
    return lambda: function(ROWS), TOTAL


def new_reduction():
    values = pytensor.shared(np.ones(5))

    def reduce():
        synk.broadcast(values, np.ones(5))
        synk.all_reduce(values, "sum")
        return synk.get_value(1, values)

    return reduce, np.full(5, float(synk.size()))


def new_stages():
    function = reducing()
    return lambda: function(ROWS), TOTAL


def new_repetition():
    """Return a call that is prepared; an interrupted one has done all or nothing."""
    x, n = pt.dmatrix("x"), pytensor.shared(np.int64(0), "n")
    function = synk.function([x], x.sum(), updates=[(n, n + 1)], mode=PY)
    data = synk.data(ROWS)
    for _ in range(3):
        function(data)

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


def interrupt_everywhere(prepare, least: int, but=()) -> None:
    """Interrupt at line 1, 2, ... until there are no more."""
    lines, other = 0, summing()
    while interrupt_at(lines + 1, prepare, other, but):
        lines += 1
    assert lines >= least


@pytest.mark.parametrize("prepare", [new_call, new_reduction, new_stages])
def test_a_first_call_can_be_interrupted_at_any_line(prepare):
    with synk.session(3):
        interrupt_everywhere(prepare, 100, compiling() if prepare is new_call else ())


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


@pytest.mark.parametrize(
    "prepare", [new_call, new_reduction, new_stages, new_repetition]
)
def test_a_later_call_can_be_interrupted_at_any_line(prepare):
    with synk.session(3):
        prepared = prepare()
        prepared[0]()
        interrupt_everywhere(lambda: prepared, 50)


def new_gathering():
    x = pt.matrix("x", dtype="float64")
    function = synk.function([x], (2 * x, "gather"), mode=PY)
    return lambda: function(ROWS), 2 * ROWS


COMMANDS = [
    ("synk.call.share", "worker_call"),
    ("synk.variables.collectives", "worker_reduce"),
    ("synk.variables.collectives", "worker_broadcast"),
    ("synk.ranks.replication", "worker_replicate_variables"),
    ("synk.ranks.replication", "worker_replicate_function"),
]


@pytest.fixture
def interruptible_rank(monkeypatch):
    """Have rank 1 interrupted at line `at(k)` of its commands; `met()` counts them."""

    def interrupted(work):
        @functools.wraps(work)
        def run(context, *args):
            if context.rank != 1 or not board(K):
                return work(context, *args)
            with InterruptedAt(int(board(K))) as trace:
                try:
                    return work(context, *args)
                finally:
                    if trace.raised_at:
                        note(K, 0)
                        note(MET, 1)
                    elif work.__name__ in LAST_COMMANDS:
                        note(K, 0)

        return run

    for module, name in COMMANDS:
        module = importlib.import_module(module)
        monkeypatch.setattr(module, name, interrupted(getattr(module, name)))


K, MET = 10, 11
LAST_COMMANDS = ("worker_call", "worker_reduce")


@pytest.mark.usefixtures("interruptible_rank")
@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize(
    "prepare", [new_call, new_reduction, new_stages, new_gathering, new_repetition]
)
def test_a_rank_can_be_interrupted_at_any_line(prepare, first):
    with synk.session(3):
        prepared = prepare()
        other = summing()
        if not first:
            prepared[0]()
        for k in range(1, 1000):
            call, expected = prepare() if first else prepared
            note(K, k)
            note(MET, 0)
            notes = []
            try:
                np.testing.assert_array_equal(call(), expected)
            except KeyboardInterrupt as error:
                notes = error.__notes__
            assert any("rank 1 of 3" in line for line in notes) == board(MET)
            note(K, 0)
            start = time.monotonic()
            np.testing.assert_array_equal(call(), expected)
            assert other(ROWS) == TOTAL
            assert time.monotonic() - start < 5
            if not board(MET):
                break
    assert k > 10
    assert not board(MET)


FORKING = (
    "forking.py",
    "lifetime.py",
    "session.py",
    "starting.py",
    "surroundings.py",
    "zygote.py",
    "zygote_source.py",
    "channel.py",
    "control.py",
    "shm.py",
    "affinity.py",
    "children.py",
    "script_seeds.py",
    "loop.py",
)


def test_fork_can_be_interrupted_at_any_line():
    synk.fork(2)
    synk.close()
    before = world_around()
    k = 0
    while True:
        k += 1
        with InterruptedAt(k, files=FORKING) as trace:
            try:
                synk.fork(3)
            except KeyboardInterrupt:
                assert not synk.is_forked(), trace.raised_at
                assert synk.size() == 1
        synk.close()
        assert world_around() == before, trace.raised_at
        if not trace.raised_at:
            break
    assert k > 60
    with synk.session(2):
        assert summing()(ROWS) == TOTAL


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
        (os.system, os.execv, subprocess._fork_exec),
        children,
        # Not of segments, which a traceback may keep.
        sorted(link for link in links(os.getpid()) if "memfd" not in link),
    )


def test_close_can_be_interrupted_at_any_line():
    synk.fork(2)
    synk.close()
    before = world_around()
    k = 0
    while True:
        k += 1
        synk.fork(3)
        suppressed = contextlib.suppress(KeyboardInterrupt)
        with InterruptedAt(k, files=FORKING) as trace, suppressed:
            synk.close()
        synk.close()
        assert world_around() == before, trace.raised_at
        if not trace.raised_at:
            break
    assert k > 20


@pytest.mark.parametrize("prepare", [new_call, new_reduction, new_stages])
def test_a_signal_handler_may_close_synk_at_any_line_of_a_call(prepare):
    # Which takes a session for each line: so it is one of some forty.
    for k in range(1, 1000, 43):
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
    assert k > 200


def test_close_ends_everything_though_interrupted(monkeypatch):
    before = os.sched_getaffinity(0), dict(os.environ)
    original = zygote_module.Zygote._has_ended
    raised = []

    def interrupted(self, patience):
        if patience:
            raised.append(1)
            raise KeyboardInterrupt
        return original(self, patience)

    synk.fork(3)
    pids = all_pids()
    monkeypatch.setattr(zygote_module.Zygote, "_has_ended", interrupted)
    with pytest.raises(KeyboardInterrupt):
        synk.close()
    assert raised
    assert not synk.is_forked()
    assert (os.sched_getaffinity(0), dict(os.environ)) == before
    wait_until(lambda: not any(map(is_alive, pids)), 5, "end of the ranks")
    monkeypatch.undo()
    with synk.session(2):
        assert summing()(ROWS) == TOTAL
