"""The sessions of this user that there are on this machine, as ``/proc`` shows them.

Each process of a session has the segment of its flight records open, see
`workers.records`, whatever has become of the others. So a session is found as long as
any of its processes is there, and by nothing else: there is no register of sessions
that could be wrong.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ..workers.records import Event, Owner, doing, history, owner_of, part_of, pid_of

_SEGMENT = re.compile(r"/(?:memfd:|dev/shm/)synk-\S+ \(deleted\)")
"""What the link of an open segment looks like."""

_STATES = {"R": "running", "S": "sleeping", "D": "in the kernel", "I": "idle"}
_STATES |= {"T": "stopped", "t": "traced", "Z": "dead", "X": "dead"}

Key = tuple[int, int]
"""What tells a segment from all others: device and inode."""


class Process(NamedTuple):
    """What the kernel says of a process.

    Attributes
    ----------
    state : str
        As "running", in a word or two.
    seconds : float
        Of processor time.
    started : int
        Clock ticks from the start of the machine; see `records.Owner`.
    parent : int
        The process id of its parent.
    """

    state: str
    seconds: float
    started: int
    parent: int


@dataclass
class Session:
    """A session, or what is left of one.

    Attributes
    ----------
    owner : Owner
    pids : list of int
        The ranks' process ids, in their order; 0 for one that has not started.
    last : list of (Event or None)
        What each rank does.
    histories : list of list of Event
        What each rank has done before, the oldest first.
    holders : set of int
        The processes that have the session's records open. Children that the script has
        forked may be among them.
    segments : dict
        The bytes of the segments that its master and ranks have open.
    """

    owner: Owner
    pids: list[int]
    last: list[Event | None]
    histories: list[list[Event]]
    holders: set[int] = field(default_factory=set)
    segments: dict[Key, int] = field(default_factory=dict)

    @property
    def is_running(self) -> bool:
        """Whether its master is there and has not closed it."""
        return not self.owner.is_closed and not self.is_orphan

    @property
    def is_orphan(self) -> bool:
        """Whether its master is gone."""
        master = process(self.owner.master)
        is_it = master is not None and master.started == self.owner.started
        return not is_it or master is None or master.state == "dead"


def find_sessions() -> list[Session]:
    """Return all sessions of this user, by the process ids of their masters.

    Those of another PID namespace, as of a container, are left out: the numbers that
    their processes have there are others' here.
    """
    found: dict[Key, Session | None] = {}
    held: dict[int, dict[Key, int]] = {}
    for pid in _own_processes():
        held[pid] = {}
        for path in _segments_of(pid):
            # Each may be closed while we look.
            with contextlib.suppress(OSError):
                stat = os.stat(path)
                key = stat.st_dev, stat.st_ino
                held[pid][key] = stat.st_blocks * 512
                if key not in found:
                    found[key] = _read(path)
                session = found[key]
                if session is not None:
                    session.holders.add(pid)
    sessions = [session for session in found.values() if session is not None]
    for session in sessions:
        for pid in session.holders & {session.owner.master, *session.pids}:
            session.segments |= held[pid]
    return sorted(sessions, key=lambda session: session.owner.master)


def _own_processes() -> list[int]:
    pids = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == os.getuid():
                pids.append(int(name))
    return pids


def _segments_of(pid: int) -> list[str]:
    paths = []
    with contextlib.suppress(OSError):
        for entry in os.scandir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if _SEGMENT.fullmatch(os.readlink(entry.path)):
                    paths.append(entry.path)
    return paths


def _read(path: str) -> Session | None:
    """Return the session whose records a segment has; None if it has none."""
    data = Path(path).read_bytes()
    owner = owner_of(data)
    if owner is None or owner.namespace != os.stat("/proc/self/ns/pid").st_ino:
        return None
    pids = [pid_of(part_of(data, rank)) for rank in range(owner.size)]
    histories = [history(data, rank) for rank in range(owner.size)]
    last = doing(data, owner.size)
    return Session(owner, [owner.master, *pids[1:]], last, histories)


def process(pid: int) -> Process | None:
    """Return what the kernel says of a process; None if there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    ticks = int(fields[11]) + int(fields[12])
    state = _STATES.get(fields[0], fields[0])
    seconds = ticks / os.sysconf("SC_CLK_TCK")
    return Process(state, seconds, int(fields[19]), int(fields[1]))


def command_of(pid: int) -> str:
    """Return the command line of a process; "" if it is gone."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(filter(None, words)).decode(errors="replace")
