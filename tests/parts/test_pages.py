"""The pages that a rank's rows lie on are mapped before machine code reads them."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

import numpy as np
import pytest

from synk.memory.mapping import address
from synk.memory.rows import RowTaker
from synk.memory.segment import Attachments, Segment

PAGEMAP = Path("/proc/self/pagemap")

pytestmark = pytest.mark.skipif(not PAGEMAP.exists(), reason="needs Linux's pagemap")


def are_mapped(array: np.ndarray) -> list[bool]:
    """Tell of each page of an array whether this process has it (proc(5), bit 63)."""
    first = address(array) // mmap.PAGESIZE
    last = (address(array) + array.nbytes - 1) // mmap.PAGESIZE
    with PAGEMAP.open("rb") as file:
        file.seek(8 * first)
        entries = file.read(8 * (last - first + 1))
    return [bool(entry >> 63) for (entry,) in struct.iter_unpack("<Q", entries)]


@pytest.fixture
def rows():
    """A segment of 64 pages, of which the writer has all and another mapping none."""
    segment = Segment(64 * mmap.PAGESIZE)
    own = segment.array("f4", (64, mmap.PAGESIZE // 4))
    own[:] = np.arange(64.0)[:, None]
    yield own, Attachments().array(segment.window(own))
    segment.close()


def test_adjacent_rows_are_mapped_when_they_are_taken(rows):
    own, there = rows
    taker = RowTaker()
    assert all(are_mapped(own))
    assert not any(are_mapped(there))
    assert taker.take(there, slice(3, 3)).shape == (0, own.shape[1])
    assert not any(are_mapped(there))
    for some in (slice(20, 21), slice(40, 64), slice(0, 64)):
        view = taker.take(there, some)
        assert all(are_mapped(view))
        np.testing.assert_array_equal(view, own[some])


def test_what_is_taken_whole_is_mapped(rows):
    _, there = rows
    part = there[5:50].reshape(-1)[3:-3]
    assert RowTaker().take_whole(part) is part
    assert all(are_mapped(part))


def test_rows_are_mapped_after_their_segment_grew():
    segment = Segment(8 * mmap.PAGESIZE)
    segment.array("u1", (8 * mmap.PAGESIZE,))[:] = 7
    segment.grow(1 << 20)
    made = segment.array("u1", (8 * mmap.PAGESIZE,))
    assert not any(are_mapped(made))
    RowTaker().take(made, slice(0, len(made)))
    assert all(are_mapped(made))
    assert (made == 7).all()
    segment.close()
