"""Shared memory: messages, gathered rows, mapped pages, and what is read to it."""

from __future__ import annotations

import mmap
import signal
import struct
import threading
from pathlib import Path

import numpy as np
import pytest
from random_alarms import alarms

import synk
from synk.files.columns import Column
from synk.memory.arena import Arena
from synk.memory.loading import JobThread
from synk.memory.mapping import address
from synk.memory.rows import RowTaker, gather
from synk.memory.segment import Attachments, Segment

PAGEMAP = Path("/proc/self/pagemap")
# -- the segment that messages are put into --------------------------------------------


def test_an_arena_is_used_again_and_grows():
    arena, attachments = Arena(), Attachments()
    for size in (3, 3, 1000, 2, 100_000):
        arrays = [np.full(size, size + i, dtype) for i, dtype in enumerate("fdi")]
        windows = arena.put(arrays)
        assert len({window[2] for window in windows}) == 1
        for array, window in zip(arrays, windows, strict=True):
            seen = attachments.array(window)
            assert seen.dtype == array.dtype
            assert seen.ctypes.data % 64 == 0
            np.testing.assert_array_equal(seen, array)


# -- rows by their numbers -------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["uint8", "float32", "complex128", "S7", "bool"])
@pytest.mark.parametrize("shape", [(1,), (5,), (1025,), (3000,), (20, 17), (4, 5, 6)])
def test_gathered_rows_are_those_of_take(dtype, shape):
    random = np.random.default_rng(shape)
    array = random.integers(0, 100, (40, *shape)).astype(dtype)
    for count in (0, 1, 3, 40, 90):
        rows = random.integers(0, 40, count)
        out = np.empty((count, *shape), dtype)
        assert gather(array, rows, out) is out
        np.testing.assert_array_equal(out, np.take(array, rows, axis=0))


# -- pages that machine code is to read ------------------------------------------------


def are_mapped(array: np.ndarray) -> list[bool]:
    """Tell of each page of an array whether this process has it (proc(5), bit 63)."""
    first = address(array) // mmap.PAGESIZE
    last = (address(array) + array.nbytes - 1) // mmap.PAGESIZE
    with PAGEMAP.open("rb") as file:
        file.seek(8 * first)
        entries = file.read(8 * (last - first + 1))
    return [bool(entry >> 63) for (entry,) in struct.iter_unpack("<Q", entries)]


@pytest.mark.skipif(not PAGEMAP.exists(), reason="needs Linux's pagemap")
def test_rows_are_mapped_when_they_are_taken():
    """A segment's writer has all pages, and another mapping none."""
    segment, taker = Segment(64 * mmap.PAGESIZE), RowTaker()
    own = segment.array("f4", (64, mmap.PAGESIZE // 4))
    own[:] = np.arange(64.0)[:, None]
    there = Attachments().array(segment.window(own))
    assert all(are_mapped(own))
    assert taker.take(there, slice(3, 3)).shape == (0, own.shape[1])
    assert not any(are_mapped(there))
    whole = there[5:15].reshape(-1)[3:-3]
    assert taker.take_whole(whole) is whole
    assert all(are_mapped(whole))
    for some in (slice(20, 21), slice(40, 64), slice(0, 64)):
        view = taker.take(there, some)
        assert all(are_mapped(view))
        np.testing.assert_array_equal(view, own[some])
    segment.grow(1 << 20)  # which maps it anew
    again = segment.array("f4", own.shape)
    assert not any(are_mapped(again))
    taker.take(again, slice(0, 64))
    assert all(are_mapped(again))
    np.testing.assert_array_equal(again, there)
    segment.close()


# -- threads that do jobs: in order, and wherever an interrupt comes

NAME = "synk-files"


def threads():
    return [thread for thread in threading.enumerate() if thread.name == NAME]


def test_jobs_are_done_in_turn_in_one_thread_and_close_waits_for_the_last(monkeypatch):
    thread, seen = JobThread(NAME), []
    assert not threads()
    for k in range(5):
        thread.begin(lambda k: seen.append(threading.get_ident()) or k * k, k)
        assert thread.wait() == k * k
    assert len(set(seen)) == 1
    assert seen[0] != threading.get_ident()
    thread.begin(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        thread.wait()
    begun, goes_on = threading.Event(), threading.Event()
    thread.begin(lambda: (begun.set(), goes_on.wait(30), seen.append("end")))
    assert begun.wait(30)
    threading.Timer(0.05, goes_on.set).start()
    thread.close()
    assert seen[-1] == "end"
    JobThread(NAME).close()  # that has begun nothing
    with monkeypatch.context() as patch:  # an interrupt right before it is started
        patch.setattr(threading.Thread, "start", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            (thread := JobThread(NAME)).begin(list)
    thread.close()
    assert not threads()


@pytest.mark.parametrize("is_for_one_job", [False, True])
def test_an_interrupt_at_any_point_leaves_no_lock_taken(is_for_one_job, monkeypatch):
    begun, ended, stops = [], [], 0

    def job(k):
        begun.append(k)
        ended.append(k)
        return k

    def use(thread):
        for k in range(4):
            thread.begin(job, k)
            assert thread.wait() == k

    with alarms(monkeypatch) as interrupted:
        for _ in range(800):
            thread = JobThread(NAME, is_for_one_job)
            stops += interrupted(400e-6, lambda: use(thread))  # noqa: B023
            thread.close()
            assert begun == ended
            begun.clear(), ended.clear()
    assert stops > 25
    assert not threads()


def test_after_an_interrupt_memory_is_the_threads_until_it_ends(tmp_path, monkeypatch):
    """Both waits for the thread are interrupted; it goes on to write."""
    values = np.arange(40)
    for i in range(4):
        np.save(tmp_path / f"{i}.npy", values[10 * i : 10 * i + 10])
    rows = synk.files.arrays(tmp_path)
    began, goes_on, fill = threading.Event(), threading.Event(), Column.fill

    def slow(column, *args):
        if threading.current_thread() is not threading.main_thread():
            began.set()
            assert goes_on.wait(60)
        return fill(column, *args)

    def interrupted(method):
        main = threading.main_thread().ident

        def call(self):
            threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT)).start()
            return method(self)

        return call

    monkeypatch.setattr(Column, "fill", slow)
    parts = rows.parts(0, 10)
    next(parts)
    assert began.wait(60)
    with monkeypatch.context() as patch:
        for name in ("wait", "close"):
            patch.setattr(JobThread, name, interrupted(getattr(JobThread, name)))
        with pytest.raises(KeyboardInterrupt):
            next(parts)
    assert threads()
    again = rows.parts(0, 40, shuffle=False)
    whole = next(again)
    goes_on.set()
    for thread in threads():
        thread.join()
    np.testing.assert_array_equal(whole.inputs[0], values)
    again.close()
