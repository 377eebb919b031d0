"""fork, close and session: what they check, who may call, and what state they leave."""

import multiprocessing
import operator
import os
import sys
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

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
    arrive_and_stay,
    await_arrivals,
    board,
    die,
    is_alive,
    note,
    nothing,
    release,
    reset,
    running,
    summing,
    wait_until,
)

import synk
from synk.errors import StateError, WorkerDied

CORES = sorted(os.sched_getaffinity(0))

# -- the states


def has_state(*state: object) -> bool:
    return (synk.rank(), synk.size(), synk.is_forked()) == state


def test_the_functions_that_tell_the_state():
    assert has_state(0, 1, False)
    assert synk.fork(3) == 3
    assert has_state(0, 3, True)
    synk.close()
    assert has_state(0, 1, False)


UNFORKED = """
call, values = summing(), pytensor.shared(np.ones(3))
uses = [lambda: call(ROWS), lambda: call.run([1], ROWS), synk.distribute]
for collective in (synk.all_reduce, synk.reduce, synk.gather, synk.all_gather,
                   synk.broadcast, synk.get_shapes, synk.get_lengths):
    uses.append(lambda collective=collective: collective(values))
uses += [lambda: synk.scatter(values, ROWS[:, 0]), lambda: synk.get_value(0, values),
         lambda: synk.set_value(0, values, np.zeros(3))]
for _ in range(2):
    for use in uses:
        try:
            use()
        except synk.StateError as error:
            print("told", error)
    assert call.as_theano(ROWS) == TOTAL
    with synk.session(2):
        assert call(ROWS) == TOTAL
"""


def test_calls_need_a_running_session(tmp_path):
    with running(UNFORKED, tmp_path) as script:
        for said in ("synk is not forked: call synk.fork", "closed: call synk.fork"):
            for _ in range(13):
                assert said in script.expect("told")
        assert script.wait() == 0


def test_a_session_block_closes_after_an_exception_and_closing_twice_is_fine():
    def fail():
        with synk.session(2):
            pids.extend(all_pids())
            raise ZeroDivisionError

    pids: list[int] = []
    synk.close()
    with pytest.raises(ZeroDivisionError):
        fail()
    assert not synk.is_forked()
    assert len(pids) == 2
    assert not any(map(is_alive, pids))
    with synk.session(2):
        synk.close()
        synk.close()


def test_functions_data_and_variables_outlive_a_session():
    call, rows = summing(), synk.data(ROWS)
    old = pytensor.shared(np.ones(3))
    for n in (1, 3, 2):
        with synk.session(n):
            assert call(rows) == TOTAL
            assert call(ROWS, batch=4) == ROWS[:4].sum()
            new = pytensor.shared(np.ones(3))
            synk.all_reduce(new, "sum")
            old = new  # that of the former session is dropped in this one
            call(ROWS)  # whatever ranks are to forget goes along with a command
            synk.all_reduce(old, "sum")
            np.testing.assert_array_equal(synk.get_value(n - 1, old), np.full(3, n * n))


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
            acting(0, divmod, 1, 0)(ROWS)
        assert any("rank 0 of 1" in note for note in caught.value.__notes__)


# -- preconditions: each raises before anything is forked


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"n": 0}, ValueError, "n must be at least 1, got 0"),
        ({"n": 2.0}, TypeError, r"n must be an int, got 2\.0"),
        ({"n": "2"}, TypeError, "n must be an int, got '2'"),
        ({"n": 2, "devices": "gpu"}, ValueError, "devices must be .*'gpu'"),
        ({"n": 2, "threads": 0}, ValueError, "threads must be at least 1, got 0"),
        ({"n": 2, "threads": "1"}, TypeError, "threads must be an int, got '1'"),
        ({"n": 2, "timeout": 0}, ValueError, "timeout must be .* got 0"),
        ({"n": 2, "timeout": float("nan")}, ValueError, "timeout must be .* got nan"),
        ({"n": 2, "timeout": "5"}, TypeError, "timeout must be .* got '5'"),
        ({"n": 2, "cores": 2}, TypeError, "cores"),
        ({"n": 2, "restarts": -1}, ValueError, "restarts must be at least 0, got -1"),
        ({"n": 2, "restarts": 1.5}, TypeError, "restarts must be an int"),
        ({"n": 2, "on_death": "keep"}, ValueError, "must be 'report' or 'restore'"),
    ],
    ids=str,
)
def test_arguments_of_fork_are_checked(arguments, error, message, monkeypatch):
    monkeypatch.setattr(os, "fork", None)  # nothing is forked
    with pytest.raises(error, match=message):
        synk.fork(**arguments)
    assert has_state(0, 1, False)


def test_a_forked_session_cannot_be_forked():
    with synk.session(2):
        pids = all_pids()
        with pytest.raises(StateError, match=r"forked already, with 2 ranks.*close"):
            synk.fork(2)
        assert all_pids() == pids
        assert summing()(ROWS) == TOTAL
        with pytest.raises(WorkerDied):
            acting(1, os._exit, 1)(ROWS)
        with pytest.raises(StateError, match=r"close\(\) first"):
            synk.fork(2)


@pytest.mark.parametrize("there", [None, 64])
def test_more_ranks_than_cores_are_warned_of_at_the_callers_line(there, monkeypatch):
    os.sched_setaffinity(0, CORES[:1])
    monkeypatch.setattr(os, "cpu_count", lambda: there)
    said = "1 usable core" if there is None else r"1 usable core \(of 64: .*quota"
    match = rf"^2 ranks on {said}.* slower than with synk.fork\(1\)$"
    try:
        with pytest.warns(synk.OversubscriptionWarning, match=match) as caught:
            synk.fork(2)
        assert summing()(ROWS) == TOTAL
        synk.close()
        assert [warning.filename for warning in caught] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(synk.OversubscriptionWarning):
                synk.fork(2)
            assert not synk.is_forked()
            with synk.session(1, devices="cpu"):
                pass  # not of so many
    finally:
        os.sched_setaffinity(0, CORES)


def test_by_default_there_is_a_rank_for_every_usable_core():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with synk.session(devices="cpu") as n:
            assert 1 <= n <= len(CORES)  # fewer, where there is a quota


def test_other_platforms_are_refused(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(StateError, match=r"Linux.*darwin"):
        synk.fork(2)


def test_a_fork_that_fails_leaves_nothing_and_can_be_repeated(monkeypatch):
    def full_after(n):
        def fork_or_raise():
            forks.append(0)
            if len(forks) > n:
                raise BlockingIOError(11, "Resource temporarily unavailable")
            return fork()

        fork, forks = os.fork, []
        return fork_or_raise

    match = r"rank 1 was not forked.*ulimit -u is \w+.* fewer ranks"
    for n, said in enumerate((r"2 ranks.*ulimit -u is \w+", match)):
        with monkeypatch.context() as patch:
            patch.setattr(os, "fork", full_after(n))
            with pytest.raises(synk.SynkError, match=said):
                synk.fork(2)
        assert has_state(0, 1, False)
    with synk.session(2):
        assert summing()(ROWS) == TOTAL


# -- inside a rank


def try_to(what: str) -> None:
    """Do what only the master can; raises StateError."""
    {
        "fork": lambda: synk.fork(2),
        "function": summing,
        "data": lambda: synk.data(np.ones(3)),
        "collective": lambda: synk.all_reduce(pytensor.shared(np.ones(3))),
        "distribute": synk.distribute,
        "call": lambda: _inner[0](ROWS),
    }[what]()


_inner: list[synk.Function] = []


def test_a_rank_that_acts_as_a_master_gets_a_clear_error(two_ranks):
    for what in ("fork", "function", "data", "collective", "distribute"):
        with pytest.raises(StateError, match="this is rank 1"):
            acting(1, try_to, what)(ROWS)
    assert acting(1, synk.close)(ROWS) == TOTAL  # which does nothing there
    assert summing()(ROWS) == TOTAL


@pytest.mark.parametrize("n", [1, 2])
def test_an_op_on_rank_0_that_calls_synk_is_told_where_it_is(n):
    with synk.session(n):
        _inner[:] = [summing()]
        for what in ("fork", "collective", "distribute", "call"):
            with pytest.raises(StateError, match="this is rank 0, inside a synk call"):
                acting(0, try_to, what)(ROWS)
        assert _inner.pop()(ROWS) == TOTAL
        assert synk.size() == n


# -- threads


def test_a_call_from_a_second_thread_is_a_clear_error():
    reset()
    call = acting(1, arrive_and_stay)
    other = summing()
    with synk.session(2), ThreadPoolExecutor(1) as pool:
        other(ROWS)
        first = pool.submit(call, ROWS)
        await_arrivals(1)
        with pytest.raises(StateError, match="one at a time"):
            other(ROWS)
        values = pytensor.shared(np.ones(3))
        with pytest.raises(StateError, match="one at a time"):
            synk.all_reduce(values)
        release()
        assert first.result(10) == TOTAL
        assert other(ROWS) == TOTAL


def test_a_session_works_from_any_one_thread():
    with ThreadPoolExecutor(1) as pool:
        pool.submit(synk.fork, 3).result(30)
        # The thread that forked ends here, and the ranks stay.
    pids, call = all_pids(), summing()
    assert call(ROWS) == TOTAL
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(call, ROWS).result(30) == TOTAL
        pool.submit(synk.close).result(30)
    assert not any(map(is_alive, pids))
    assert sorted(os.sched_getaffinity(0)) == CORES


# -- processes of the script


def use_synk_in_child(results, call):
    """Try everything in a child of the master; send what happened."""
    seen = [synk.is_forked(), synk.size()]
    for use in (lambda: call(ROWS), synk.distribute, lambda: try_to("collective")):
        try:
            use()
            seen.append("worked")
        except StateError as error:
            seen.append(str(error))
    synk.close()
    with synk.session(len(CORES)):  # the child can have ranks of its own, on all cores
        seen.append(float(summing()(ROWS)))
        seen.append(sorted(os.sched_getaffinity(0)))
    results.put([*seen, sorted(os.sched_getaffinity(0))])


def test_a_child_of_the_script_has_no_part_in_the_session():
    call = summing()
    context = multiprocessing.get_context("fork")
    with synk.session(3):
        assert call(ROWS) == TOTAL
        pids = all_pids()
        results = context.SimpleQueue()
        child = context.Process(target=use_synk_in_child, args=(results, call))
        child.start()
        child.join(30)
        assert child.exitcode == 0
        forked, size, *errors, total, own, cores = results.get()
        assert (forked, size, total) == (False, 1, TOTAL)
        assert len(errors) == 3
        assert all("forked from a synk master" in error for error in errors)
        assert (own, cores) == (CORES[:1], CORES)
        assert all_pids() == pids
        assert call(ROWS) == TOTAL


# -- what travels to ranks and back


class Unsendable:
    def __reduce__(self):
        raise RuntimeError("cannot be sent")


class Unreadable:
    """What cannot be unpickled on a rank, as what it cannot import."""

    def __reduce__(self):
        return read, ()


def read():
    if synk.rank():
        raise ImportError("cannot be read")
    return Unreadable()


def test_what_cannot_be_sent_or_read_is_an_error_and_no_death(two_ranks):
    pids = all_pids()
    var = pytensor.shared(object(), name="anything")
    with pytest.raises(RuntimeError, match="cannot be sent"):
        synk.broadcast(var, Unsendable())
    with pytest.raises(ImportError, match="cannot be read") as caught:
        synk.broadcast(var, Unreadable())
    assert any("rank 1 of 2" in note for note in caught.value.__notes__)
    assert summing()(ROWS) == TOTAL
    assert all_pids() == pids


def test_what_a_library_hangs_on_variables_stays_with_the_script():
    """Keras's variables, and Blocks' tags, have what made them, with all it has."""
    x = pt.matrix("x", dtype="float64")
    doubled = 2 * x
    doubled.layer = doubled.tag.bricks = threading.Lock(), pytensor.shared(0.0)
    f = synk.function([x], doubled.sum(), mode=PY)
    with synk.session(2):
        assert f(ROWS) == 2 * TOTAL
    assert doubled.layer is doubled.tag.bricks


# -- groups of ranks


def meet(number: int, rows: np.ndarray) -> tuple:
    """Make a function in a group, and call it while the other group does so."""
    x = pt.matrix("x", dtype="float64")
    f = synk.function([x], x.sum(), mode=PY)
    note(20 + number, 1)
    wait_until(lambda: board(21 - number), 30, "the other group is here")
    return synk.size(), synk.rank(), f(rows).item()


def test_groups_compute_side_by_side_each_with_its_ranks():
    with synk.session(4, groups=2), ThreadPoolExecutor() as threads:
        groups, data = synk.groups(), synk.data(ROWS)
        assert [each.ranks for each in groups] == [range(2), range(2, 4)]
        assert synk.groups() == groups
        note(20, 0)
        note(21, 0)
        found = threads.map(lambda each: each.run(meet, each.number, data), groups)
        assert list(found) == [(2, 0, TOTAL)] * 2
        assert summing()(data) == TOTAL


def test_a_group_begins_with_the_scripts_variables_and_keeps_its_own():
    count = pytensor.shared(3.0, "count")
    count_on = synk.function([], count, updates=[(count, count + 1)], mode=PY)
    with synk.session(2, groups=2):
        first, second = synk.groups()
        assert count_on().item() == 3
        with first.leader(count_on) as call:
            assert [call().item(), call().item()] == [4, 5]
            assert second.run(count_on).item() == 4
            assert count_on().item() == 4
        assert first.run(count.get_value) == 5


def test_what_a_leader_has_from_the_fork_is_not_pickled():
    total, rows = summing(), synk.data(ROWS)
    w = pytensor.shared(2.0, "w")
    with synk.session(2, groups=1):
        (group,) = synk.groups()
        with group.leader(lambda f, x, w: f(x) * w.get_value()) as call:
            rows[:] = 2 * ROWS
            assert call(total, rows, w) == 4 * TOTAL
            made_after = synk.data(ROWS)
            with pytest.raises(StateError, match="was made after the group's leader"):
                call(total, made_after, w)
            assert call(total, ROWS, w) == 2 * TOTAL


def test_a_class_of_the_script_is_the_same_one_in_a_group():
    def made():
        class Pair(NamedTuple):
            one: int
            other: int

            def turned(self):
                return Pair(self.other, self.one) if isinstance(self, Pair) else None

        return Pair

    first = made()
    with synk.session(2, groups=1), synk.groups()[0].leader(operator.call) as call:
        for pair in (first, made()):  # of before the leader's fork, and of after
            turned = pair.turned
            found = call(turned, pair(1, 2))
            assert (type(found), found) == (pair, (2, 1))
            assert pair.turned is turned


def test_a_rank_that_dies_breaks_its_group_alone():
    total, dying = summing(), acting(1, die, "SIGKILL")
    with synk.session(4, groups=2):
        first, second = synk.groups()
        with first.leader(lambda f, x: f(x)) as call, second.leader(total) as other:
            with pytest.raises(WorkerDied):
                call(dying, ROWS)
            assert other(ROWS) == TOTAL
            assert call(total, ROWS) == TOTAL


def test_what_cannot_be_groups():
    for groups in 0, 3, 4:
        with pytest.raises(ValueError, match="groups"):
            synk.fork(2, groups=groups)
    assert not synk.is_forked()
    with pytest.raises(StateError):
        synk.groups()
    with synk.session(2):
        (group,) = synk.groups()
        assert (group.number, group.ranks) == (0, range(2))
        with pytest.raises(StateError, match="leads a group itself"):
            group.run(lambda: synk.groups()[0].run(nothing))
        with pytest.raises(ZeroDivisionError):
            group.run(lambda: 1 / 0)
    with synk.session(2), pytest.raises(StateError, match="that was closed"):
        group.run(nothing)
