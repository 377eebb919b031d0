"""The flight records of a session: the segment of all ranks, and what it tells.

`recorder` has its layout. `faulthandler` writes a rank's stacks to its part by itself,
through a descriptor: when a signal kills the rank, and when the master asks for them by
`DUMP_SIGNAL`. That needs no Python code of the rank to run, so it works for one that is
stuck in compiled code.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import struct
from collections.abc import Sequence
from typing import NamedTuple

from ..memory import proc
from ..memory.descriptors import opened_for_life
from ..memory.segment import Place, Segment
from .recorder import (
    COMMAND,
    COMPUTING,
    HEADER_ROOM,
    JOINING,
    MEETING,
    NAME,
    NAME_ROOM,
    NAMES,
    NAMES_AT,
    PHASES,
    PID_WORD,
    RANK_ROOM,
    READING,
    RUNNING,
    SCRIPT,
    STACKS_AT,
    STACKS_ROOM,
    STAGE,
    STAGES,
    WAITING,
    Recorder,
    Unrecorded,
    part_of,
    words_of,
)

DUMP_SIGNAL = signal.SIGRTMAX - 2
"""Has a rank write its stacks. Scripts hardly use real-time signals, and tools that do
take the first or the last of them."""

_MAGIC = b"synk flight 1\0\0\0"
_HEADER = struct.Struct("16s6q")


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
        Which processes these numbers count; see pid_namespaces(7). 0 where ``/proc``
        counts others.
    is_closed : int
        Whether the master has closed the session: others may have the records open
        still, as a zygote that is kept for the next one.
    """

    size: int
    master: int
    started: int
    zygote: int
    namespace: int
    is_closed: int = 0


class Records:
    """The flight records of all ranks of a session.

    Parameters
    ----------
    size : int
        The number of ranks.
    """

    def __init__(self, size: int) -> None:
        self._use(Segment(HEADER_ROOM + size * RANK_ROOM), size)
        _, self._fd, *_ = self.place
        self.note_zygote(0)

    @classmethod
    def attach(cls, place: Place) -> Records:
        """Return the records that another process has made, by their `place` there."""
        self = cls.__new__(cls)
        pid, fd, *more = place
        # Kept for the life of this process, a rank.
        self._fd = _open_again(pid, fd)
        segment = Segment.attach(proc.number(), self._fd, *more)
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
        me = os.getpid()
        # Whoever looks for sessions looks in /proc, which may know other numbers.
        namespace = pid_namespace() if proc.knows_us() else 0
        owner = Owner(self._size, me, start_time(me), pid, namespace)
        _HEADER.pack_into(self._memory, 0, _MAGIC, *owner)

    def close(self) -> None:
        """Write down that the session is closed; in its master."""
        owner = owner_of(bytes(self._memory))
        assert owner is not None
        if owner.master != os.getpid():  # a child that the script has forked
            return
        _HEADER.pack_into(self._memory, 0, _MAGIC, *owner._replace(is_closed=1))

    def recorder(self, rank: int) -> Recorder | Unrecorded:
        """Return what a rank writes its events with, in its own process."""
        # One rank alone has nobody who would ask, and its calls are short.
        return Recorder(self._part(rank)) if self._size > 1 else Unrecorded()

    def _part(self, rank: int) -> memoryview:
        return part_of(self._memory, rank)

    def doing(self, rank: int) -> Event | None:
        """Return what a rank does, or did when it died; None if that is not known."""
        return doing(self._memory, self._size)[rank]

    def history(self, rank: int) -> list[Event]:
        """Return what a rank has done last."""
        return history(self._memory, rank)

    def pid(self, rank: int) -> int:
        """Return the process id of a rank that has started; 0 before."""
        return pid_of(self._part(rank))

    def stacks(self, rank: int) -> str:
        """Return the stacks that were written for a rank; "" if there are none."""
        written = bytes(self._part(rank)[STACKS_AT:]).split(b"\0", 1)[0]
        return written.decode(errors="replace")

    def dump_stacks_of(self, rank: int) -> None:
        """Have the stacks of a rank, this process, written here by `faulthandler`.

        From here on, when a signal kills the process, and when it gets `DUMP_SIGNAL`.
        """
        # Opened once more, for a position in the file that no other rank moves. It is
        # kept for the life of the process.
        own = _open_again("self", self._fd)
        part = self._part(rank)
        part[STACKS_AT:] = bytes(STACKS_ROOM)  # those of a former rank
        os.lseek(own, HEADER_ROOM + rank * RANK_ROOM + STACKS_AT, os.SEEK_SET)
        faulthandler.enable(own)
        faulthandler.register(DUMP_SIGNAL, own)
        # Last, as it is this number that says whom the signal may be sent to.
        part[:NAMES_AT].cast("q")[PID_WORD] = os.getpid()


def _open_again(pid: int | str, fd: int) -> int:
    """Open what a descriptor of a process is for, at a position of its own."""
    flags = os.O_RDWR | os.O_CLOEXEC
    return opened_for_life(os.open, f"/proc/{pid}/fd/{fd}", flags)


def owner_of(data: bytes) -> Owner | None:
    """Return whose records a segment's bytes are; None if they are something else."""
    if len(data) < HEADER_ROOM or not data.startswith(_MAGIC):
        return None
    return Owner(*_HEADER.unpack_from(data)[1:])


def pid_of(part: memoryview) -> int:
    """Return the process id of a rank that has started; 0 before."""
    return part[:NAMES_AT].cast("q")[PID_WORD]


def events(part: memoryview) -> list[Event]:
    """Return the events of a rank, the oldest first; the master's alone have names."""
    _, times, codes = words_of(part)
    pairs = sorted(zip(times.tolist(), codes.tolist(), strict=True))
    return [_event(part, time, code) for time, code in pairs if time]


def history(data: bytes | memoryview, rank: int) -> list[Event]:
    """Return the events of a rank, the oldest first, with the master's names."""
    named = {event.command: event for event in reversed(events(part_of(data, 0)))}
    found = []
    for event in events(part_of(data, rank)):
        command = named.get(event.command)
        if command is not None:
            phase = command.phase if event.phase == RUNNING else event.phase
            event = event._replace(phase=phase, name=command.name)
        found.append(event)
    return found


def lines_of(history: Sequence[Event]) -> list[str]:
    """Return events as text, with their times before the last one."""
    last = history[-1].time if history else 0
    return [f"{(event.time - last) / 1e6:9.3f} ms  {event}" for event in history]


def _event(part: memoryview, time: int, code: int) -> Event:
    start = NAMES_AT + code // NAME % NAMES * NAME_ROOM
    name = bytes(part[start : start + NAME_ROOM]).rstrip(b"\0")
    stage = code // STAGE & STAGES
    return Event(
        time, code // COMMAND, code % STAGE, stage, name.decode(errors="replace")
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
    phase, _, _ = words_of(part)
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
