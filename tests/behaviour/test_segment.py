"""Shared-memory segments: space reserved, memory given back, sizes beyond 2**31."""

from __future__ import annotations

import errno
import gc
import itertools
import mmap
import os
import stat

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from processes import (
    PY,
    ROWS,
    TOTAL,
    all_pids,
    run_script,
    segments_of,
    summing,
    wait_until,
)

import synk
from synk.errors import SharedMemoryFull
from synk.memory import limits, memfd
from synk.memory.partition import cuts, part, select
from synk.memory.segment import (
    LOOK_FROM,
    Attachments,
    Segment,
    describe,
    layout,
)
from synk.ranks.session import SESSION


def mapped() -> set[str]:
    """Return the shared memory that this process maps or holds open."""
    gc.collect()
    return segments_of([os.getpid()])


# -- one segment


def test_a_segment_has_no_name_and_goes_with_its_last_view():
    before = mapped()
    segment = Segment(10_000)
    assert segment.nbytes == 3 * mmap.PAGESIZE
    array = segment.array(np.float64, (1000,))
    array[:] = np.arange(1000)
    segment.close()
    np.testing.assert_array_equal(array, np.arange(1000))
    assert mapped() != before
    del array, segment
    assert mapped() == before


def test_growing_keeps_the_bytes_and_the_views():
    segment = Segment(4096)
    view = segment.array(np.int64, (512,))
    view[:] = np.arange(512)
    segment.grow(1 << 20)
    whole = segment.array(np.int64, (1 << 17,))
    np.testing.assert_array_equal(whole[:512], np.arange(512))
    assert not whole[512:].any()
    whole[0] = -1
    assert view[0] == -1
    segment.grow(10)  # less than there is: nothing happens
    assert segment.nbytes == 1 << 20


def test_an_attached_segment_is_the_same_memory():
    segment = Segment(4096)
    attached = Segment.attach(*segment.place)
    attached.array(np.int32, (4,))[:] = [1, 2, 3, 4]
    np.testing.assert_array_equal(segment.array(np.int32, (4,)), [1, 2, 3, 4])


def test_attachments_map_once_and_again_after_growing():
    segment, attachments = Segment(4096), Attachments()
    array = segment.array(np.uint8, (4096,))
    window = segment.window(array)
    first = attachments.segment(*segment.place)
    assert attachments.segment(*segment.place) is first
    attachments.array(window)[5] = 7
    assert array[5] == 7
    segment.grow(8192)
    grown = attachments.segment(*segment.place)
    assert grown is not first
    assert grown.array(np.uint8, (8192,))[5] == 7
    attachments.forget(segment.key)
    assert attachments.segment(*segment.place) is not grown


@pytest.mark.parametrize(
    "dtype", ["float16", "complex128", "bool", ">i4", "S7", "datetime64[ns]", "i4,f8"]
)
def test_windows_describe_every_dtype(dtype):
    array = np.zeros(3, dtype)
    segment, attachments = Segment(100), Attachments()
    place = segment.array(array.dtype, array.shape)
    seen = attachments.array(segment.window(place))
    assert seen.dtype == array.dtype
    assert np.dtype(describe(array.dtype)) == array.dtype


def test_pieces_are_laid_out_on_cache_lines_of_their_own():
    offsets, total = layout([1, 64, 65, 0, 7])
    assert offsets == [0, 64, 128, 256, 256]
    assert total == 320


def test_a_segment_is_its_users_alone_and_no_other_programs():
    segment = Segment(100)
    _, fd, _, _ = segment.place
    assert os.readlink(f"/proc/self/fd/{fd}").startswith(f"/memfd:synk-{os.getpid()}-")
    status = os.fstat(fd)
    assert stat.S_IMODE(status.st_mode) == 0o600
    assert status.st_uid == os.geteuid()
    assert not os.get_inheritable(fd)


def test_descriptors_are_made_without_pythons_help_too():
    fd = memfd._by_libc("synk-test", memfd._CLOEXEC)
    try:
        assert os.readlink(f"/proc/self/fd/{fd}").startswith("/memfd:synk-test")
        assert not os.get_inheritable(fd)
    finally:
        os.close(fd)
    with pytest.raises(OSError, match="memfd_create: Invalid argument"):
        memfd._by_libc("synk-test", -1)


def test_a_kernel_that_does_not_know_the_newest_flag_is_fine(monkeypatch):
    create, asked = memfd._memfd_create, []

    def older(name, flags):
        asked.append(flags)
        if flags & ~memfd._CLOEXEC:
            raise OSError(errno.EINVAL, "Invalid argument")
        return create(name, flags)

    monkeypatch.setattr(memfd, "_memfd_create", older)
    assert Segment(100).nbytes == mmap.PAGESIZE
    assert len(asked) == 2


WITHOUT_SHM = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, MS_RDONLY, MS_REC_PRIVATE = 0x20000, 1, (1 << 14) | (1 << 18)
if libc.unshare(CLONE_NEWNS) or libc.mount(b"", b"/", None, MS_REC_PRIVATE, None):
    print("not permitted")
    sys.exit()
assert libc.mount(b"none", b"/dev/shm", b"tmpfs", MS_RDONLY, b"size=4k") == 0
try:
    open("/dev/shm/synk", "w")
except OSError as error:
    print(error.strerror)
import numpy as np, processes, synk
with synk.session(2):
    assert processes.summing()(synk.data(np.ones((1000, 100)))) == 100_000
print("summed")
"""


def test_a_session_needs_no_dev_shm(tmp_path):
    done = run_script(WITHOUT_SHM, tmp_path)
    assert done.returncode == 0, done.stderr
    output = done.stdout.split("\n")
    if output[0] == "not permitted":
        pytest.skip("mounting in a namespace of one's own is not permitted")
    assert output[:2] == ["Read-only file system", "summed"]


# -- more than there is


def test_a_segment_larger_than_the_free_memory_says_what_is_needed_and_free():
    free = limits.tightest().free
    needed = 8 * (free // 8 + (1 << 30))
    pages = -(-needed // mmap.PAGESIZE) * mmap.PAGESIZE
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(
        SharedMemoryFull, match=r"bytes are free of \D+'s [\d,]+\."
    ) as no:
        Segment(needed)
    assert f"no room for {pages:,} bytes of shared memory: " in str(no.value)
    assert isinstance(no.value, MemoryError)
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_small_segments_do_not_pay_for_the_look(monkeypatch):
    monkeypatch.setattr(limits, "tightest", lambda: limits.Limit(None, 1 << 30, 100))
    small = Segment(LOOK_FROM - mmap.PAGESIZE)
    with pytest.raises(SharedMemoryFull, match=r"100 bytes are free of the machine's"):
        small.grow(3 * LOOK_FROM)
    assert os.fstat(small.place[1]).st_blocks * 512 == small.nbytes < LOOK_FROM
    monkeypatch.setattr(limits, "tightest", lambda: None)
    small.grow(3 * LOOK_FROM)


@pytest.fixture
def full(monkeypatch):
    """Have the kernel refuse memory to this process, and the ranks that it forks."""

    def fallocate(fd, offset, length):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    return monkeypatch


def test_growing_without_address_space_gives_back_what_was_reserved(monkeypatch):
    segment = Segment(4096)
    view = segment.array(np.int64, (512,))

    def refused(*_):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("synk.memory.huge.Mapping", refused)
    with pytest.raises(SharedMemoryFull, match="ulimit -v is"):
        segment.grow(1 << 24)
    monkeypatch.undo()
    status = os.fstat(segment.place[1])
    assert (status.st_size, 512 * status.st_blocks, segment.nbytes) == (4096,) * 3
    view[:] = 1
    segment.grow(8192)
    assert segment.array(np.int64, (1024,)).sum() == 512


def test_growing_without_room_keeps_what_there_was(monkeypatch):
    data = synk.data(np.arange(10.0))
    size = os.fstat(data._segment._fd).st_size

    def fallocate(fd, offset, length):
        os.ftruncate(fd, offset + length // 2)  # as far as it came
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", fallocate)
    with pytest.raises(SharedMemoryFull):
        data.set_length(1_000_000)
    assert os.fstat(data._segment._fd).st_size == size
    np.testing.assert_array_equal(data[:], np.arange(10.0))
    monkeypatch.undo()
    data.set_length(20)
    np.testing.assert_array_equal(data[:10], np.arange(10.0))


def test_a_session_goes_on_after_memory_was_refused(full):
    full.undo()
    call = summing()
    values = pytensor.shared(np.ones(4))
    fallocate = os.posix_fallocate

    def limited(fd, offset, length):
        if length > 1 << 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return fallocate(fd, offset, length)

    with synk.session(2):
        assert call(ROWS) == TOTAL
        full.setattr(os, "posix_fallocate", limited)
        with pytest.raises(SharedMemoryFull):
            call(np.ones((1_000_000, 2)))
        with pytest.raises(SharedMemoryFull):
            synk.data(np.ones(1_000_000))
        with pytest.raises(SharedMemoryFull):
            synk.broadcast(values, np.ones(1_000_000))
        large = pytensor.shared(np.ones(1_000_000))
        with pytest.raises(SharedMemoryFull):
            synk.all_reduce(large)
        with pytest.raises(SharedMemoryFull):
            synk.broadcast(pytensor.shared(list(range(1_000_000))))
        assert call(ROWS) == TOTAL
        synk.all_reduce(values, "sum")
        np.testing.assert_array_equal(synk.get_value(1, values), np.full(4, 2.0))
        full.undo()
        assert call(np.ones((1_000_000, 2))) == 2_000_000
        synk.all_reduce(large, "sum")
        assert synk.get_value(1, large)[-1] == 2


@pytest.mark.usefixtures("full")
def test_fork_without_memory_is_a_clear_error():
    with pytest.raises(SharedMemoryFull):
        synk.fork(2)
    assert not synk.is_forked()


def test_a_rank_without_room_for_its_outputs_says_so(monkeypatch):
    # The limit is in place before the fork, and for rank 1 alone.
    fallocate = os.posix_fallocate
    master = os.getpid()

    def limited(fd, offset, length):
        if os.getpid() != master and length > 1 << 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return fallocate(fd, offset, length)

    monkeypatch.setattr(os, "posix_fallocate", limited)
    x = pt.matrix("x", dtype="float64")
    gather = synk.function([x], (x * 2, "gather"), mode=PY)
    rows = np.ones((500_000, 2))
    with synk.session(2):
        with pytest.raises(SharedMemoryFull) as caught:
            gather(rows)
        assert any("rank 1 of 2" in note for note in caught.value.__notes__)
        np.testing.assert_array_equal(gather(rows[:10]), 2 * rows[:10])


# -- memory given back


def test_freed_data_is_given_back_by_all_ranks_with_the_next_call():
    call = summing()
    with synk.session(3):
        everyone = [os.getpid(), *all_pids()]
        assert call(ROWS) == TOTAL
        before = segments_of(everyone)
        data = synk.data(ROWS)
        assert call(data) == TOTAL
        assert segments_of(everyone) > before
        data.free_memory()
        assert call(ROWS) == TOTAL
        assert segments_of(everyone) == before
        data.set_value(ROWS)
        assert call(data) == TOTAL
        del data
        assert call(ROWS) == TOTAL
        assert segments_of(everyone) == before


def test_variables_that_are_dropped_give_their_homes_back():
    call = summing()
    with synk.session(3):
        everyone = [os.getpid(), *all_pids()]
        values = pytensor.shared(np.ones(1000))
        synk.all_reduce(values)
        assert call(ROWS) == TOTAL
        before = segments_of(everyone)
        for _ in range(3):
            more = [pytensor.shared(np.ones(1000)) for _ in range(3)]
            synk.all_reduce(more)
            for var in more:
                synk.all_reduce(var)
        assert segments_of(everyone) > before
        del more, var
        gc.collect()
        assert call(ROWS) == TOTAL
        assert segments_of(everyone) == before


def test_variables_that_change_their_shape_give_their_old_homes_back():
    with synk.session(2):
        everyone = [os.getpid(), *all_pids()]
        values = pytensor.shared(np.ones(1000))
        counts = []
        for size in range(1, 13):
            synk.broadcast(values, np.ones(size))
            synk.all_reduce(values, "sum")
            np.testing.assert_array_equal(synk.get_value(1, values), np.full(size, 2.0))
            counts.append(len(segments_of(everyone)))
        assert counts[-1] == counts[2]


def test_close_gives_all_memory_back():
    before = mapped()
    with synk.session(3):
        everyone = [os.getpid(), *all_pids()]
        data = synk.data(ROWS)
        values = pytensor.shared(np.ones(1000))
        assert summing()(data) == TOTAL
        synk.all_reduce(values, "sum")
    assert values.get_value()[0] == 3
    del data, values
    gc.collect()
    # The control segment is kept until the next fork, for whoever looks at an error.
    wait_until(lambda: len(segments_of(everyone) - before) <= 1, 5, "memory")


# -- more than 2**31 elements


BIG = 2**31 + 4096


def has_room(nbytes: int) -> bool:
    """Tell whether twice that much is free."""
    return limits.tightest().free > 2 * nbytes


def test_the_rows_of_more_than_two_to_the_31_are_cut_and_selected_exactly():
    bounds = cuts(BIG, 3)
    assert bounds[0] == 0
    assert bounds[-1] == BIG
    assert [b - a for a, b in itertools.pairwise(bounds)] == [
        BIG // 3 + (rank < BIG % 3) for rank in range(3)
    ]
    selection = select(slice(2**31 - 1, None), BIG)
    assert part(selection, 1, 3) == slice(2**31, 2**31 + 2)
    last = select(np.array([-1, 2**31]), BIG)
    np.testing.assert_array_equal(last, [BIG - 1, 2**31])
    offsets, total = layout([BIG, BIG, 1])
    assert offsets == [0, BIG, 2 * BIG]
    assert total == 2 * BIG + 64


def worker_last_element(context, window):
    array = context.array(window)
    return array.shape, int(array[-1]), int(array[2**31 + 5])


def test_a_segment_of_more_than_two_to_the_31_bytes_reaches_the_ranks():
    # Without room, without memory behind it: what is written is all that there is.
    data = synk.data(shape=(BIG,), dtype="uint8") if has_room(BIG) else sparse(BIG)
    data[-1], data[2**31 + 5] = 77, 88
    assert (len(data), data.size) == (BIG, BIG)
    x = pt.vector("x", dtype="uint8")
    call = synk.function([x], (x.astype("int64").sum(), "sum"), mode=PY)
    with synk.session(2):
        seen = SESSION.run(worker_last_element, data._window())
        assert seen == [((BIG,), 77, 88)] * 2
        assert call(data, batch=slice(2**31, None)) == 77 + 88
        assert call(data, batch=[-1, 2**31 + 5, 0, 2**31 + 6]) == 77 + 88
    data.free_memory()


def sparse(nbytes: int) -> synk.Data:
    """Return Data whose memory is not reserved."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "posix_fallocate", lambda fd, _, end: os.ftruncate(fd, end))
        patch.setattr(limits, "tightest", lambda: None)
        data = synk.Data("uint8", 1)
        data._resize((nbytes,))
    return data
