"""The flight recorder: what each rank did last, for others to read.

One segment of a session, made before its ranks::

    header      what it is, master, zygote, number of ranks
    rank 0      process id | phase | the last EVENTS events | NAMES names | stacks
    rank 1      ...

A rank writes its own part alone, by plain stores and without a lock; the kernel keeps
the memory when the rank dies. What it does at the moment is its phase, one word, which
is always right. Its events have times; to look at the clock and to find a place for one
costs a call up to 1 us where others wait for it. So a rank notes an event when it has
to wait itself: for a command, or for the others in a meeting. The event of the next
command it writes then too, but for the time, without which an event does not count.

What a command is called the master's events say, which has time for it while the ranks
read the command; and that a rank reads, or that the master is back in the script,
follows from the events of all. Readers are the master, when it says how a rank died,
and ``python -m synk ps`` in another process.
"""

from __future__ import annotations

from time import monotonic_ns

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

# The code of an event is phase + STAGE * stage + NAME * name + COMMAND * command.
STAGES = 0xFFF
NAME = 1 << 16
COMMAND = 1 << 24
COMMANDS = 0xFFFF_FFFF  # numbers of commands are kept modulo 2**32

HEADER_ROOM = 4096
PID_WORD, PHASE, TIMES, CODES = 0, 8, 16, 16 + EVENTS  # words of a rank's part
NAME_ROOM = 128  # bytes, with a zero at the end
NAMES_AT = 8 * (CODES + EVENTS)
STACKS_AT = 16 << 10
STACKS_ROOM = 32 << 10
RANK_ROOM = STACKS_AT + STACKS_ROOM


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
        self.phase, self.times, self._codes = words_of(part)
        self._names = part[NAMES_AT:][: NAMES * NAME_ROOM]
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
        self._command = (command & COMMANDS) * COMMAND
        self.note(WAITING)
        self._command = (command + 1 & COMMANDS) * COMMAND
        self._place = place = (self._place + 1) % EVENTS
        self.times[place] = 0
        self._codes[place] = self._command | RUNNING
        return place

    # -- in the master

    def begin(self, command: int, name: str, phase: int = RUNNING) -> None:
        """Note that a command is run, by its name; `phase` is COMPUTING for a call."""
        number = self._keys.get(name) or self._add(name)
        self._command = code = (command & COMMANDS) * COMMAND | number
        self.phase[0] = RUNNING
        self._place = place = (self._place + 1) % EVENTS
        self._codes[place] = code | phase
        self.times[place] = monotonic_ns()

    def _add(self, name: str) -> int:
        """Return the place of a new name, which may be that of the oldest one."""
        if len(self._keys) == NAMES - 1:  # the first place is for no name
            number = self._keys.pop(next(iter(self._keys)))
        else:
            number = (len(self._keys) + 1) * NAME
        start = number // NAME * NAME_ROOM
        text = name.encode()[: NAME_ROOM - 1]
        self._names[start : start + NAME_ROOM] = text.ljust(NAME_ROOM, b"\0")
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

    def begin(self, command: int, name: str, phase: int = RUNNING) -> None:
        """Note nothing."""


def nowhere() -> memoryview:
    """Return a word for the phase of what runs outside of commands."""
    return memoryview(bytearray(8)).cast("q")


def part_of(data: bytes | memoryview, rank: int) -> memoryview:
    """Return a rank's part of a segment."""
    start = HEADER_ROOM + rank * RANK_ROOM
    return memoryview(data)[start : start + RANK_ROOM]


def words_of(part: memoryview) -> tuple[memoryview, memoryview, memoryview]:
    """Return the phase, and the times and codes of the events."""
    words = part[:NAMES_AT].cast("q")
    return words[PHASE : PHASE + 1], words[TIMES:CODES], words[CODES:]
