"""The flight recorder: what it keeps, and what readers make of it."""

from __future__ import annotations

import os
import time

import pytest

from synk.workers.recorder import (
    COMPUTING,
    EVENTS,
    JOINING,
    MEETING,
    NAMES,
    REPLYING,
    RUNNING,
    SCRIPT,
    STAGE,
    WAITING,
    part_of,
)
from synk.workers.records import Records, doing, events, owner_of, start_time


@pytest.fixture
def records():
    return Records(3)


def events_of(records: Records, rank: int) -> list:
    return events(part_of(records._memory, rank))


def test_the_last_events_are_kept_in_the_order_of_time(records):
    recorder = records.recorder(0)
    assert events_of(records, 0) == []
    before = time.monotonic_ns()
    for command in range(EVENTS + 10):
        recorder.begin(command, f"work {command % 3}")
    kept = events_of(records, 0)
    assert [event.command for event in kept] == list(range(10, EVENTS + 10))
    assert [event.name for event in kept] == [
        f"work {command % 3}" for command in range(10, EVENTS + 10)
    ]
    times = [event.time for event in kept]
    assert times == sorted(times)
    assert before < times[0] <= times[-1] < time.monotonic_ns()
    assert events_of(records, 1) == events_of(records, 2) == []


def test_what_an_event_was_can_be_read(records):
    recorder = records.recorder(0)
    recorder.begin(7, "all_reduce")
    recorder.note(MEETING)
    recorder.begin(8, "function 'f' (made in fit.py:3)", COMPUTING)
    recorder.note(COMPUTING + 2 * STAGE)
    told = [(event.command, str(event)) for event in events_of(records, 0)]
    assert told == [
        (7, "doing all_reduce"),
        (7, "meeting the other ranks in all_reduce"),
        (8, "computing function 'f' (made in fit.py:3)"),
        (8, "computing stage 3 of function 'f' (made in fit.py:3)"),
    ]


def test_an_event_written_ahead_counts_when_it_has_a_time(records):
    recorder = records.recorder(1)
    for command in range(3 * EVENTS):  # round and round
        place = recorder.wait(command)
        last = events_of(records, 1)[-1]
        assert (last.command, last.phase) == (command, WAITING)
        if command % 3:  # not every command is begun, as one that is aborted
            recorder.times[place] = time.monotonic_ns()
            last = events_of(records, 1)[-1]
            assert (last.command, last.phase) == (command + 1, RUNNING)
        recorder.note(MEETING)
        last = events_of(records, 1)[-1]
        assert (last.command, last.phase) == (command + 1, MEETING)
    kept = events_of(records, 1)
    assert EVENTS * 2 // 3 <= len(kept) <= EVENTS
    assert [e.time for e in kept] == sorted(e.time for e in kept)


def test_names_take_turns_in_a_table_that_is_full(records):
    recorder = records.recorder(2)
    for number in range(3 * NAMES):
        recorder.begin(number, f"f{number} " + "ä" * 100)
    last = events_of(records, 2)[-NAMES + 1 :]
    assert [event.name.split()[0] for event in last] == [
        f"f{number}" for number in range(2 * NAMES + 1, 3 * NAMES)
    ]
    assert last[-1].name.startswith(f"f{3 * NAMES - 1} ää")


@pytest.mark.parametrize("command", [2**32 - 1, 2**32, 2**40 + 5, 2**62])
def test_numbers_of_commands_may_become_large(records, command):
    recorder = records.recorder(0)
    recorder.begin(command, "work")
    recorder.note(JOINING)
    assert [event.command for event in events_of(records, 0)] == [command % 2**32] * 2


class Ranks:
    """Writes what a master and two ranks do."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self.master, *self.others = map(records.recorder, range(3))
        self.master.begin(0, "")
        self.master.phase[0] = SCRIPT
        self.places = [recorder.wait(0) for recorder in self.others]

    def start(self, *ranks: int) -> None:
        """Have ranks begin the command that they have been waiting for."""
        for rank in ranks:
            recorder = self.others[rank - 1]
            recorder.times[self.places[rank - 1]] = time.monotonic_ns()
            recorder.phase[0] = RUNNING

    def does(self) -> list[str]:
        """Return what each rank does."""
        return list(map(str, doing(self.records._memory, 3)))


def test_what_ranks_do_follows_from_the_events_of_all(records):
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
    ranks.master.phase[0] = JOINING
    for recorder in ranks.others:
        recorder.phase[0] = REPLYING
    assert ranks.does() == [
        "waiting for the replies to function 'f'",
        *["writing its reply to function 'f'"] * 2,
    ]
    ranks.others[0].wait(1)
    assert ranks.does()[:2] == ["waiting for the replies to function 'f'", waits]
    ranks.others[1].wait(1)
    assert ranks.does() == ["running the script", waits, waits]
    back, _, last = doing(records._memory, 3)
    assert back.time == last.time


def test_a_command_is_done_and_keeps_its_name_in_a_long_run(records):
    ranks = Ranks(records)
    ranks.master.begin(1, "reduce")
    ranks.start(1, 2)
    assert ranks.does() == ["doing reduce"] * 3
    ranks.master.begin(2, "function 'f'", COMPUTING)
    ranks.places = [recorder.wait(1) for recorder in ranks.others]
    ranks.start(1, 2)
    for _ in range(2 * EVENTS):
        ranks.master.note(MEETING)
    assert ranks.does()[1:] == ["computing function 'f'"] * 2


def test_before_anything_is_known_nothing_is_told(records):
    assert doing(records._memory, 3) == [None] * 3
    assert records.doing(1) is None
    records.recorder(0).begin(0, "")
    assert records.doing(1) is None


def test_a_segment_of_records_says_whose_it_is(records):
    records.note_zygote(4711)
    data = bytes(records._memory)
    owner = owner_of(data)
    assert owner[:4] == (3, os.getpid(), start_time(os.getpid()), 4711)
    assert owner_of(b"something else".ljust(1 << 16)) is None
    assert owner_of(data[:100]) is None
    assert start_time(2**22 + 1) == 0
