"""The flight recorder: what each rank did last, for others to read.

One segment of a session, made before its ranks::

    header      what it is, master, zygote, number of ranks
    rank 0      process id | phase | the last EVENTS events | NAMES names | stacks
    rank 1      ...

A rank writes its own part alone, by plain stores and without a lock; the kernel keeps
the memory when the rank dies. What it does at the moment is its phase, one word, which
is always right. Its events have times, for which it takes up to 1 us: so a rank notes
one when it has to wait itself, for a command or in a meeting. The event of the next
command it writes then too, but for the time, without which an event does not count.
What a command is called the master's events say; and that a rank reads, or that the
master is back in the script, follows from the events of all.

`faulthandler` writes a rank's stacks to its part by itself, through a descriptor: when
a signal kills the rank, and when the master asks for them by `DUMP_SIGNAL`. That needs
no Python code of the rank to run, so it works for one that is stuck in compiled code.
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
"""Phases; each lasts until the next event."""

STAGE = 1 << 4
"""A phase may have a stage added to it, times this."""

# The code of an event is phase + STAGE * stage + _NAME * name + _COMMAND * command.
_STAGES = 0xFFF
_NAME = 1 << 16
_COMMAND = 1 << 24
_COMMANDS = 0xFFFF_FFFF  # numbers of commands are kept modulo 2**32

DUMP_SIGNAL = signal.SIGRTMAX - 2
"""Has a rank write its stacks. Scripts hardly use real-time signals, and tools that do
take the first or the last of them."""

_MAGIC = b"synk flight 1\0\0\0"
_HEADER = struct.Struct("16s6q")
_HEADER_ROOM = 4096
_PID_WORD, _PHASE, _TIMES, _CODES = 0, 8, 16, 16 + EVENTS  # words of a rank's part
_NAME_ROOM = 128  # bytes, with a zero at the end
_NAMES_AT = 8 * (_CODES + EVENTS)
_STACKS_AT = 16 << 10
_STACKS_ROOM = 32 << 10
_RANK_ROOM = _STACKS_AT + _STACKS_ROOM


def nowhere() -> memoryview:
    """Return a word for the phase of what runs outside of commands."""
    return memoryview(bytearray(8)).cast("q")


def _words_of(part: memoryview) -> tuple[memoryview, memoryview, memoryview]:
    """Return the phase, and the times and codes of the events."""
    words = part[:_NAMES_AT].cast("q")
    return words[_PHASE : _PHASE + 1], words[_TIMES:_CODES], words[_CODES:]


# -- writing


class Recorder:
    """Writes what one rank does."""

    def __init__(self, part: memoryview) -> None:
        # One word, to be written directly, and the times of events: see `wait`.
        self.phase, self.times, self._codes = _words_of(part)
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
        """Note that a command is done; return where in `times` the next begins."""
        self.phase[0] = WAITING
        self._command = (command & _COMMANDS) * _COMMAND
        self.note(WAITING)
        self._command = (command + 1 & _COMMANDS) * _COMMAND
        self._place = place = (self._place + 1) % EVENTS
        self.times[place] = 0
        self._codes[place] = self._command | RUNNING
        return place

    def begin(self, command: int, name: str, phase: int = RUNNING) -> None:
        """Note in the master that a command is run; `phase` is COMPUTING for a call."""
        number = self._keys.get(name) or self._add(name)
        self._command = code = (command & _COMMANDS) * _COMMAND | number
        self.phase[0] = RUNNING
        self._place = place = (self._place + 1) % EVENTS
        self._codes[place] = code | phase
        self.times[place] = monotonic_ns()

    def _add(self, name: str) -> int:
        """Return the place of a new name, which may be that of the oldest one."""
        if len(self._keys) == NAMES - 1:  # the first place is for no name
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
    """What a rank does, or did."""

    time: int  # since when, or since before: nanoseconds of CLOCK_MONOTONIC
    command: int  # modulo 2**32
    phase: int
    stage: int  # from 0
    name: str  # of the function or another command; "" if that is not known

    def __str__(self) -> str:
        stage = f"stage {self.stage + 1} of " if self.stage else ""
        return PHASES[self.phase].format(name=self.name or "a command", stage=stage)


class Owner(NamedTuple):
    """Whose records these are: a session of so many ranks, and its processes' ids."""

    size: int
    master: int
    # When that was started, in clock ticks since boot: a number that is used again
    # belongs to a process that started later.
    started: int
    zygote: int  # 0 if there is none
    # Which processes these numbers count, see pid_namespaces(7); 0 where ``/proc``
    # counts others.
    namespace: int
    # Others may have the records open still, as a zygote kept for the next session.
    is_closed: int = 0


def owner_of(data: bytes | memoryview) -> Owner | None:
    """Return whose records a segment's bytes are; None if they are something else."""
    if len(data) < _HEADER_ROOM or bytes(data[: len(_MAGIC)]) != _MAGIC:
        return None
    return Owner(*_HEADER.unpack_from(data)[1:])


def lines_of(history: Sequence[RankEvent]) -> list[str]:
    """Return events as text, with their times before the last one."""
    last = history[-1].time if history else 0
    return [f"{(event.time - last) / 1e6:9.3f} ms  {event}" for event in history]


class RecordsReader:
    """What the bytes of a session's records tell of its `size` ranks."""

    def __init__(self, data: bytes | memoryview, size: int) -> None:
        self._memory, self._size = memoryview(data), size

    def _part(self, rank: int) -> memoryview:
        start = _HEADER_ROOM + rank * _RANK_ROOM
        return self._memory[start : start + _RANK_ROOM]

    def pid(self, rank: int) -> int:
        """Return the process id of a rank that has started; 0 before."""
        return self._part(rank)[:_NAMES_AT].cast("q")[_PID_WORD]

    def stacks(self, rank: int) -> str:
        """Return the stacks that were written for a rank; "" if there are none."""
        written = bytes(self._part(rank)[_STACKS_AT:]).split(b"\0", 1)[0]
        return written.decode(errors="replace")

    def events(self, rank: int) -> list[RankEvent]:
        """Return the events of a rank, the oldest first; the master's have names."""
        part = self._part(rank)
        _, times, codes = _words_of(part)
        found = []
        for time, code in sorted(zip(times.tolist(), codes.tolist(), strict=True)):
            start = _NAMES_AT + code // _NAME % NAMES * _NAME_ROOM
            name = bytes(part[start : start + _NAME_ROOM]).rstrip(b"\0")
            what = code // _COMMAND, code % STAGE, code // STAGE & _STAGES
            if time:  # without one it is no event yet
                found.append(RankEvent(time, *what, name.decode(errors="replace")))
        return found

    def history(self, rank: int) -> list[RankEvent]:
        """Return the events of a rank, the oldest first, with the master's names."""
        named = {event.command: event for event in reversed(self.events(0))}
        return [_named(event, named) for event in self.events(rank)]

    def doing(self) -> list[RankEvent | None]:
        """Return what each rank does, or did when it died; None if it is not known."""
        # It follows from phases and events together: see the beginning of this file.
        of_master, *others = map(self.events, range(self._size))
        if not of_master:
            return [None] * self._size
        last = of_master[-1]
        known: dict[int, RankEvent] = {}
        for event in of_master:
            if event.phase == MEETING:  # what begins so late is a long call
                event = event._replace(phase=COMPUTING)
            known.setdefault(event.command, event)
        found: list[RankEvent | None] = []
        for rank, of_rank in enumerate(others, 1):
            does = self._does(rank, of_rank[-1], known) if of_rank else None
            if does and does.phase == WAITING and does.command != last.command:
                does = known[last.command]._replace(time=last.time, phase=READING)
            found.append(does)
        master = self._does(0, last, known)
        if master.phase == JOINING:  # all may have ended what it waits for
            done = master.command, WAITING
            times = [event.time for event in found if event and event[1:3] == done]
            if len(times) == len(others):
                master = master._replace(time=max(times), phase=SCRIPT)
        return [master, *found]

    def _does(
        self, rank: int, last: RankEvent, known: dict[int, RankEvent]
    ) -> RankEvent:
        """Return what a rank does, by its last event and its phase."""
        phase, _, _ = _words_of(self._part(rank))
        stage, code = divmod(phase[0], STAGE)
        return _named(last._replace(phase=code, stage=stage), known)


def _named(event: RankEvent, known: dict[int, RankEvent]) -> RankEvent:
    """Return an event with the name of its command, and what it is in that."""
    command = known.get(event.command)
    if command is None:
        return event
    # A call is computing, where nothing else is said.
    phase = command.phase if event.phase == RUNNING else event.phase
    return event._replace(phase=phase, name=command.name)


# -- the segment


class Records(RecordsReader):
    """The flight records of all ranks of a session.

    Those that another process has made are found by their `place` there.
    """

    _file: FileIO  # in ranks

    def __init__(self, size: int, place: Place | None = None) -> None:
        if place is None:
            self._segment = Segment(_HEADER_ROOM + size * _RANK_ROOM)
            self.place = self._segment.place
            self._fd = self.place[1]
        else:
            pid, fd, *more = self.place = place
            # Kept open for the life of a rank: `dump_stacks_of` opens it once more.
            self._file = open_again(pid, fd)
            self._fd = self._file.fileno()
            self._segment = Segment.attach(proc.number(), self._fd, *more)
        super().__init__(self._segment.memory(), size)
        if place is None:
            self.note_zygote(0)

    def note_zygote(self, pid: int) -> None:
        """Write down who is the master, and which process forks the ranks."""
        me = os.getpid()
        # Whoever looks for sessions looks in /proc, which may know other numbers.
        namespace = proc.pid_namespace() if proc.knows_us() else 0
        owner = Owner(self._size, me, proc.start_time(me), pid, namespace)
        _HEADER.pack_into(self._memory, 0, _MAGIC, *owner)

    def close(self) -> None:
        """Write down that the session is closed; in its master."""
        owner = owner_of(self._memory)
        assert owner is not None
        if owner.master == os.getpid():  # else a child that the script has forked
            _HEADER.pack_into(self._memory, 0, _MAGIC, *owner._replace(is_closed=1))

    def recorder(self, rank: int) -> Recorder:
        """Return what a rank writes its events with, in its own process."""
        # Of one rank alone nobody asks, and commands are not noted: its phase is no
        # news, and is written to where nobody looks.
        alone = self._size == 1
        return Recorder(
            memoryview(bytearray(_RANK_ROOM)) if alone else self._part(rank)
        )

    def dump_stacks_of(self, rank: int) -> None:
        """Have `faulthandler` write this process's stacks here, from now on."""
        # Opened once more, for a position in the file that no other rank moves.
        # `faulthandler` keeps the file, for the life of the process.
        own = open_again("self", self._fd)
        part = self._part(rank)
        part[_STACKS_AT:] = bytes(_STACKS_ROOM)  # those of a former rank
        own.seek(_HEADER_ROOM + rank * _RANK_ROOM + _STACKS_AT)
        faulthandler.enable(own)
        faulthandler.register(DUMP_SIGNAL, own)
        # Last, as it is this number that says whom the signal may be sent to.
        part[:_NAMES_AT].cast("q")[_PID_WORD] = os.getpid()
