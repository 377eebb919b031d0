"""Calls that fail on some rank: no variable is changed, on any rank."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile import Mode
from pytensor.graph import Apply, Op
from reference import PY, assert_same, on_all_ranks

import synk
from synk.comm.divided import DividedAllReduce
from synk.ranks.session import SESSION
from synk.ranks.undoing import Launch, worker_undo
from synk.variables import collectives

IN_PLACE = Mode("py", "fast_run")
"""Updates are written into the variables' arrays where that can be."""


class FailsOnRank1(Op):
    """The value itself; on rank 1, an error, after the other has come to its end."""

    __props__ = ()

    def make_node(self, value):
        """Apply the Op to a scalar."""
        return Apply(self, [value], [value.type()])

    def perform(self, node, inputs, outputs):
        """Compute it."""
        if synk.rank() == 1:
            time.sleep(0.1)
            raise ArithmeticError("of rank 1")
        outputs[0][0] = inputs[0].copy()


def looked_up():
    """Return indices and a table: who has one that is too large raises IndexError."""
    i = pt.lvector("i")
    table = pytensor.shared(np.arange(4.0), "table")
    count, seen = pytensor.shared(0.0, "count"), pytensor.shared(0.0, "seen")
    return i, table, count, seen


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("is_local", [False, True], ids=["reduced", "local"])
def test_a_call_that_fails_on_one_rank_changes_nothing_on_any(ranks, slices, is_local):
    i, table, count, seen = looked_up()
    picked = table[i].sum()
    updates = [(count, count + 1), (seen, picked)]
    f = synk.function([i], (picked, "sum"), updates=updates, mode=PY, local=is_local)
    right, made = 0.0, 0
    good, bad = np.arange(2 * ranks) % 4, np.arange(2 * ranks) % 4
    bad[-1] = 9  # the last rank's
    for rows in (good, bad, good, bad, bad, good):
        before = on_all_ranks(seen) if made else None
        if rows is bad:
            with pytest.raises(IndexError):
                f(rows, num_slices=slices)
            assert before == on_all_ranks(seen)
        else:
            right, made = f(rows, num_slices=slices), made + 1
        assert on_all_ranks(count) == [made] * ranks
    if not is_local:
        assert on_all_ranks(seen) == [right] * ranks


def test_updates_that_wait_for_nothing_are_undone_where_they_were_made(two_ranks):
    _, table, count, _ = looked_up()
    x = pt.dvector("x")
    updates = [(count, count + x.sum()), (table, table * 2)]
    fails = FailsOnRank1()(x.sum())
    f = synk.function([x], (fails, "sum"), updates=updates, mode=PY, local=True)
    for _ in range(2):
        with pytest.raises(ArithmeticError, match="of rank 1"):
            f(np.ones(4))
        assert on_all_ranks(count) == [0, 0]
        for value in on_all_ranks(table):
            assert_same(value, np.arange(4.0))
    assert synk.state(count).startswith("equal on all ranks")


@pytest.mark.parametrize("is_local", [False, True], ids=["reduced", "local"])
def test_of_a_run_the_calls_before_stay(ranks, is_local):
    i, table, count, seen = looked_up()
    picked = table[i].sum()
    updates = [(count, count + 1), (seen, seen + picked)]
    f = synk.function([i], (picked, "sum"), updates=updates, mode=PY, local=is_local)
    rows = np.tile(np.arange(2 * ranks) % 4, 5)
    rows[-2 * ranks - 1] = 9  # of the fourth call, on the last rank
    batches = [slice(k * 2 * ranks, (k + 1) * 2 * ranks) for k in range(5)]
    with pytest.raises(IndexError):
        f.run(batches, rows)
    assert on_all_ranks(count) == [3] * ranks
    each = np.arange(4.0)[rows[: 2 * ranks]]
    right = [each.sum()] * ranks
    if is_local:
        right = [part.sum() for part in np.split(each, ranks)]
        kind = "each rank's own, from 2" if ranks > 1 else "each rank's own"
        assert synk.state(seen).startswith(kind)
    assert on_all_ranks(seen) == [3 * value for value in right]
    f.run(batches[:2], rows)
    assert on_all_ranks(count) == [5] * ranks


def test_streams_are_where_they_were(two_ranks):
    def after(function, *arguments):
        with pytest.raises(IndexError):
            function(*arguments)

    i, table, _, _ = looked_up()
    ours, common = (pytensor.shared(np.random.default_rng(k)) for k in (1, 2))
    size = pt.stack([i.shape[0]])
    state, of_rows = pt.random.normal(size=size, rng=ours).owner.outputs
    next_state, alike = pt.random.normal(size=(3,), rng=common).owner.outputs
    updates = [(ours, state), (common, next_state)]
    outputs = [of_rows, alike, (table[i].sum(), "sum")]

    def drawn(fails):
        f = synk.function([i], outputs, updates=updates, mode=PY)
        for var, seed in ((ours, 1), (common, 2)):
            var.set_value(np.random.default_rng(seed))
        f(np.arange(4))
        if fails:
            after(f, np.array([0, 1, 2, 9]))
            after(f.run, [slice(0, 4), slice(4, 8)], np.array([0, 1, 2, 3, 3, 2, 1, 9]))
        else:
            f(np.arange(4))
        return f(np.arange(4))[:2]

    for value, right in zip(drawn(True), drawn(False), strict=True):
        assert_same(value, right)


def test_outputs_that_do_not_fit_together_undo_the_call(two_ranks):
    x, count = pt.vector("x"), pytensor.shared(0.0, "count")
    positive = x[(x > 0).nonzero()]
    f = synk.function([x], (positive, "sum"), updates=[(count, count + 1)], mode=PY)
    f([1.0, 2, 3, 4])
    with pytest.raises(synk.ShapeMismatch):
        f([1.0, 2, -3, 4])
    assert on_all_ranks(count) == [1, 1]


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


@pytest.mark.parametrize("interrupts", [1, 2, 5])
def test_an_undoing_that_is_interrupted_is_done_by_the_next_call(
    two_ranks, monkeypatch, interrupts
):
    def run(work, *arguments, **options):
        replies = right(work, *arguments, **options)
        if work is worker_undo and left:
            raise left.pop()
        return replies

    right, left = SESSION.run, [KeyboardInterrupt() for _ in range(interrupts)]
    i, table, count, seen = looked_up()
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
