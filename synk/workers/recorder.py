"""The flight recorder: each rank's last events, which other processes can read.

One segment of a session, made before its ranks::

    header      magic bytes, number of ranks, master, zygote and so on: see `Owner`
    rank 0      process id | phase | the last EVENTS events | NAMES names | stacks
    rank 1      ...

Only the rank itself writes its part, by plain stores without a lock. The kernel keeps
the memory when the rank dies. The *phase* is one word that says what the rank does now,
and is always up to date. An *event* has a time too, and takes up to 1 us to write. So a
rank writes an event only when it has to wait anyway, for a command or at a meeting. It
then also writes the event of the next command, without a time; without one an event
does not count. Only the master's events have the commands' names. That a rank is
reading a command, or that the master is back in the script, follows from all events.

`faulthandler` writes a rank's stacks into the rank's part through a descriptor, when a
signal kills the rank, and on `DUMP_SIGNAL` from the master. No Python code of the rank
has to run for that, so it works for a rank that is stuck in compiled code.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import struct
from collections.abc import Sequence
from io import FileIO
from time import monotonic_ns
from typing import NamedTuple

from ..memory import proc
from ..memory.descriptors import open_again
from ..memory.segment import Place, Segment

EVENTS = 256
NAMES = 64

PHASES = (
    "waiting for a command",
    "reading a command",
    "doing {name}",
    "computing {stage}{name}",
    "meeting the other ranks in {name}",
    "storing the updates of {name}",
    "writing its reply to {name}",
    "waiting for the replies to {name}",
    "running the script",
)
WAITING, READING, RUNNING, COMPUTING, MEETING, STORING, REPLYING, JOINING, SCRIPT = (
    range(9)
)
"""Indices into `PHASES`; in an event, the phase that begins then."""

STAGE = 1 << 4
"""Factor of a stage's number, which is added to a phase's."""

# The code of an event is phase + STAGE * stage + _NAME * name + _COMMAND * command.
_STAGES = 0xFFF
_NAME = 1 << 16
_COMMAND = 1 << 24
_COMMANDS = 0xFFFF_FFFF  # numbers of commands are kept modulo 2**32

DUMP_SIGNAL = signal.SIGRTMAX - 2
"""The signal on which a rank writes its stacks. Scripts hardly use real-time signals,
and tools take the first or the last of them."""

_MAGIC = b"synk flight 1\0\0\0"
_HEADER = struct.Struct("16s6q")
_HEADER_ROOM = 4096
_PID_WORD, _PHASE, _TIMES, _CODES = 0, 8, 16, 16 + EVENTS  # words of a rank's part
_NAME_ROOM = 128  # bytes, with a zero at the end
_NAMES_AT = 8 * (_CODES + EVENTS)
_STACKS_AT = 16 << 10
_STACKS_ROOM = 32 << 10
_RANK_ROOM = _STACKS_AT + _STACKS_ROOM


def unread_phase() -> memoryview:
    """Return a phase word that nobody reads, for calls that no session records."""
    return memoryview(bytearray(8)).cast("q")


def _words_of(part: memoryview) -> tuple[memoryview, memoryview, memoryview]:
    """Return views of a rank's part: its phase, and its events' times and codes."""
    words = part[:_NAMES_AT].cast("q")
    return words[_PHASE : _PHASE + 1], words[_TIMES:_CODES], words[_CODES:]


# -- writing


class Recorder:
    """Writes one rank's phase and events into its part of the records."""

    def __init__(self, part: memoryview) -> None:
        # The rank writes its phase to ``phase[0]``, and into `times` after `wait`.
        self.phase, self.times, self._codes = _words_of(part)
        self._names = part[_NAMES_AT:][: NAMES * _NAME_ROOM]
        self._keys: dict[str, int] = {}
        self._place = self._command = 0

    def note(self, phase: int) -> None:
        """Write an event of the present command, in which `phase` begins."""
        self._place = place = (self._place + 1) % EVENTS
        # A reader may look between any two lines. An event with time 0 does not count.
        self.times[place] = 0
        self._codes[place] = self._command | phase
        self.times[place] = monotonic_ns()

    def wait(self, command: int) -> int:
        """Write that `command` is done; return the next command's index in `times`."""
        self.phase[0] = WAITING
        self._command = (command & _COMMANDS) * _COMMAND
        self.note(WAITING)
        self._command = (command + 1 & _COMMANDS) * _COMMAND
        self._place = place = (self._place + 1) % EVENTS
        self.times[place] = 0
        self._codes[place] = self._command | RUNNING
        return place

    def begin(self, command: int, name: str, phase: int = RUNNING) -> None:
        """Write, in the master, that a command begins; with COMPUTING for a call."""
        number = self._keys.get(name) or self._add(name)
        self._command = code = (command & _COMMANDS) * _COMMAND | number
        self.phase[0] = RUNNING
        self._place = place = (self._place + 1) % EVENTS
        self._codes[place] = code | phase
        self.times[place] = monotonic_ns()

    def _add(self, name: str) -> int:
        """Store a new name, in place of the oldest if all are full; return its code."""
        if len(self._keys) == NAMES - 1:  # place 0 is the empty name
            number = self._keys.pop(next(iter(self._keys)))
        else:
            number = (len(self._keys) + 1) * _NAME
        start = number // _NAME * _NAME_ROOM
        text = name.encode()[: _NAME_ROOM - 1]
        self._names[start : start + _NAME_ROOM] = text.ljust(_NAME_ROOM, b"\0")
        self._keys[name] = number
        return number


# -- reading


class RankEvent(NamedTuple):
    """A phase of a rank, and its beginning."""

    time: int  # of its beginning or an earlier event: nanoseconds of CLOCK_MONOTONIC
    command: int  # the command's number, modulo 2**32
    phase: int  # an index into `PHASES`
    stage: int  # from 0
    name: str  # of the function or other command; "" if it is not known

    def __str__(self) -> str:
        stage = f"stage {self.stage + 1} of " if self.stage else ""
        return PHASES[self.phase].format(name=self.name or "a command", stage=stage)


class Owner(NamedTuple):
    """The session that some records are of, as their header names it."""

    size: int  # the number of ranks
    master: int  # its process id
    # When the master was started, in clock ticks since boot: if its process id is used
    # again, the new process has started later.
    started: int
    zygote: int  # its process id; 0 if there is none
    # The namespace of these process ids, see pid_namespaces(7); 0 if ``/proc`` shows
    # another one's.
    namespace: int
    # 1 after `close`: a zygote that is kept may still have the records open.
    is_closed: int = 0


def owner_of(data: bytes | memoryview) -> Owner | None:
    """Return the owner of the records in a segment's bytes; None if these are none."""
    if len(data) < _HEADER_ROOM or bytes(data[: len(_MAGIC)]) != _MAGIC:
        return None
    return Owner(*_HEADER.unpack_from(data)[1:])


def lines_of(history: Sequence[RankEvent]) -> list[str]:
    """Return a line of text for each event, with its time relative to the last one."""
    last = history[-1].time if history else 0
    return [f"{(event.time - last) / 1e6:9.3f} ms  {event}" for event in history]


class RecordsReader:
    """Reads the bytes of a session's records, of `size` ranks."""

    def __init__(self, data: bytes | memoryview, size: int) -> None:
        self._memory, self._size = memoryview(data), size

    def _part(self, rank: int) -> memoryview:
        """Return the part of the records that `rank` writes."""
        start = _HEADER_ROOM + rank * _RANK_ROOM
        return self._memory[start : start + _RANK_ROOM]

    def pid(self, rank: int) -> int:
        """Return the process id of a rank; 0 before it has started."""
        return self._part(rank)[:_NAMES_AT].cast("q")[_PID_WORD]

    def stacks(self, rank: int) -> str:
        """Return the stacks that `faulthandler` wrote for a rank; "" if none."""
        written = bytes(self._part(rank)[_STACKS_AT:]).split(b"\0", 1)[0]
        return written.decode(errors="replace")

    def events(self, rank: int) -> list[RankEvent]:
        """Return a rank's events, the oldest first; only the master's have names."""
        part = self._part(rank)
        _, times, codes = _words_of(part)
        found = []
        for time, code in sorted(zip(times.tolist(), codes.tolist(), strict=True)):
            start = _NAMES_AT + code // _NAME % NAMES * _NAME_ROOM
            name = bytes(part[start : start + _NAME_ROOM]).rstrip(b"\0")
            what = code // _COMMAND, code % STAGE, code // STAGE & _STAGES
            if time:  # an event with time 0 has not begun yet
                found.append(RankEvent(time, *what, name.decode(errors="replace")))
        return found

    def history(self, rank: int) -> list[RankEvent]:
        """Return a rank's events, the oldest first, with the names of the master's."""
        named = {event.command: event for event in reversed(self.events(0))}
        return [_named(event, named) for event in self.events(rank)]

    def doing(self) -> list[RankEvent | None]:
        """Return each rank's phase now, or when it died; None if it is not known."""
        # From phases and events together: see the docstring of this file.
        of_master, *others = map(self.events, range(self._size))
        if not of_master:
            return [None] * self._size
        last = of_master[-1]
        known: dict[int, RankEvent] = {}
        for event in of_master:
            if event.phase == MEETING:  # a long call, whose first event is lost
                event = event._replace(phase=COMPUTING)
            known.setdefault(event.command, event)
        found: list[RankEvent | None] = []
        for rank, of_rank in enumerate(others, 1):
            does = self._does(rank, of_rank[-1], known) if of_rank else None
            if does and does.phase == WAITING and does.command != last.command:
                does = known[last.command]._replace(time=last.time, phase=READING)
            found.append(does)
        master = self._does(0, last, known)
        if master.phase == JOINING:  # maybe not any more, if all ranks have replied
            done = master.command, WAITING
            times = [event.time for event in found if event and event[1:3] == done]
            if len(times) == len(others):
                master = master._replace(time=max(times), phase=SCRIPT)
        return [master, *found]

    def _does(
        self, rank: int, last: RankEvent, known: dict[int, RankEvent]
    ) -> RankEvent:
        """Return a rank's last event, with the rank's present phase and stage in it."""
        phase, _, _ = _words_of(self._part(rank))
        stage, code = divmod(phase[0], STAGE)
        return _named(last._replace(phase=code, stage=stage), known)


def _named(event: RankEvent, known: dict[int, RankEvent]) -> RankEvent:
    """Return an event with its command's name, from `known`, the master's events."""
    command = known.get(event.command)
    if command is None:
        return event
    # A rank in a call is computing, unless its phase says something else.
    phase = command.phase if event.phase == RUNNING else event.phase
    return event._replace(phase=phase, name=command.name)


# -- the segment


class Records(RecordsReader):
    """The segment with the flight records of all ranks of a session.

    A process other than the one that made it gives the segment's `place`.
    """

    _file: FileIO  # only in a process that was given the place

    def __init__(self, size: int, place: Place | None = None) -> None:
        if place is None:
            self._segment = Segment(_HEADER_ROOM + size * _RANK_ROOM)
            self.place = self._segment.place
            self._fd = self.place[1]
        else:
            pid, fd, *more = self.place = place
            # Kept open for the life of the rank, as `dump_stacks_of` opens it again.
            self._file = open_again(pid, fd)
            self._fd = self._file.fileno()
            self._segment = Segment.attach(proc.number(), self._fd, *more)
        super().__init__(self._segment.memory(), size)
        if place is None:
            self.note_zygote(0)

    def note_zygote(self, pid: int) -> None:
        """Write the header: this process as the master, and the zygote's `pid`."""
        me = os.getpid()
        # Readers find sessions in /proc, which may show another namespace's numbers.
        namespace = proc.pid_namespace() if proc.knows_us() else 0
        owner = Owner(self._size, me, proc.start_time(me), pid, namespace)
        _HEADER.pack_into(self._memory, 0, _MAGIC, *owner)

    def close(self) -> None:
        """Write into the header, in the master, that the session is closed."""
        owner = owner_of(self._memory)
        assert owner is not None
        if owner.master == os.getpid():  # not in a child that the script has forked
            _HEADER.pack_into(self._memory, 0, _MAGIC, *owner._replace(is_closed=1))

    def recorder(self, rank: int) -> Recorder:
        """Return the recorder of `rank`, for its own process."""
        # In a session of one rank, commands are not recorded, so its phase would be
        # misleading. It is written to memory that nobody reads.
        alone = self._size == 1
        return Recorder(
            memoryview(bytearray(_RANK_ROOM)) if alone else self._part(rank)
        )

    def dump_stacks_of(self, rank: int) -> None:
        """Have `faulthandler` write this process's stacks into the part of `rank`."""
        # A descriptor of its own has a position in the file that no other rank moves.
        # `faulthandler` keeps it open for the life of the process.
        own = open_again("self", self._fd)
        part = self._part(rank)
        part[_STACKS_AT:] = bytes(_STACKS_ROOM)  # clears those of a former rank
        own.seek(_HEADER_ROOM + rank * _RANK_ROOM + _STACKS_AT)
        faulthandler.enable(own)
        faulthandler.register(DUMP_SIGNAL, own)
        # Last: once this is written, the master may send `DUMP_SIGNAL` to the process.
        part[:_NAMES_AT].cast("q")[_PID_WORD] = os.getpid()
