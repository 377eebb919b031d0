"""Huge pages: segments have them where the kernel gives any, and else do without."""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from synk.memory import huge
from synk.memory.mapping import address
from synk.memory.segment import Attachments, Segment

MANY = (4 << 20) + 20_000
"""Bytes of two huge pages and some small ones."""


def pages_of(segment: Segment, name: str = "ShmemPmdMapped") -> int:
    """Return how many kilobytes of a segment are mapped in huge pages, say."""
    start = address(segment.array(np.uint8, (1,)))
    _, found, after = Path("/proc/self/smaps").read_text().partition(f"{start:x}-")
    assert found
    return int(after.partition(f"{name}:")[2].split()[0])


@pytest.fixture(params=["as the kernel has it", "refused", "slow", "none"])
def kernel(request, monkeypatch):
    if request.param == "refused":
        monkeypatch.setattr(huge, "_COLLAPSE", 9999)
    elif request.param == "slow":
        monkeypatch.setattr(huge, "SLOW", 0.0)
    elif request.param == "none":
        monkeypatch.setattr(huge, "SIZE", 0)
    return request.param


def test_segments_have_huge_pages_where_the_kernel_gives_them(kernel, monkeypatch):
    assert huge.are_given() <= (kernel == "as the kernel has it")
    fill, filled = huge.fill, []
    monkeypatch.setattr(huge, "fill", lambda *asked: filled.append(fill(*asked)))
    segment = Segment(MANY)
    array = segment.array(np.uint8, (MANY,))
    array[:] = 1
    if filled == [True]:
        assert pages_of(segment) == 4096
    if kernel in ("refused", "none"):
        assert pages_of(segment) == 0


def test_others_map_them_as_such():
    segment, others = Segment(MANY), Attachments()
    mine = segment.array(np.uint8, (MANY,))
    mine[:] = np.arange(MANY) % 251
    theirs = others.array(segment.window(mine))
    np.testing.assert_array_equal(theirs, mine)
    # (An attempt of the kernel's may fail, and the next succeed.)
    assert pages_of(others.segment(*segment.place)) == pages_of(segment)


def test_gaps_between_other_mappings_do_not_matter():
    page, fits = mmap.PAGESIZE, huge.SIZE or 1
    others = [mmap.mmap(-1, MANY + n * 8 * page) for n in range(20)]
    for mapping in others[::2]:
        mapping.close()
    segments = [Segment(MANY) for _ in range(10)]
    attached = [Segment.attach(*segment.place) for segment in segments]
    for segment in segments + attached:
        assert address(segment.array(np.uint8, (1,))) % fits == 0


def test_all_is_reserved_and_no_more(kernel):
    segment = Segment(MANY)
    of_file = os.fstat(segment.place[1])
    assert segment.nbytes <= of_file.st_blocks * 512 <= segment.nbytes + 4096
    assert len(segment.memory()) == segment.nbytes
    segment.give_back(3 << 20)
    assert os.fstat(segment.place[1]).st_blocks * 512 <= (3 << 20) + 4096


def test_growing_keeps_bytes_and_views(kernel):
    segment = Segment(3 << 20)
    view = segment.array(np.uint8, (3 << 20,))
    view[:] = np.arange(3 << 20) % 251
    segment.grow(9 << 20)
    whole = segment.array(np.uint8, (9 << 20,))
    np.testing.assert_array_equal(whole[: 3 << 20], view)
    assert not whole[3 << 20 :].any()
    segment.give_back(1 << 20)
    segment.grow(9 << 20)
    np.testing.assert_array_equal(whole[: 1 << 20], np.arange(1 << 20) % 251)
    assert not whole[1 << 20 :].any()
    whole[5] = 9
    assert view[5] == 9


def test_what_cannot_grow_keeps_what_it_has(monkeypatch):
    segment = Segment(MANY)
    before = os.fstat(segment.place[1]).st_blocks

    def no_memory(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "posix_fallocate", no_memory)
    with contextlib.suppress(KeyboardInterrupt):
        segment.grow(3 * MANY)
    monkeypatch.undo()
    assert os.fstat(segment.place[1]).st_blocks == before
    assert segment.nbytes < 2 * MANY
    Segment.attach(*segment.place).array(np.uint8, (MANY,))[:] = 1
