"""Shared memory: segments and their layout, rows in it, threads that fill it."""

import contextlib
import errno
import gc
import mmap
import os
import signal
import struct
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from processes import segments_of

import synk
from synk.errors import SharedMemoryFull
from synk.files.columns import Column
from synk.memory import descriptors, limits
from synk.memory.loading import JobThread
from synk.memory.mapping import address
from synk.memory.partition import cuts, part, select
from synk.memory.rows import RowTaker, gather
from synk.memory.segment import CHECK_FROM, Attachments, Segment, layout


def mapped() -> set[str]:
    """Return the shared memory that this process maps or holds open."""
    gc.collect()
    return segments_of([os.getpid()])


def test_descriptors_are_made_without_pythons_help_too():
    fd = descriptors._memfd_by_libc("synk-test", descriptors._CLOEXEC)
    try:
        assert os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:synk-test")
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)
    with pytest.raises(OSError, match="memfd_create: Invalid argument"):
        descriptors._memfd_by_libc("synk-test", -1)


def test_a_kernel_that_does_not_know_the_newest_flag_is_fine(monkeypatch):
    create, asked = descriptors._memfd_create, []

    def older(name, flags):
        asked.append(flags)
        if flags & ~descriptors._CLOEXEC:
            raise OSError(errno.EINVAL, "Invalid argument")
        return create(name, flags)

    monkeypatch.setattr(descriptors, "_memfd_create", older)
    assert Segment(100).nbytes == mmap.PAGESIZE
    assert len(asked) == 2


def test_small_segments_do_not_pay_for_the_look(monkeypatch):
    monkeypatch.setattr(
        limits, "tightest", lambda: limits.MemoryLimit(None, 1 << 30, 100)
    )
    small = Segment(CHECK_FROM - mmap.PAGESIZE)
    with pytest.raises(SharedMemoryFull, match=r"100 bytes are free of the machine's"):
        small.grow(3 * CHECK_FROM)
    assert os.fstat(small.place[1]).st_blocks * 512 == small.nbytes < CHECK_FROM
    monkeypatch.setattr(limits, "tightest", lambda: None)
    small.grow(3 * CHECK_FROM)


def test_growing_without_address_space_gives_back_what_was_reserved(monkeypatch):
    segment = Segment(4096)
    view = segment.array(np.int64, (512,))

    def refused(*_):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("synk.memory.mapping.Mapping", refused)
    with pytest.raises(SharedMemoryFull, match="ulimit -v is"):
        segment.grow(1 << 24)
    monkeypatch.undo()
    status = os.fstat(segment.place[1])
    assert (status.st_size, 512 * status.st_blocks, segment.nbytes) == (4096,) * 3
    view[:] = 1
    segment.grow(8192)
    assert segment.array(np.int64, (1024,)).sum() == 512


BIG = 2**31 + 4096


def test_the_rows_of_more_than_two_to_the_31_are_cut_and_selected_exactly():
    third = BIG // 3
    assert list(cuts(BIG, 3)) == [0, third, 2 * third, BIG]
    selection = select(slice(2**31 - 1, None), BIG)
    assert part(selection, 1, 3) == slice(2**31, 2**31 + 2)
    last = select(np.array([-1, 2**31]), BIG)
    np.testing.assert_array_equal(last, [BIG - 1, 2**31])
    assert layout([BIG, BIG, 1]) == ([0, BIG, 2 * BIG], 2 * BIG + 64)
    assert layout([1, 64, 65, 0, 7]) == ([0, 64, 128, 256, 256], 320)  # cache lines


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

PAGEMAP = Path("/proc/self/pagemap")


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


class Stop(Exception):
    """What the handler of the alarm raises."""


@contextlib.contextmanager
def alarms(monkeypatch):
    """Return what calls a function with an alarm within some seconds; was it heard?"""

    def stop(number, frame):
        raise Stop

    def interrupted(within, function):
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-6, within))
                function()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Stop:
            return True
        except UnboundLocalError as error:
            # PyTensor's, whose handler of errors names a node that there is not yet.
            if not isinstance(error.__context__, Stop):
                raise
            return True
        return False

    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    draw = np.random.default_rng(0)
    before = signal.signal(signal.SIGALRM, stop)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGALRM, before)


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
    """Both waits for the second part are interrupted; its thread goes on to write."""
    values = np.arange(40)
    for i in range(4):
        np.save(tmp_path / f"{i}.npy", values[10 * i : 10 * i + 10])
    rows = synk.files.arrays(tmp_path)
    began, goes_on, fill = threading.Event(), threading.Event(), Column.fill
    readers: set[threading.Thread] = set()

    def slow(column, *args):
        readers.add(threading.current_thread())
        if len(readers) == 2:  # the second part's
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
    with monkeypatch.context() as patch:
        patch.setattr(JobThread, "close", interrupted(JobThread.close))
        parts = rows.parts(0, 10)
        next(parts)
        assert began.wait(60)
        patch.setattr(JobThread, "wait", interrupted(JobThread.wait))
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
