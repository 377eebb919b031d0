"""Shared memory: segments and their layout; what ranks note in theirs that they do."""

from __future__ import annotations

import errno
import gc
import mmap
import os
import time

import numpy as np
import pytest
from processes import segments_of

from synk.errors import SharedMemoryFull
from synk.memory import descriptors, limits
from synk.memory.partition import cuts, part, select
from synk.memory.proc import start_time
from synk.memory.segment import LOOK_FROM, Attachments, Segment, layout
from synk.workers import recorder as phases
from synk.workers.recorder import COMPUTING, EVENTS, MEETING, STAGE, Records, owner_of


def mapped() -> set[str]:
    """Return the shared memory that this process maps or holds open."""
    gc.collect()
    return segments_of([os.getpid()])


def test_a_segment_has_no_name_and_goes_with_its_last_view():
    before = mapped()
    segment = Segment(10_000)
    assert segment.nbytes == 3 * mmap.PAGESIZE
    array = segment.array(np.float64, (1000,))
    array[:] = np.arange(1000)
    assert not os.get_inheritable(segment.place[1])  # by programs that are run
    segment.close()
    np.testing.assert_array_equal(array, np.arange(1000))
    assert mapped() != before
    del array, segment
    assert mapped() == before


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
    segment.grow(10)  # less than there is: nothing happens
    assert segment.nbytes == 8192
    attachments.forget(segment.key)
    assert attachments.segment(*segment.place) is not grown


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
    small = Segment(LOOK_FROM - mmap.PAGESIZE)
    with pytest.raises(SharedMemoryFull, match=r"100 bytes are free of the machine's"):
        small.grow(3 * LOOK_FROM)
    assert os.fstat(small.place[1]).st_blocks * 512 == small.nbytes < LOOK_FROM
    monkeypatch.setattr(limits, "tightest", lambda: None)
    small.grow(3 * LOOK_FROM)


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


# -- the flight recorder --------------------------------------------------------------


@pytest.fixture
def records():
    return Records(3)


def test_the_last_events_are_kept_in_the_order_of_time(records):
    recorder = records.recorder(0)
    assert records.events(0) == []
    before = time.monotonic_ns()
    for command in range(EVENTS + 10):
        recorder.begin(command, f"work {command % 3}")
    kept = records.events(0)
    assert [(event.command, event.name) for event in kept] == [
        (command, f"work {command % 3}") for command in range(10, EVENTS + 10)
    ]
    times = [event.time for event in kept]
    assert times == sorted(times)
    assert before < times[0] <= times[-1] < time.monotonic_ns()
    assert records.events(1) == records.events(2) == []


class Ranks:
    """Writes what a master and two ranks do."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.master, *self.others = map(records.recorder, range(3))
        self.master.begin(0, "")
        self.master.phase[0] = phases.SCRIPT
        self.wait(0)

    def wait(self, command: int) -> None:
        self.places = [recorder.wait(command) for recorder in self.others]

    def start(self, *ranks: int) -> None:
        """Have ranks begin the command that they have been waiting for."""
        for rank in ranks:
            recorder = self.others[rank - 1]
            recorder.times[self.places[rank - 1]] = time.monotonic_ns()
            recorder.phase[0] = phases.RUNNING

    def does(self) -> list[str]:
        return list(map(str, self.records.doing()))


def test_what_ranks_do_follows_from_the_events_of_all(records):
    assert records.doing() == [None] * 3
    records.recorder(0).begin(0, "")
    assert records.doing()[1] is None
    ranks = Ranks(records)
    waits = "waiting for a command"
    assert ranks.does() == ["running the script", waits, waits]
    ranks.master.begin(1, "function 'f'", COMPUTING)
    reads = "reading a command"
    assert ranks.does() == ["computing function 'f'", reads, reads]
    ranks.start(1)
    assert ranks.does()[1:] == ["computing function 'f'", reads]
    ranks.start(2)
    ranks.others[0].phase[0] = MEETING
    ranks.others[1].phase[0] = COMPUTING + STAGE
    meets, stage_2 = "meeting the other ranks in ", "computing stage 2 of "
    assert ranks.does()[1:] == [f"{meets}function 'f'", f"{stage_2}function 'f'"]
    ranks.others[1].note(MEETING)  # an event changes nothing of it
    assert ranks.does()[2] == f"{stage_2}function 'f'"
    ranks.master.phase[0] = phases.JOINING
    for recorder in ranks.others:
        recorder.phase[0] = phases.REPLYING
    joins, replies = "waiting for the replies to", "writing its reply to"
    assert ranks.does() == [
        f"{word} function 'f'" for word in (joins, replies, replies)
    ]
    ranks.others[0].wait(1)
    assert ranks.does()[:2] == [f"{joins} function 'f'", waits]
    ranks.others[1].wait(1)
    assert ranks.does() == ["running the script", waits, waits]
    back, _, last = records.doing()
    assert back.time == last.time
    ranks.wait(1)
    ranks.master.begin(2, "reduce")
    ranks.start(1, 2)
    assert ranks.does() == ["doing reduce"] * 3
    ranks.wait(2)
    ranks.master.begin(3, "function 'g'", COMPUTING)
    ranks.start(1, 2)
    for _ in range(2 * EVENTS):  # its name is kept in a long run
        ranks.master.note(MEETING)
    assert ranks.does()[1:] == ["computing function 'g'"] * 2


def test_a_segment_of_records_says_whose_it_is(records):
    records.note_zygote(4711)
    data = bytes(records._memory)
    owner = owner_of(data)
    assert owner[:4] == (3, os.getpid(), start_time(os.getpid()), 4711)
    assert owner_of(b"something else".ljust(1 << 16)) is None
    assert owner_of(data[:100]) is None
    assert start_time(2**22 + 1) == 0
