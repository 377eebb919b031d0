"""Launches that are stopped at their worst places: no variable is changed.

The interrupts come where only a patch can bring them; those at random lines are in
``test_interrupt_lines``.
"""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile import Mode
from reference import PY, assert_same, on_all_ranks

import synk
from synk.comm.divided import DividedAllReduce
from synk.ranks.session import SESSION
from synk.ranks.undoing import Launch, worker_undo
from synk.variables import collectives

IN_PLACE = Mode("py", "fast_run")
"""Updates are written into the variables' arrays where that can be."""


def stop_after(monkeypatch, command):
    """Have the script interrupted when a command has been run on all ranks."""

    def run(work, *arguments, **options):
        replies = right(work, *arguments, **options)
        if work is command:
            monkeypatch.undo()
            raise KeyboardInterrupt
        return replies

    right = SESSION.run
    monkeypatch.setattr(SESSION, "run", run)


def test_a_broadcast_that_was_stopped_changes_nothing(two_ranks, monkeypatch):
    w = pytensor.shared(np.zeros(3), "w")
    stop_after(monkeypatch, collectives.worker_broadcast)
    with pytest.raises(KeyboardInterrupt):
        synk.broadcast(w, np.ones(3))
    for value in on_all_ranks(w):
        assert_same(value, np.zeros(3))
    assert synk.state(w).startswith("equal on all ranks")
    synk.broadcast(w, np.ones(3))
    assert_same(synk.gather(w), np.ones((2, 3)))


@pytest.mark.parametrize("lives_there", [False, True])
@pytest.mark.parametrize("reduction", [synk.all_reduce, synk.reduce])
def test_a_reduction_that_was_stopped_changes_nothing(
    two_ranks, monkeypatch, reduction, lives_there
):
    x, g = pt.vector("x"), pytensor.shared(np.zeros(3), "g")
    # Written in place: g does not leave the memory that it is reduced in.
    changed = pt.inc_subtensor(g[:], x.sum()) if lives_there else g + x.sum()
    f = synk.function([x], updates=[(g, changed)], mode=IN_PLACE, local=True)
    f([1.0, 2.0])
    synk.all_reduce(g, "sum")
    f([1.0, 2.0])
    before = on_all_ranks(g)
    assert_same(before[1], np.full(3, 5.0))
    stop_after(monkeypatch, collectives.worker_reduce)
    with pytest.raises(KeyboardInterrupt):
        reduction(g, "sum")
    for value, right in zip(on_all_ranks(g), before, strict=True):
        assert_same(value, right)
    assert synk.state(g).startswith("each rank's own")
    synk.all_reduce(g, "sum")
    assert_same(synk.gather(g), np.full((2, 3), 9.0))


def test_a_stopped_broadcast_leaves_what_the_script_has_set(two_ranks, monkeypatch):
    w = pytensor.shared(np.zeros(3), "w")
    read = synk.function([], w.sum(), mode=PY)
    read()
    w.set_value(np.full(3, 5.0))
    stop_after(monkeypatch, collectives.worker_broadcast)
    with pytest.raises(KeyboardInterrupt):
        synk.broadcast(w, np.ones(3))
    assert read() == 15
    assert_same(on_all_ranks(w)[1], np.full(3, 5.0))


class Stop(Exception):
    """What stops a rank on its way."""


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("reduction", [synk.all_reduce, synk.reduce])
def test_a_reduction_that_is_stopped_in_its_midst_changes_nothing(
    monkeypatch, reduction, rank
):
    """One rank stops when the other has written its part of the results."""

    def run(all_reduce, spans):
        right(all_reduce, spans)
        if SESSION.rank == rank and next(runs) == 1:
            time.sleep(0.1)
            raise Stop

    runs, right = itertools.count(), DividedAllReduce.run
    monkeypatch.setattr(DividedAllReduce, "run", run)
    x, g = pt.vector("x"), pytensor.shared(np.zeros(1000), "g")
    in_place = pt.inc_subtensor(g[:], x.sum())
    f = synk.function([x], updates=[(g, in_place)], mode=IN_PLACE, local=True)
    with synk.session(2):
        synk.all_reduce(g)
        f([1.0, 2.0])
        before = [value.copy() for value in on_all_ranks(g)]
        with pytest.raises(Stop):
            reduction(g, "sum")
        for value, former in zip(on_all_ranks(g), before, strict=True):
            assert_same(value, former)
        assert synk.state(g).startswith("each rank's own")


@pytest.fixture
def deaf(monkeypatch):
    """Have an interrupt come as Python enters the end of a launch, which is skipped."""

    def end(self, *error):
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(Launch, "__exit__", end)


def test_a_call_whose_end_was_skipped_is_undone_before_the_next(two_ranks, deaf):
    x, total = pt.vector("x"), pytensor.shared(1.0, "total")
    f = synk.function([x], updates=[(total, total + x.sum())], mode=PY, local=True)
    with pytest.raises(KeyboardInterrupt):
        f(np.arange(4.0))
    assert synk.state(total).startswith("equal")
    assert on_all_ranks(total) == [1, 1]
    f(np.arange(4.0))
    assert on_all_ranks(total) == [2, 6]


def test_a_collective_whose_end_was_skipped_is_undone_by_closing(two_ranks, deaf):
    w = pytensor.shared(np.zeros(3), "w")
    with pytest.raises(KeyboardInterrupt):
        synk.broadcast(w, np.ones(3))
    synk.close()
    assert_same(w.get_value(), np.zeros(3))


def test_a_signal_handler_cannot_begin_a_launch_in_another(two_ranks, monkeypatch):
    """Between the ranks' work and its end; in a command it cannot either."""
    w = pytensor.shared(np.zeros(3), "w")
    read = synk.function([], w.sum(), mode=PY)
    right = SESSION.run

    def run(work, *arguments, **options):
        replies = right(work, *arguments, **options)
        monkeypatch.undo()
        with pytest.raises(synk.StateError, match="one at a time"):
            read()
        return replies

    read()
    monkeypatch.setattr(SESSION, "run", run)
    synk.broadcast(w, np.ones(3))
    assert read() == 3


@pytest.mark.parametrize("interrupts", [1, 3])
def test_an_undoing_that_is_interrupted_is_done_by_the_next_call(
    two_ranks, monkeypatch, interrupts
):
    def run(work, *arguments, **options):
        replies = right(work, *arguments, **options)
        if work is worker_undo and left:
            raise left.pop()
        return replies

    right, left = SESSION.run, [KeyboardInterrupt() for _ in range(interrupts)]
    i, table = pt.lvector("i"), pytensor.shared(np.arange(4.0), "table")
    count, seen = pytensor.shared(0.0, "count"), pytensor.shared(0.0, "seen")
    updates = [(count, count + 1), (seen, table[i].sum())]
    f = synk.function([i], updates=updates, mode=PY)
    f(np.arange(4))
    monkeypatch.setattr(SESSION, "run", run)
    with pytest.raises((KeyboardInterrupt, IndexError)):
        f(np.array([0, 1, 2, 9]))
    while left:
        with pytest.raises(KeyboardInterrupt):
            f(np.arange(4))
    f(np.arange(4))
    assert on_all_ranks(count) == [2, 2]
    assert on_all_ranks(seen) == [6, 6]
