"""The sessions of this user on this machine: ``python -m synk ps`` and ``clean``.

Each process of a session has the segment with the session's records open (see
`workers.recorder`). So `find_sessions` finds a session in ``/proc`` as long as one of
its processes lives. There is no list of sessions elsewhere that could be wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ..memory import proc
from ..report.words import count
from ..workers.recorder import Owner, RankEvent, RecordsReader, lines_of, owner_of
from .info import WIDTH, gibibytes

_SEGMENT = re.compile(r"/(?:memfd:|dev/shm/)synk-\S+ \(deleted\)")
"""The targets of links in ``/proc/<pid>/fd`` that are segments of synk."""

_STATES = {"R": "running", "S": "sleeping", "D": "in the kernel", "I": "idle"}
_STATES |= {"T": "stopped", "t": "traced", "Z": "dead", "X": "dead"}

_HEADINGS = "rank", "pid", "state", "CPU", "doing"

_SHARED_MEMORY = Path("/dev/shm")
_NAME = re.compile(r"(?:sem\.)?synk-(\d+)-\d+")
_DEADLINE = 5.0

Key = tuple[int, int]
"""The identity of a segment: device and inode."""


class Process(NamedTuple):
    """A process: its state, processor time in seconds, start, and parent's id.

    `started` is in clock ticks since the machine's start, as in `recorder.Owner`.
    """

    state: str
    seconds: float
    started: int
    parent: int


@dataclass
class FoundSession:
    """A session, or the remaining processes of one."""

    owner: Owner
    pids: list[int]  # of the ranks; 0 for one that has not started
    last: list[RankEvent | None]  # what each rank is doing
    histories: list[list[RankEvent]]  # earlier events of each rank, the oldest first
    holders: set[int] = field(default_factory=set)
    """The processes that have the session's records open. They may include children
    that the script has forked."""
    segments: dict[Key, int] = field(default_factory=dict)
    """The bytes of each segment that its master and ranks have open."""

    @property
    def is_orphan(self) -> bool:
        """Whether the session's master has ended."""
        master = process(self.owner.master)
        is_it = master is not None and master.started == self.owner.started
        return not is_it or master is None or master.state == "dead"


def find_sessions() -> list[FoundSession]:
    """Return all sessions of this user, in the order of their masters' process ids.

    Sessions of another PID namespace, such as a container's, are left out, as their
    process ids mean other processes here.
    """
    found: dict[Key, FoundSession | None] = {}
    held: dict[int, dict[Key, int]] = {}
    for pid, path in _open_segments():
        with contextlib.suppress(OSError):  # it may be closed meanwhile
            stat = os.stat(path)
            key = stat.st_dev, stat.st_ino
            held.setdefault(pid, {})[key] = stat.st_blocks * 512
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


def _open_segments() -> Iterator[tuple[int, str]]:
    """Yield (pid, path) for each segment that a process of this user has open."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may end meanwhile
            if folder.stat().st_uid != os.getuid():
                continue
            for entry in os.scandir(folder / "fd"):
                with contextlib.suppress(OSError):
                    if _SEGMENT.fullmatch(os.readlink(entry.path)):
                        yield int(folder.name), entry.path


def _read(path: str) -> FoundSession | None:
    """Return the session whose records are in a segment; None for other segments."""
    data = Path(path).read_bytes()
    owner = owner_of(data)
    if owner is None or owner.namespace != os.stat("/proc/self/ns/pid").st_ino:
        return None
    reader, ranks = RecordsReader(data, owner.size), range(owner.size)
    pids = [owner.master, *map(reader.pid, ranks[1:])]
    return FoundSession(owner, pids, reader.doing(), list(map(reader.history, ranks)))


def process(pid: int) -> Process | None:
    """Return a process by its id; None if there is none."""
    if not (fields := proc.stat(pid)):
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


# -- ps


def ps(argv: Sequence[str]) -> int:
    """List the running sessions of this user, and what their ranks do."""
    parser = argparse.ArgumentParser(prog="python -m synk ps", description=ps.__doc__)
    parser.add_argument(
        "--events",
        type=int,
        default=0,
        metavar="N",
        help="show the last N things that each rank did, 256 at the most",
    )
    events = parser.parse_args(argv).events
    texts = [
        _described(session, events)
        for session in find_sessions()
        if not (session.owner.is_closed or session.is_orphan)
    ]
    print("\n\n".join(texts or ["no session of this user is running"]))
    return 0


def _described(session: FoundSession, events: int) -> str:
    master, zygote = session.owner.master, session.owner.zygote
    title = f"session of {master}: {command_of(master)}"
    if len(title) > WIDTH:
        title = title[: WIDTH - 3] + "..."
    n, nbytes = len(session.segments), sum(session.segments.values())
    memory = gibibytes(nbytes) if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"
    size = session.owner.size
    facts = f"  {count(size, 'rank')}, {memory} in {count(n, 'segment')}"
    if zygote:
        facts += f", zygote {zygote}"
    now = time.monotonic_ns()
    ranks = zip(session.pids, session.last, strict=True)
    rows = [_row(rank, pid, event, now) for rank, (pid, event) in enumerate(ranks)]
    widths = [max(map(len, column)) for column in zip(_HEADINGS, *rows, strict=True)]
    table = [
        "  ".join(map(str.ljust, row, widths)).rstrip() for row in (_HEADINGS, *rows)
    ]
    for rank, past in enumerate(session.histories if events else ()):
        table += [f"rank {rank}, before", *lines_of(past[-events:])]
    return "\n".join([title, facts, *(f"  {line}" for line in table)])


def _row(rank: int, pid: int, event: RankEvent | None, now: int) -> tuple[str, ...]:
    found = process(pid) if pid else None
    state = "not there" if found is None else found.state
    seconds = "" if found is None else duration(found.seconds)
    what = "" if event is None else f"{event}, for {duration((now - event.time) / 1e9)}"
    return str(rank), str(pid or ""), state, seconds, what


def duration(seconds: float) -> str:
    """Return a number of seconds in words.

    >>> duration(0.04), duration(75.2), duration(7300), duration(200_000)
    ('0.0 s', '1 min 15 s', '2 h 1 min', '2 d 7 h')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours} h {minutes} min" if hours < 24 else f"{hours // 24} d {hours % 24} h"
    )


# -- clean


def clean(argv: Sequence[str]) -> int:
    """End ranks of this user whose master is gone, and remove old files in /dev/shm.

    Ranks end by themselves when their master ends, however that is. They may not if the
    process that watches them, the zygote, was stopped (SIGSTOP) before. Old versions
    of synk, which named their segments, left a file in /dev/shm if they were killed at
    the wrong moment. Sessions whose master is alive are not touched. The exit status is
    1 if a process does not end.
    """
    parser = argparse.ArgumentParser(
        prog="python -m synk clean",
        description=inspect.getdoc(clean),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-n", "--dry-run", action="store_true", help="only say what would be done"
    )
    is_dry = parser.parse_args(argv).dry_run
    processes, names = list(_orphans()), list(_leftovers())
    would = "would " if is_dry else ""
    for pid, what in processes:
        print(f"{would}kill {what}")
        if not is_dry:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    for path in names:
        print(f"{would}remove {path}")
        if not is_dry:
            path.unlink(missing_ok=True)
    if not processes and not names:
        print("nothing to clean")
    if is_dry:
        return 0
    left = [what for pid, what in processes if not _ends(pid)]
    for what in left:
        print(f"{what} does not end")
    return 1 if left else 0


def _orphans() -> Iterator[tuple[int, str]]:
    """Yield (pid, text) for zygotes and ranks of sessions whose master is gone.

    These have the session's records open, or are the zygote that is the parent of such
    ranks. Another process with a reused id is neither.
    """
    for session in find_sessions():
        if not session.is_orphan:
            continue
        master = session.owner.master
        known = {session.owner.zygote: "zygote"}
        known |= {pid: f"rank {rank}" for rank, pid in enumerate(session.pids) if rank}
        ours = known.keys() & session.holders
        # A zygote older than the session has no records open, but has forked ranks.
        parents = {found.parent for pid in ours if (found := process(pid)) is not None}
        for pid in sorted(ours | (parents & {session.owner.zygote})):
            found = process(pid)
            if found is not None and found.state != "dead":
                what = f"{known[pid]} (pid {pid}, {found.state})"
                yield pid, f"{what} of a session whose master, {master}, is gone"


def _leftovers() -> Iterator[Path]:
    """Yield this user's synk files in ``/dev/shm`` whose processes are gone.

    No process opens a segment by its name, so they can be removed.
    """
    for path in sorted(_SHARED_MEMORY.glob("*synk-*")):
        match = _NAME.fullmatch(path.name)
        with contextlib.suppress(OSError):
            is_ours = path.lstat().st_uid == os.getuid()
            if match and is_ours and not Path(f"/proc/{match[1]}").exists():
                yield path


def _ends(pid: int) -> bool:
    """Wait for a killed process to end; return False if it has not within 5 s."""
    deadline = time.monotonic() + _DEADLINE
    while (found := process(pid)) is not None and found.state != "dead":
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
