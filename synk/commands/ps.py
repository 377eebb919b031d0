"""``python -m synk ps``: the running sessions of this user, and what their ranks do."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

from ..workers.records import Event, lines_of
from .info import WIDTH, gibibytes
from .sessions import Session, command_of, find_sessions, process

_HEADINGS = "rank", "pid", "state", "CPU", "doing"


def main(argv: Sequence[str]) -> int:
    """Print the sessions; the exit status is 0."""
    parser = argparse.ArgumentParser(prog="python -m synk ps", description=__doc__)
    parser.add_argument(
        "--events",
        type=int,
        default=0,
        metavar="N",
        help="show the last N things that each rank did, 256 at the most",
    )
    print(report(parser.parse_args(argv).events))
    return 0


def report(events: int = 0) -> str:
    """Return the report, with so many of each rank's last events."""
    sessions = [session for session in find_sessions() if session.is_running]
    if not sessions:
        return "no session of this user is running"
    return "\n\n".join(_described(session, events) for session in sessions)


def _described(session: Session, events: int) -> str:
    master, zygote = session.owner.master, session.owner.zygote
    title = f"session of {master}: {command_of(master)}"
    if len(title) > WIDTH:
        title = title[: WIDTH - 3] + "..."
    n, nbytes = len(session.segments), sum(session.segments.values())
    memory = gibibytes(nbytes) if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"
    size = session.owner.size
    facts = f"  {size} rank{'s' * (size > 1)}, {memory} in {n} segment{'s' * (n > 1)}"
    if zygote:
        facts += f", zygote {zygote}"
    now = time.monotonic_ns()
    ranks = zip(session.pids, session.last, strict=True)
    rows = [_row(rank, pid, event, now) for rank, (pid, event) in enumerate(ranks)]
    widths = [max(map(len, column)) for column in zip(_HEADINGS, *rows, strict=True)]
    table = [
        "  ".join(map(str.ljust, row, widths)).rstrip() for row in (_HEADINGS, *rows)
    ]
    for rank, history in enumerate(session.histories if events else ()):
        table += [f"rank {rank}, before", *lines_of(history[-events:])]
    return "\n".join([title, facts, *(f"  {line}" for line in table)])


def _row(rank: int, pid: int, event: Event | None, now: int) -> tuple[str, ...]:
    found = process(pid) if pid else None
    state = "not there" if found is None else found.state
    seconds = "" if found is None else duration(found.seconds)
    what = "" if event is None else f"{event}, for {duration((now - event.time) / 1e9)}"
    return str(rank), str(pid or ""), state, seconds, what


def duration(seconds: float) -> str:
    """Write a number of seconds.

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
