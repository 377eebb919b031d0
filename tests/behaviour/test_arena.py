"""The segment that messages are put into: used again, growing, and shrinking."""

from __future__ import annotations

import mmap
import os

import numpy as np
import pytensor.tensor as pt
import pytest
from processes import PY, ROWS, TOTAL, summing

import synk
from synk.errors import SharedMemoryFull
from synk.memory import limits
from synk.memory.arena import PATIENCE, SMALL, Arena
from synk.memory.segment import Attachments
from synk.ranks.session import SESSION


def taken(arena: Arena) -> int:
    """Return the bytes of memory that an arena really has."""
    segment = arena._segment
    return 0 if segment is None else 512 * os.fstat(segment.place[1]).st_blocks


def ones(nbytes: int) -> list[np.ndarray]:
    return [np.ones(nbytes // 8)]


LARGE = 64 * SMALL


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


def test_memory_of_a_large_message_is_given_back_after_many_small_ones():
    arena, attachments = Arena(), Attachments()
    attachments.array(arena.put(ones(LARGE))[0])
    for i in range(PATIENCE - 1):
        arena.put(ones(8000 + 8 * (i % 2)))
    assert taken(arena) == LARGE
    (window,) = arena.put(ones(8000))
    assert taken(arena) == 8192  # the largest of the small ones, in whole pages
    assert attachments.array(window).sum() == 1000
    # It grows again, for whoever has it mapped, too.
    (window,) = arena.put(ones(LARGE))
    assert taken(arena) == LARGE
    assert attachments.array(window).sum() == LARGE // 8


def test_one_message_of_more_than_a_quarter_in_time_keeps_all():
    arena = Arena()
    arena.put(ones(LARGE))
    for _ in range(3):
        for _ in range(PATIENCE - 1):
            arena.put(ones(8))
        arena.put(ones(LARGE // 3))
    assert taken(arena) == LARGE


def test_messages_of_nothing_count_and_the_large_one_can_come_again():
    arena = Arena()
    arena.put_nothing()
    (first,) = arena.put(ones(LARGE))
    for _ in range(PATIENCE):
        arena.put_nothing()
    assert taken(arena) == mmap.PAGESIZE
    (again,) = arena.put(ones(LARGE))
    assert taken(arena) == LARGE
    assert again == first
    assert Attachments().array(again).sum() == LARGE // 8


def test_what_was_given_back_is_reserved_before_it_is_used_again(monkeypatch):
    arena = Arena()
    arena.put(ones(LARGE))
    for _ in range(PATIENCE):
        arena.put(ones(8000))
    monkeypatch.setattr(limits, "tightest", lambda: limits.Limit(None, LARGE, 100))
    with pytest.raises(SharedMemoryFull, match=f"no room for {LARGE - 8192:,} bytes"):
        arena.put(ones(LARGE))
    assert taken(arena) == 8192
    arena.put(ones(8000))


@pytest.mark.parametrize("size", [SMALL // 2, SMALL])
def test_what_is_not_large_is_kept(size):
    arena = Arena()
    arena.put(ones(size))
    for _ in range(2 * PATIENCE):
        arena.put(ones(8))
    assert taken(arena) == size


def test_what_a_device_may_have_pinned_is_kept():
    arena = Arena(can_shrink=False)
    arena.put(ones(LARGE))
    for _ in range(2 * PATIENCE):
        arena.put(ones(8))
    assert taken(arena) == LARGE


def worker_taken(context) -> int:
    return taken(context.outbox)


def test_calls_give_back_what_earlier_ones_staged_and_gathered():
    x = pt.matrix("x", dtype="float64")
    gather = synk.function([x], (2 * x, "gather"), mode=PY)
    call = summing()
    many = np.ones((LARGE // 16, 2))
    data = synk.data(ROWS)
    with synk.session(2):
        for _ in range(2):
            assert gather(many).shape == many.shape
            assert taken(SESSION.stage) >= LARGE // 2
            assert SESSION.run(worker_taken)[1] >= LARGE // 2
            for _ in range(PATIENCE + 1):
                assert call(data) == TOTAL
            assert taken(SESSION.stage) == mmap.PAGESIZE
            assert SESSION.run(worker_taken)[1] == mmap.PAGESIZE


def worker_large(context, nbytes: int) -> bytes:
    return bytes(nbytes)


def worker_all_taken(context) -> int:
    """Return the bytes of all segments of its own that this process holds."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            if f"synk-{os.getpid()}-" in os.readlink(f"/proc/self/fd/{name}"):
                status = os.stat(f"/proc/self/fd/{name}")
                found[status.st_ino] = 512 * status.st_blocks
        except OSError:
            continue  # that of listdir itself
    return sum(found.values())


def test_a_large_reply_is_given_back_with_the_next_command():
    with synk.session(2):
        before = SESSION.run(worker_all_taken)
        assert [len(reply) for reply in SESSION.run(worker_large, LARGE)] == [LARGE] * 2
        assert SESSION.run(worker_all_taken) == before
