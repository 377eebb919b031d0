"""When a rank has died: what it was doing, and which variables have lost values."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
import warnings
from collections.abc import Sequence

from pytensor.compile import SharedVariable

from ..errors import WorkerDied
from ..memory import proc
from ..memory.limits import OomKills
from ..user_frames import callers_level, is_ours, shows_all_frames
from ..workers import channel
from ..workers.recorder import DUMP_SIGNAL, Records, lines_of
from .ledger import Holding, Ledger

STACKS_DEADLINE = 1.0
"""Seconds for which the master waits for stacks, of all ranks together."""

_SETTLED = 0.05
"""Seconds without further text after which a stack is taken to be complete."""


def explain(death: WorkerDied, records: Records, kills: OomKills) -> None:
    """Add to `death` the rank's activity, stack, history, and if it was OOM-killed."""
    if death.rank < 0:
        return
    by_kernel = kills.any() if death.status == -signal.SIGKILL else None
    doing, stack = records.doing()[death.rank], shortened(records.stacks(death.rank))
    history = tuple(lines_of(records.history(death.rank)))
    death.doing, death.stack, death.history = str(doing or ""), stack, history
    death.out_of_memory = by_kernel


def stacks_of(ranks: list[int], records: Records) -> str:
    """Have ranks write their stacks; return these as text, with each rank's phase."""
    asked = []
    for rank in ranks:
        # A rank without a process id cannot write yet; one without a process is gone.
        with contextlib.suppress(ProcessLookupError):
            if pid := records.pid(rank):
                os.kill(pid, DUMP_SIGNAL)
                asked.append(rank)
    written = dict.fromkeys(asked, "")
    last = time.monotonic()
    deadline = last + STACKS_DEADLINE
    # Nothing marks the end of a stack: it is complete when no more text comes.
    while (now := time.monotonic()) < deadline:
        found = {rank: records.stacks(rank) for rank in asked}
        if found != written:
            written, last = found, now
        if all(written.values()) and now - last > _SETTLED:
            break
        time.sleep(_SETTLED / 5)
    doing = records.doing()
    return "\n".join(
        f"rank {rank} (pid {records.pid(rank)}), {doing[rank] or 'starting'}:\n"
        + (shortened(written.get(rank, "")) or _why_none(records.pid(rank)))
        for rank in ranks
    )


def _why_none(pid: int) -> str:
    """Return why a process has written no stack, for the message."""
    if proc.knows_us():  # so ``/proc`` knows `pid`, too
        fields = proc.stat(pid)
        if not fields:
            return "  no stack: it is gone\n"
        if fields[0] in "Tt":
            return "  no stack: it is stopped, as by SIGSTOP\n"
    return f"  no stack came within {STACKS_DEADLINE:g} s\n"


def shortened(text: str) -> str:
    """Return a rank's stacks of `faulthandler` without frames that tell nothing."""
    # A rank's outer frames, left out, are those of the script at the fork, and `serve`.
    # Of adjacent frames of synk the innermost stays, as in tracebacks. With
    # ``SYNK_FULL_TRACEBACK=1`` all frames stay.
    if shows_all_frames():
        return text
    kept: list[str] = []
    is_outer = has_ours = False
    for line in text.splitlines():
        frame = _FRAME.match(line)
        if frame is None:  # a heading, as of another thread
            is_outer = has_ours = False
            if line and not line.startswith("Extension modules:"):
                kept.append(line)
            continue
        is_one_of_ours = is_ours(frame[1])
        is_outer |= frame.groups() == (channel.__file__, "serve")
        if not is_outer and not (is_one_of_ours and has_ours):
            kept.append(line)
        has_ours |= is_one_of_ours
    only = [line for line in kept if line.endswith(_HEADING)]
    if len(only) == 1:  # there is one thread
        kept.remove(only[0])
    return "".join(f"{line}\n" for line in kept)


_HEADING = "(most recent call first):"
_FRAME = re.compile(r'  File "(.*)", line \d+ in (.*)')


def carry_over(old: Ledger, death: WorkerDied, new: Ledger) -> list[SharedVariable]:
    """Copy entries to a new session's ledger; return variables that lost values."""
    # A replicated variable has its value in the master, which has undone its own share
    # of the failed call. Ranks' own values are gone, unless a copy was kept.
    lost = []
    for var in old.variables():
        (entry,) = old.entries([var])
        if entry.is_set or entry.holding.kind == "replicated":
            continue  # new ranks get the master's value
        (new_entry,) = new.entries([var])
        holding = entry.holding
        if entry.kept is None:
            lost.append(var)
            if holding.kind != "unknown":
                holding = Holding("unknown", f"{death.who} died")
        new.note_entry(new_entry, holding)
        new_entry.kept = entry.kept  # last, as `note_entry` resets it
    return lost


def warn_of_restart(
    death: WorkerDied, lost: Sequence[SharedVariable], restarts_left: int
) -> None:
    """Warn that all ranks were started again, and which variables lost values."""
    text = f"{death.what_happened}; synk has started all ranks again"
    text += f" ({restarts_left} restarts left)"
    if lost:
        names = ", ".join(map(str, lost))
        text += f". The ranks' own values of {names} are lost: see synk.state"
    warnings.warn(text, RuntimeWarning, stacklevel=callers_level())
