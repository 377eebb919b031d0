"""recover, restarts and on_death: what a session is after a death."""

from __future__ import annotations

import contextlib
import os
import signal
import time
import warnings

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
    arrive_and_ignore,
    assert_works,
    at_barrier,
    board,
    die,
    is_alive,
    note,
    rank_pids,
    reducing,
    reset,
    summing,
    wait_until,
)
from test_interrupt_lines import FORKING, InterruptedAt

import synk
from synk.errors import StateError, WorkerDied
from synk.ranks.session import SESSION
from synk.workers.zygote import Zygote


def kill(rank: int) -> None:
    """Kill a rank, or the zygote, which is -1, and wait for its end."""
    pid = all_pids()[0] if rank < 0 else rank_pids()[rank]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), 5, "death")


def training():
    """Return a function that sums a matrix and adds that to a variable, and this."""
    x = pt.matrix("x", dtype="float64")
    total = pytensor.shared(np.zeros(()), name="total")
    function = synk.function([x], x.sum() + total, updates={total: total + x.sum()})
    return function, total


def own_sums():
    """Return a function that stores each rank's own sum, and the variable."""
    x = pt.matrix("x", dtype="float64")
    own = pytensor.shared(np.zeros(()), name="own")
    return synk.function([x], updates={own: x.sum()}, local=True, mode=PY), own


# -- recover: whatever has ended the session


def of_an_idle_rank(monkeypatch):
    kill(2)


def of_the_zygote(monkeypatch):
    kill(-1)


def of_all_ranks(monkeypatch):
    pids = rank_pids().values()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, pids)), 5, "deaths")


def in_a_call(monkeypatch):
    with pytest.raises(WorkerDied):
        acting(1, die, "SIGSEGV")(ROWS)


def at_a_barrier(monkeypatch):
    synk.close()
    with monkeypatch.context() as patch:
        at_barrier(1, lambda: die("exit 3"), patch)
        synk.fork(3, timeout=20)
    with pytest.raises(WorkerDied):
        reducing()(ROWS)


def by_a_timeout(monkeypatch):
    synk.close()
    reset()
    synk.fork(3, timeout=0.3)
    with pytest.raises(synk.RankTimeout):
        acting(1, arrive_and_ignore)(ROWS)


DEATHS = (
    *(of_an_idle_rank, of_the_zygote, of_all_ranks),
    *(in_a_call, at_a_barrier, by_a_timeout),
)


@pytest.mark.parametrize("death", DEATHS, ids=lambda death: death.__name__)
def test_a_session_comes_back_with_functions_data_and_variables(death, monkeypatch):
    call, total = training()
    data = synk.data(ROWS)
    synk.fork(3, timeout=20)
    assert call(ROWS) == TOTAL
    death(monkeypatch)
    before = total.get_value()
    start = time.monotonic()
    assert synk.recover() == []
    assert time.monotonic() - start < 3
    assert synk.size() == len(rank_pids()) + 1 == 3
    assert synk.recover() == []
    assert call(data) == TOTAL + before
    assert total.get_value() == synk.get_value(2, total) == TOTAL + before
    assert_works(3)
    synk.close()


DIES_AT = 20
"""On the board: at which of the calls that come to `count_to_death` rank 1 dies."""


def count_to_death() -> None:
    note(DIES_AT, board(DIES_AT) - 1)
    if not board(DIES_AT):
        die("SIGKILL")


def mortal(**options):
    """Return a function that adds to a variable, in which rank 1 may die."""
    x = pt.matrix("x", dtype="float64")
    y = Act(1, Do(count_to_death))(x)
    total = pytensor.shared(np.zeros(()), name="total")
    updates = {total: total + y.sum()}
    with warnings.catch_warnings():  # every rank computes the Op of all rows
        warnings.simplefilter("ignore", synk.SplitWarning)
        return synk.function([x], updates=updates, mode=PY, **options), total


def test_a_call_in_which_a_rank_dies_changes_nothing():
    call, total = mortal()
    with synk.session(2):
        note(DIES_AT, 2)
        call(ROWS)
        with pytest.raises(WorkerDied):
            call(ROWS)
        assert synk.recover() == []
        assert total.get_value() == TOTAL
        call(ROWS)
        assert total.get_value() == synk.get_value(1, total) == 2 * TOTAL


def test_of_a_run_in_which_a_rank_dies_the_calls_before_stay():
    call, total = mortal()
    with synk.session(2):
        note(DIES_AT, 4)
        with pytest.raises(WorkerDied):
            call.run([slice(0, 12)] * 6, ROWS)
        assert synk.recover() == []
        assert total.get_value() in (3 * TOTAL, 4 * TOTAL)
        assert synk.get_value(1, total) == total.get_value()


def test_what_a_run_has_made_each_ranks_own_is_lost():
    call, total = mortal(local=True)
    with synk.session(2):
        note(DIES_AT, 4)
        with pytest.raises(WorkerDied):
            call.run([slice(0, 12)] * 6, ROWS)
        assert synk.recover() == [total]
        assert "unknown" in synk.state(total)


def test_values_of_the_ranks_own_are_lost_and_functions_say_so():
    store_own, own = own_sums()
    part = pytensor.shared(np.zeros(0), name="part")
    later = pytensor.shared(np.zeros(0), name="later")
    x = pt.matrix("x", dtype="float64")
    with synk.session(2):
        store_own(ROWS)
        for var in (part, later):
            synk.scatter(var, np.arange(4.0))
        later.set_value(np.ones(2))  # by the script: all ranks are to have that
        kept = own.get_value()
        kill(1)
        assert set(synk.recover()) == {own, part}
        assert synk.state([own, part]) == ["unknown, since rank 1 died"] * 2
        assert "equal" in synk.state(later)
        match = "takes own for equal .* rank 1 died.* synk.broadcast or .* set_value"
        with pytest.raises(synk.SplitError, match=match):
            synk.function([x], x.sum() + own, mode=PY)(ROWS)
        assert own.get_value() == kept
        assert synk.function([x], x.sum() + later.sum(), mode=PY)(ROWS) == TOTAL + 2
        own.set_value(1.0)
        assert synk.function([x], x.sum() + own, mode=PY)(ROWS) == TOTAL + 1
        kill(1)
        assert synk.recover() == [part]  # still


def test_what_was_scattered_can_be_restored():
    part = pytensor.shared(np.zeros(0, "float32"), name="part")
    moved = pytensor.shared(np.zeros(0), name="moved")
    given = np.arange(7, dtype="float32")
    with synk.session(3, on_death="restore"):
        synk.scatter(part, given, batch=[6, 1, 2, 3, 4])
        synk.scatter(moved, np.arange(7.0))
        total = synk.function([], part.sum(), mode=PY)
        move = synk.function([], updates={moved: moved + 1}, mode=PY)
        assert total() == 16
        move()
        given[:] = -1  # what was scattered is what it was then
        for _ in range(2):
            kill(1)
            assert synk.recover() == [moved]
            assert synk.state(part) == "in parts of 2, 2, 1 rows, since synk.scatter"
            assert synk.gather(part, nd_up=0).tolist() == [6, 1, 2, 3, 4]
            assert synk.gather(part, nd_up=0).dtype == np.float32
            assert total() == 16


def test_each_ranks_stream_goes_on_with_other_numbers():
    x = pt.vector("x", dtype="float64")
    rng = pytensor.shared(np.random.default_rng(7), name="rng")
    next_rng, noise = pt.random.normal(size=x.shape, rng=rng).owner.outputs
    draw = synk.function([x], (x + noise, "gather"), updates={rng: next_rng}, mode=PY)
    with synk.session(2):
        drawn = [*draw(np.zeros(6))]
        kill(1)
        assert synk.recover() == []
        drawn += [*draw(np.zeros(6))]
    assert len(set(drawn)) == 12


# -- restarts


def test_between_calls_ranks_come_back_by_themselves_as_often_as_asked():
    call, total = training()
    store_own, own = own_sums()
    with synk.session(2, restarts=2):
        call(ROWS)
        store_own(ROWS)
        kill(1)
        match = (
            r"rank 1 .*SIGKILL.* started all ranks again \(1 .*values of own are lost"
        )
        with pytest.warns(RuntimeWarning, match=match) as caught:
            assert call(ROWS) == 2 * TOTAL
        assert [warning.filename for warning in caught] == [__file__]
        assert "died" in synk.state(own)
        with pytest.raises(WorkerDied, match=r"next call .*restarts=2, 1 left"):
            acting(1, die, "exit 3")(ROWS)
        with pytest.warns(RuntimeWarning, match=r"rank 1 .*code 3.*\(0 restarts left"):
            synk.broadcast(total)
        assert call(ROWS) == 3 * TOTAL
        kill(1)
        for _ in range(2):
            with pytest.raises(WorkerDied, match=r"call synk\.recover\(\) or"):
                call(ROWS)
        synk.recover()
        assert call(ROWS) == 4 * TOTAL


def test_ranks_that_die_again_while_they_start_use_up_restarts(monkeypatch):
    call = summing()
    with synk.session(2, restarts=3):
        call(ROWS)
        kill(1)
        started = []

        def fork_rank(self, rank, original=Zygote.fork_rank):
            started.append(rank)
            if len(started) < 3:
                raise WorkerDied(rank, 77, 3)
            return original(self, rank)

        monkeypatch.setattr(Zygote, "fork_rank", fork_rank)
        with pytest.warns(RuntimeWarning, match="0 restarts left"):
            assert call(ROWS) == TOTAL
        assert started == [1, 1, 1]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"restarts": -1}, ValueError, "restarts must be at least 0, got -1"),
        ({"restarts": 1.5}, TypeError, "restarts must be an int"),
        ({"on_death": "keep"}, ValueError, "on_death must be 'report' or 'restore'"),
    ],
    ids=str,
)
def test_arguments_are_checked(arguments, error, message):
    with pytest.raises(error, match=message):
        synk.fork(2, **arguments)


# -- states, and faults of the recovery itself


def test_recover_needs_a_session():
    assert not synk.is_forked()
    with pytest.raises(StateError, match=r"call synk\.fork"):
        synk.recover()
    with synk.session(2):
        with pytest.raises(StateError, match="this is rank 1"):
            acting(1, synk.recover)(ROWS)
        with pytest.raises(StateError, match="inside a synk call"):
            acting(0, synk.recover)(ROWS)
        child = os.fork()
        if child == 0:
            try:
                synk.recover()
            except StateError as error:
                os._exit(
                    "child" not in SESSION.state or "forked from" not in str(error)
                )
            os._exit(9)
        assert os.waitpid(child, 0)[1] == 0
        assert synk.recover() == []
        assert summing()(ROWS) == TOTAL
    with pytest.raises(StateError, match="closed"):
        synk.recover()


def test_a_death_while_ranks_come_back_can_be_recovered_from(monkeypatch):
    store_own, own = own_sums()
    synk.fork(3)
    store_own(ROWS)
    kill(2)
    with monkeypatch.context() as patch:
        patch.setattr(SESSION._zygotes, "_serve", lambda *_: die("exit 3"))
        with pytest.raises(WorkerDied, match="code 3"):
            recover_and_call()
    with pytest.raises(WorkerDied):
        summing()(ROWS)
    assert synk.size() == 3
    assert synk.is_forked()
    assert synk.recover() == [own]
    assert_works(3)
    synk.close()


def recover_and_call() -> None:
    # A rank runs before it dies: the first call may be the one that says so.
    synk.recover()
    summing()(ROWS)


def test_a_recovery_can_be_interrupted_at_any_line():
    # At one in seven of them, as each takes two sessions.
    store_own, own = own_sums()
    call = summing()
    synk.fork(2)
    k = 1
    while True:
        store_own(ROWS)
        kill(1)
        with contextlib.suppress(WorkerDied):
            call(ROWS)
        files = (*FORKING, "aftermath.py")
        interrupted = contextlib.suppress(KeyboardInterrupt)
        with InterruptedAt(k, files) as trace, interrupted:
            synk.recover()
        if not trace.raised_at:
            break
        assert synk.is_forked(), trace.raised_at
        assert synk.recover() in ([own], []), trace.raised_at
        assert "died" in synk.state(own), trace.raised_at
        assert call(ROWS) == TOTAL, trace.raised_at
        k += 7
    assert k > 100
    assert call(ROWS) == TOTAL
    synk.close()


def test_a_signal_handler_may_close_synk_while_it_recovers():
    for k in range(1, 1000, 31):
        synk.fork(2)
        kill(1)
        closed = contextlib.suppress(StateError)
        with InterruptedAt(k, FORKING, handler=synk.close) as trace, closed:
            synk.recover()
        synk.close()
        assert not synk.is_forked()
        if not trace.raised_at:
            break
    assert k > 60
