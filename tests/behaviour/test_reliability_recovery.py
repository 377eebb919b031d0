"""Deaths and hangs: what is told, what is lost, and how a session comes back."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import warnings

import numpy as np
import psutil
import pytensor
import pytensor.tensor as pt
import pytest
from interrupted import FORKING, interrupt, interrupts
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
    await_end,
    board,
    call_for_a_second,
    die,
    is_alive,
    kill,
    note,
    rank_pids,
    reset,
    summing,
)

import synk
from synk.errors import StateError, WorkerDied


def training():
    """Return a function that sums a matrix and adds that to a variable, and this."""
    x = pt.matrix("x", dtype="float64")
    total = pytensor.shared(np.zeros(()), name="total")
    updates = {total: total + x.sum()}
    return synk.function([x], x.sum() + total, updates=updates, mode=PY), total


def own_sums():
    """Return a function that stores each rank's own sum, and the variable."""
    x = pt.matrix("x", dtype="float64")
    own = pytensor.shared(np.zeros(()), name="own")
    return synk.function([x], updates={own: x.sum()}, local=True, mode=PY), own


# -- what is told


def test_the_error_names_the_process_and_its_end():
    call = summing()
    with synk.session(3):
        for rank in (2, -1):
            assert call(ROWS) == TOTAL
            pid = all_pids()[max(rank, 0)]
            kill(rank)
            with pytest.raises(WorkerDied) as caught:
                call_for_a_second(call)
            error = caught.value
            assert (error.rank, error.pid, error.signal) == (rank, pid, signal.SIGKILL)
            assert synk.recover() == []


def test_a_dead_rank_is_reported_while_the_zygote_is_stopped():
    """And none is left, though one takes a while to end on a core that it shares."""
    call = summing()
    synk.fork(3)
    assert call(ROWS) == TOTAL
    zygote, *pids = all_pids()
    os.kill(zygote, signal.SIGSTOP)
    assert call(ROWS) == TOTAL
    os.kill(pids[1], signal.SIGKILL)
    with pytest.raises(
        WorkerDied, match=r"rank 2 .* the zygote does not say"
    ) as caught:
        call(ROWS)
    error = caught.value
    assert (error.rank, error.pid) == (2, pids[1])
    assert (error.status, error.signal, error.exitcode) == (None, None, None)
    rank, cores = psutil.Process(pids[0]), [min(os.sched_getaffinity(0))]
    rank.nice(10)
    rank.cpu_affinity(cores)
    spin = f"import os, signal; os.sched_setaffinity(0, {cores}); signal.alarm(20)"
    spin += "\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", spin]) as busy:
        assert synk.recover() == []
        assert not any(map(is_alive, [zygote, *pids]))
        busy.kill()
    assert_works(3)
    synk.close()


# -- processes that hang


def test_the_time_of_the_masters_own_share_does_not_count():
    with synk.session(2, timeout=0.5):
        assert acting(0, time.sleep, 1.0)(ROWS) == TOTAL


@pytest.mark.parametrize(
    ("struck", "seconds"),
    [(slice(1, None), 4), (slice(1), 20)],  # of these it waits five for the zygote
    ids=["ranks", "zygote"],
)
def test_close_kills_what_hangs(struck, seconds):
    synk.fork(3)
    pids = all_pids()
    for pid in pids[struck]:
        os.kill(pid, signal.SIGSTOP)
    start = time.monotonic()
    synk.close()
    assert time.monotonic() - start < seconds
    await_end(pids)


# -- recover: whatever has ended the session


def by_a_timeout() -> None:
    reset()
    with pytest.raises(synk.RankTimeout):
        acting(1, arrive_and_ignore)(ROWS, timeout=0.3)


def test_a_session_comes_back_with_functions_data_and_variables():
    call, total = training()
    data = synk.data(ROWS)
    with synk.session(3):
        for death in (lambda: kill(2), lambda: kill(-1), by_a_timeout):
            assert call(ROWS) == total.get_value()
            before = total.get_value()
            death()
            assert total.get_value() == before
            assert synk.recover() == []
            assert synk.size() == len(rank_pids()) + 1 == 3
            assert synk.recover() == []
            assert call(data) == TOTAL + before
            assert total.get_value() == synk.get_value(2, total) == TOTAL + before
        assert_works(3)


def test_a_rank_may_die_at_any_line_of_the_masters_call():
    """The call is made, or raises and has changed nothing, on any rank."""
    call, total = training()
    with synk.session(3):
        for trace in interrupts(61, 100, (), lambda: kill(1)):
            call(ROWS)
            before = total.get_value()
            with trace:
                try:
                    assert call(ROWS) == (after := before + TOTAL)
                except WorkerDied:
                    after = before
            assert total.get_value() == after, trace.raised_at
            synk.recover()
            assert synk.get_value(2, total) == after, trace.raised_at


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


def test_calls_and_runs_in_which_a_rank_dies():
    call, total = mortal()
    own_call, own = mortal(local=True)
    with synk.session(2):
        note(DIES_AT, 2)
        call(ROWS)
        with pytest.raises(WorkerDied):
            call(ROWS)
        assert synk.recover() == []
        assert total.get_value() == TOTAL
        note(DIES_AT, 4)
        with pytest.raises(WorkerDied):
            call.run([slice(0, 12)] * 6, ROWS)
        assert synk.recover() == []
        assert total.get_value() in (4 * TOTAL, 5 * TOTAL)  # the calls before stay
        assert synk.get_value(1, total) == total.get_value()
        note(DIES_AT, 4)
        with pytest.raises(WorkerDied):
            own_call.run([slice(0, 12)] * 6, ROWS)
        assert synk.recover() == [own]
        assert "unknown" in synk.state(own)


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
        assert "replicated" in synk.state(later)
        match = (
            "takes own as replicated, .* rank 1 died.* synk.broadcast or .* set_value"
        )
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
            assert synk.state(part) == "sharded in 2, 2, 1 rows, since synk.scatter"
            assert synk.gather(part, nd_up=0).tolist() == [6, 1, 2, 3, 4]
            assert synk.gather(part, nd_up=0).dtype == np.float32
            assert total() == 16


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


# -- states, and faults of the recovery itself


def test_recover_needs_a_session():
    assert not synk.is_forked()
    with pytest.raises(StateError, match=r"call synk\.fork"):
        synk.recover()
    with synk.session(2):
        with pytest.raises(StateError, match="this is rank 1"):
            acting(1, synk.recover)(ROWS)
        assert synk.recover() == []
        assert summing()(ROWS) == TOTAL
    with pytest.raises(StateError, match="closed"):
        synk.recover()


def kill_the_newest() -> None:
    for pid in all_pids()[1:][-1:]:
        os.kill(pid, signal.SIGKILL)
        await_end([pid])


@pytest.mark.parametrize("handler", [interrupt, kill_the_newest])
def test_a_recovery_can_be_interrupted_at_any_line_and_a_rank_may_die_in_it(handler):
    store_own, own = own_sums()
    call, ends = summing(), 0
    with synk.session(3):
        for trace in interrupts(61, 80, (*FORKING, "deaths.py"), handler):
            store_own(ROWS)
            kill(2)
            with contextlib.suppress(WorkerDied):
                call(ROWS)
            with trace:
                try:
                    synk.recover()
                    call(ROWS)
                except (KeyboardInterrupt, WorkerDied):
                    ends += 1
            assert (synk.size(), synk.is_forked()) == (3, True), trace.raised_at
            assert synk.recover() in ([own], []), trace.raised_at
            assert "died" in synk.state(own), trace.raised_at
            assert call(ROWS) == TOTAL, trace.raised_at
        assert ends
        assert_works(3)
