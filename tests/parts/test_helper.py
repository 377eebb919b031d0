"""A thread that does jobs: in order, and whatever point an interrupt comes at."""

from __future__ import annotations

import threading

import pytest
from random_alarms import alarms

from synk.threads.helper import Helper

NAME = "synk-test"


def threads():
    return [thread for thread in threading.enumerate() if thread.name == NAME]


def test_jobs_are_done_one_after_the_other_in_one_thread():
    helper, seen = Helper(NAME), []
    assert not threads()
    for k in range(5):
        helper.begin(lambda k: seen.append(threading.get_ident()) or k * k, k)
        assert helper.wait() == k * k
    assert len(set(seen)) == 1
    assert seen[0] != threading.get_ident()
    helper.begin(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        helper.wait()
    helper.begin(str, 3)
    assert helper.wait() == "3"
    helper.close()
    assert not threads()


def test_close_waits_for_the_job_that_has_begun():
    helper, goes_on, seen = Helper(NAME), threading.Event(), []
    begun = threading.Event()

    def job():
        begun.set()
        assert goes_on.wait(30)
        seen.append(1)

    helper.begin(job)
    assert begun.wait(30)
    threading.Timer(0.05, goes_on.set).start()
    helper.close()
    assert seen == [1]
    Helper(NAME).close()  # that has begun nothing
    assert not threads()


def test_an_interrupt_at_any_point_leaves_no_lock_taken(monkeypatch):
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
        for _ in range(1500):
            helper = Helper(NAME)
            stops += interrupted(400e-6, lambda: use(helper))  # noqa: B023
            helper.close()
            assert begun == ended
            begun.clear(), ended.clear()
    assert stops > 50
    assert not threads()
