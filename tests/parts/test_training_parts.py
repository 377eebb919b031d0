"""Parts of training: whose turn it is to exchange, and a thread that does jobs."""

from __future__ import annotations

import threading

import pytest
from random_alarms import alarms

from synk.memory.loading import JobThread
from synk.rules.centre import may_come


@pytest.mark.parametrize(("n", "most"), [(2, 1), (2, 3), (3, 2), (4, 5), (5, 4)])
def test_somebody_may_always_come_and_nobody_comes_too_late(n, most):
    # Of each: how many moves ago it came last; all ways to go on.
    states, known = [(0,) * n], set()
    while states:
        state = states.pop()
        if state in known:
            continue
        known.add(state)
        assert max(state) <= most
        others = [[*state[:i], *state[i + 1 :]] for i in range(n)]
        came = [[10_000 - ago for ago in of_others] for of_others in others]
        able = [i for i in range(n) if may_come(10_000, came[i], most)]
        assert state.index(max(state)) in able
        for i in able:
            after = [ago + 1 for ago in state]
            after[i] = 0
            states.append(tuple(after))
    if most > n - 1:  # the bound is reached, and more than taking turns is allowed
        assert max(map(max, known)) == most


# -- a thread that does jobs: in order, and wherever an interrupt comes

NAME = "synk-test"


def threads():
    return [thread for thread in threading.enumerate() if thread.name == NAME]


def test_jobs_are_done_in_turn_in_one_thread_and_close_waits_for_the_last(monkeypatch):
    helper, seen = JobThread(NAME), []
    assert not threads()
    for k in range(5):
        helper.begin(lambda k: seen.append(threading.get_ident()) or k * k, k)
        assert helper.wait() == k * k
    assert len(set(seen)) == 1
    assert seen[0] != threading.get_ident()
    helper.begin(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        helper.wait()
    begun, goes_on = threading.Event(), threading.Event()
    helper.begin(lambda: (begun.set(), goes_on.wait(30), seen.append("end")))
    assert begun.wait(30)
    threading.Timer(0.05, goes_on.set).start()
    helper.close()
    assert seen[-1] == "end"
    JobThread(NAME).close()  # that has begun nothing
    with monkeypatch.context() as patch:  # an interrupt right before it is started
        patch.setattr(threading.Thread, "start", lambda thread: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            (helper := JobThread(NAME)).begin(list)
    helper.close()
    assert not threads()


@pytest.mark.parametrize("is_for_one_job", [False, True])
def test_an_interrupt_at_any_point_leaves_no_lock_taken(is_for_one_job, monkeypatch):
    begun, ended, stops = [], [], 0

    def job(k):
        begun.append(k)
        ended.append(k)
        return k

    def use(helper):
        for k in range(4):
            helper.begin(job, k)
            assert helper.wait() == k

    with alarms(monkeypatch) as interrupted:
        for _ in range(800):
            helper = JobThread(NAME, is_for_one_job)
            stops += interrupted(400e-6, lambda: use(helper))  # noqa: B023
            helper.close()
            assert begun == ended
            begun.clear(), ended.clear()
    assert stops > 25
    assert not threads()
