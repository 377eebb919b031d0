"""The flight recorder: what each rank did last, for others to read.

One segment of a session, made before its ranks::

    header      what it is, master, zygote, number of ranks
    rank 0      process id | phase | the last EVENTS events | NAMES names | stacks
    rank 1      ...

A rank writes its own part alone, by plain stores and without a lock; the kernel keeps
the memory when the rank dies. What it does at the moment is its phase, one word, which
is always right. Its events have times, and looking at the clock and finding a place for
one costs a call 1 us where others wait for it. So a rank notes an event when it has to
wait itself: for a command, or for the others in a meeting. The event of the next
command it writes then too, but for the time, without which an event does not count.

What a command is called the master's events say, which has time for it while the ranks
read the command; and that a rank reads, or that the master is back in the script,
follows from the events of all. Readers are the master, when it says how a rank died,
and ``python -m synk ps`` in another process.

`faulthandler` writes a rank's stacks to its part by itself, through a descriptor: when
a signal kills the rank, and when the master asks for them by `DUMP_SIGNAL`. That needs
no Python code of the rank to run, so it works for one that is stuck in compiled code.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import struct
from time import monotonic_ns
from typing import NamedTuple

from ..memory.segment import Place, Segment

EVENTS = 256
NAMES = 64

DUMP_SIGNAL = signal.SIGRTMAX - 2
"""Has a rank write its stacks. Scripts hardly use real-time signals, and tools that do
take the first or the last of them."""

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
"""Phases; each lasts until the next event."""

STAGE = 1 << 4
"""A phase may have a stage added to it, times this."""

_STAGES = 0xFFF
_NAME = 1 << 16
_COMMAND = 1 << 24
_COMMANDS = 0xFFFF_FFFF  # numbers of commands are kept modulo 2**32

_MAGIC = b"synk flight 1\0\0\0"
_HEADER = struct.Struct("16s5q")
_HEADER_ROOM = 4096
_PID_WORD, _PHASE, _TIMES, _CODES = 0, 8, 16, 16 + EVENTS  # words of a rank's part
_NAME_ROOM = 128  # bytes, with a zero at the end
_NAMES_AT = 8 * (_CODES + EVENTS)
_STACKS_AT = 16 << 10
_STACKS_ROOM = 32 << 10
_RANK_ROOM = _STACKS_AT + _STACKS_ROOM


class Event(NamedTuple):
    """What a rank does, or did.

    Attributes
    ----------
    time : int
        Since when, or since before: nanoseconds of CLOCK_MONOTONIC.
    command : int
        The number of the command, modulo 2**32.
    phase : int
    stage : int
        From 0; while computing.
    name : str
        What it is doing it for: a function or another command; "" if that is not known.
    """

    time: int
    command: int
    phase: int
    stage: int
    name: str

    def __str__(self) -> str:
        stage = f"stage {self.stage + 1} of " if self.stage else ""
        return PHASES[self.phase].format(name=self.name or "a command", stage=stage)


class Owner(NamedTuple):
    """Whose records these are.

    Attributes
    ----------
    size : int
        The number of ranks.
    master, started : int
        The master's process id, and when it was started, in clock ticks since boot:
        a number that is used again belongs to a process that started later.
    zygote : int
        The process id of what forks the ranks; 0 if there is none.
    namespace : int
        Which processes these numbers count; see pid_namespaces(7).
    """

    size: int
    master: int
    started: int
    zygote: int
    namespace: int


class Records:
    """The flight records of all ranks of a session.

    Parameters
    ----------
    size : int
        The number of ranks.
    """

    def __init__(self, size: int) -> None:
        self._use(Segment(_HEADER_ROOM + size * _RANK_ROOM), size)
        _, self._fd, *_ = self.place
        self.note_zygote(0)

    @classmethod
    def attach(cls, place: Place) -> Records:
        """Return the records that another process has made, by their `place` there."""
        self = cls.__new__(cls)
        pid, fd, *more = place
        # Kept for the life of this process, a rank.
        self._fd = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
        segment = Segment.attach(os.getpid(), self._fd, *more)
        owner = owner_of(bytes(segment.memory()))
        assert owner is not None, "no flight records"
        self._use(segment, owner.size)
        self.place = place
        return self

    def _use(self, segment: Segment, size: int) -> None:
        self._segment, self._size = segment, size
        self._memory, self.place = segment.memory(), segment.place

    def note_zygote(self, pid: int) -> None:
        """Write down who is the master, and which process forks the ranks."""
        owner = Owner(
            self._size, os.getpid(), start_time(os.getpid()), pid, pid_namespace()
        )
        _HEADER.pack_into(self._memory, 0, _MAGIC, *owner)

    def recorder(self, rank: int) -> Recorder | Unrecorded:
        """Return what a rank writes its events with, in its own process."""
        # One rank alone has nobody who would ask, and its calls are short.
        return Recorder(self._part(rank)) if self._size > 1 else Unrecorded()

    def _part(self, rank: int) -> memoryview:
        return part_of(self._memory, rank)

    def doing(self, rank: int) -> Event | None:
        """Return what a rank does, or did when it died; None if that is not known."""
        return doing(self._memory, self._size)[rank]

    def pid(self, rank: int) -> int:
        """Return the process id of a rank that has started; 0 before."""
        return pid_of(self._part(rank))

    def stacks(self, rank: int) -> str:
        """Return the stacks that were written for a rank; "" if there are none."""
        written = bytes(self._part(rank)[_STACKS_AT:]).split(b"\0", 1)[0]
        return written.decode(errors="replace")

    def dump_stacks_of(self, rank: int) -> None:
        """Have the stacks of a rank, this process, written here by `faulthandler`.

        From here on, when a signal kills the process, and when it gets `DUMP_SIGNAL`.
        """
        # Opened once more, for a position in the file that no other rank moves. It is
        # kept for the life of the process.
        own = os.open(f"/proc/self/fd/{self._fd}", os.O_RDWR | os.O_CLOEXEC)
        part = self._part(rank)
        part[_STACKS_AT:] = bytes(_STACKS_ROOM)  # those of a former rank
        os.lseek(own, _HEADER_ROOM + rank * _RANK_ROOM + _STACKS_AT, os.SEEK_SET)
        faulthandler.enable(own)
        faulthandler.register(DUMP_SIGNAL, own)
        # Last, as it is this number that says whom the signal may be sent to.
        part[:_NAMES_AT].cast("q")[_PID_WORD] = os.getpid()


class Recorder:
    """Writes what one rank does.

    Attributes
    ----------
    phase : memoryview of int64
        Its one word is the phase, to be written directly.
    times : memoryview of int64
        For the event that `wait` has written ahead.
    """

    __slots__ = ("_codes", "_command", "_keys", "_names", "_place", "phase", "times")

    def __init__(self, part: memoryview) -> None:
        self.phase, self.times, self._codes = _words(part)
        self._names = part[_NAMES_AT:][: NAMES * _NAME_ROOM]
        self._keys: dict[str, int] = {}
        self._place = self._command = 0

    def note(self, phase: int) -> None:
        """Note an event of the present command."""
        self._place = place = (self._place + 1) % EVENTS
        # A reader may look between any two lines: without a time it is no event.
        self.times[place] = 0
        self._codes[place] = self._command | phase
        self.times[place] = monotonic_ns()

    def wait(self, command: int) -> int:
        """Note that a command is done, and what comes next.

        Parameters
        ----------
        command : int
            Its number.

        Returns
        -------
        int
            A place in `times`: a time that is written there is that of the beginning of
            the next command.
        """
        self.phase[0] = WAITING
        self._command = (command & _COMMANDS) * _COMMAND
        self.note(WAITING)
        self._command = (command + 1 & _COMMANDS) * _COMMAND
        self._place = place = (self._place + 1) % EVENTS
        self.times[place] = 0
        self._codes[place] = self._command | RUNNING
        return place

    # -- in the master

    def begin(self, command: int, name: str) -> None:
        """Note that a command is run, by its name."""
        self._command = (command & _COMMANDS) * _COMMAND | self._number_of(name)
        self.phase[0] = RUNNING
        self.note(RUNNING)

    def computes(self, name: str) -> None:
        """Note that the command just begun is a call of a function."""
        command = self._command & ~(_COMMAND - 1)
        self._command = command | self._number_of(name)
        self._codes[self._place] = self._command | COMPUTING

    def _number_of(self, name: str) -> int:
        """Return a name's place; a new one may take that of the oldest one."""
        number = self._keys.get(name)
        if number is not None:
            return number
        if len(self._keys) == NAMES - 1:  # the first place is for no name
            number = self._keys.pop(next(iter(self._keys)))
        else:
            number = (len(self._keys) + 1) * _NAME
        start = number // _NAME * _NAME_ROOM
        text = name.encode()[: _NAME_ROOM - 1]
        self._names[start : start + _NAME_ROOM] = text.ljust(_NAME_ROOM, b"\0")
        self._keys[name] = number
        return number


class Unrecorded:
    """Takes the place of a `Recorder` where nothing is noted."""

    def __init__(self) -> None:
        self.phase = self.times = nowhere()

    def note(self, phase: int) -> None:
        """Note nothing."""

    def wait(self, command: int) -> int:
        """Note nothing."""
        return 0

    def begin(self, command: int, name: str) -> None:
        """Note nothing."""

    def computes(self, name: str) -> None:
        """Note nothing."""


def nowhere() -> memoryview:
    """Return a word for the phase of what runs outside of commands."""
    return memoryview(bytearray(8)).cast("q")


# -- for readers


def owner_of(data: bytes) -> Owner | None:
    """Return whose records a segment's bytes are; None if they are something else."""
    if len(data) < _HEADER_ROOM or not data.startswith(_MAGIC):
        return None
    return Owner(*_HEADER.unpack_from(data)[1:])


def part_of(data: bytes | memoryview, rank: int) -> memoryview:
    """Return a rank's part of a segment."""
    start = _HEADER_ROOM + rank * _RANK_ROOM
    return memoryview(data)[start : start + _RANK_ROOM]


def _words(part: memoryview) -> tuple[memoryview, memoryview, memoryview]:
    """Return the phase, and the times and codes of the events."""
    words = part[:_NAMES_AT].cast("q")
    return words[_PHASE : _PHASE + 1], words[_TIMES:_CODES], words[_CODES:]


def pid_of(part: memoryview) -> int:
    """Return the process id of a rank that has started; 0 before."""
    return part[:_NAMES_AT].cast("q")[_PID_WORD]


def events(part: memoryview) -> list[Event]:
    """Return the events of a rank, the oldest first; the master's alone have names."""
    _, times, codes = _words(part)
    pairs = sorted(zip(times.tolist(), codes.tolist(), strict=True))
    return [_event(part, time, code) for time, code in pairs if time]


def _event(part: memoryview, time: int, code: int) -> Event:
    start = _NAMES_AT + code // _NAME % NAMES * _NAME_ROOM
    name = bytes(part[start : start + _NAME_ROOM]).rstrip(b"\0")
    stage = code // STAGE & _STAGES
    return Event(
        time, code // _COMMAND, code % STAGE, stage, name.decode(errors="replace")
    )


def doing(data: bytes | memoryview, size: int) -> list[Event | None]:
    """Return what each rank of a session does, as phases and events together tell."""
    parts = [part_of(data, rank) for rank in range(size)]
    of_master, *others = map(events, parts)
    if not of_master:
        return [None] * size
    last = of_master[-1]
    known: dict[int, Event] = {}
    for event in of_master:
        if event.phase == MEETING:  # what begins so late is a long call
            event = event._replace(phase=COMPUTING)
        known.setdefault(event.command, event)
    found: list[Event | None] = [_does(parts[0], last, known)]
    for part, of_rank in zip(parts[1:], others, strict=True):
        does = _does(part, of_rank[-1], known) if of_rank else None
        if does and does.phase == WAITING and does.command != last.command:
            does = known[last.command]._replace(time=last.time, phase=READING)
        found.append(does)
    return [_back_in_script(*found), *found[1:]]


def _does(part: memoryview, last: Event, known: dict[int, Event]) -> Event:
    """Return what a rank does, by its last event; `known` are commands with names."""
    phase, _, _ = _words(part)
    code, command = phase[0], known.get(last.command)
    now = last._replace(phase=code % STAGE, stage=code // STAGE)
    if command is None:
        return now
    if now.phase == RUNNING:  # a call is computing, where nothing else is said
        now = now._replace(phase=command.phase)
    return now._replace(name=command.name)


def _back_in_script(master: Event | None, *others: Event | None) -> Event | None:
    """Return what the master does: all may have ended what it waits for."""
    if master is None or master.phase != JOINING:
        return master
    times = [
        event.time
        for event in others
        if event is not None and event[1:3] == (master.command, WAITING)
    ]
    if len(times) < len(others):
        return master
    return master._replace(time=max(times), phase=SCRIPT)


def start_time(pid: int) -> int:
    """Return when a process was started, in clock ticks since boot; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            # The name, in brackets, may hold anything.
            return int(stat.read().rpartition(")")[2].split()[19])
    except (OSError, IndexError):
        return 0


def pid_namespace() -> int:
    """Return which processes the process ids of this one count."""
    return os.stat("/proc/self/ns/pid").st_ino
