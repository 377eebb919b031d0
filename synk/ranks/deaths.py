"""Deaths of ranks: what these were doing, and what is left of the shared variables."""

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
"""Seconds that ranks have to write their stacks, all together."""

_SETTLED = 0.05
"""Seconds in which nothing more is written where a stack has come to its end."""


def explain(death: WorkerDied, records: Records, kills: OomKills) -> None:
    """Add to a death what is known of it beyond who and how."""
    if death.rank < 0:
        return
    by_kernel = kills.any() if death.status == -signal.SIGKILL else None
    doing, stack = records.doing()[death.rank], tidied(records.stacks(death.rank))
    history = tuple(lines_of(records.history(death.rank)))
    death.doing, death.stack, death.history = str(doing or ""), stack, history
    death.out_of_memory = by_kernel


def stacks_of(ranks: list[int], records: Records) -> str:
    """Have ranks write where they are, and return it, with what each was doing."""
    asked = []
    for rank in ranks:
        # Without a number it has not come so far that it could write; or it is gone.
        with contextlib.suppress(ProcessLookupError):
            if pid := records.pid(rank):
                os.kill(pid, DUMP_SIGNAL)
                asked.append(rank)
    written = dict.fromkeys(asked, "")
    last = time.monotonic()
    deadline = last + STACKS_DEADLINE
    # A stack has no end that could be looked for: it has come when nothing follows.
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
        + (tidied(written.get(rank, "")) or _why_none(records.pid(rank)))
        for rank in ranks
    )


def _why_none(pid: int) -> str:
    """Say why a process has written no stack."""
    if proc.knows_us():  # by such numbers
        fields = proc.stat(pid)
        if not fields:
            return "  no stack: it is gone\n"
        if fields[0] in "Tt":
            return "  no stack: it is stopped, as by SIGSTOP\n"
    return f"  no stack came within {STACKS_DEADLINE:g} s\n"


def tidied(text: str) -> str:
    """Return what `faulthandler` has written of a rank, without what says nothing."""
    # The outer frames of a rank are those of the script at the fork, and our own loop.
    # Of our own frames the innermost one stays, as in tracebacks. With
    # ``SYNK_FULL_TRACEBACK=1`` all do.
    if shows_all_frames():
        return text
    kept: list[str] = []
    is_outer = has_ours = False
    for line in text.splitlines():
        frame = _FRAME.match(line)
        if frame is None:  # of another thread, or a heading
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
    if len(only) == 1:  # of one thread
        kept.remove(only[0])
    return "".join(f"{line}\n" for line in kept)


_HEADING = "(most recent call first):"
_FRAME = re.compile(r'  File "(.*)", line \d+ in (.*)')


def carry_over(ledger: Ledger, death: WorkerDied, to: Ledger) -> list[SharedVariable]:
    """Tell a new session's ledger what the old one says; return what is lost."""
    # The master's values are there. A variable that was equal on all ranks is what the
    # master has, as it has undone its own share of a call that failed. Of the others,
    # the values of the ranks are gone with these.
    lost = []
    for var in ledger.variables():
        (entry,) = ledger.entries([var])
        if entry.is_set or entry.holding.kind == "replicated":
            continue  # all ranks are given what the master has
        (new,) = to.entries([var])
        holding = entry.holding
        if entry.kept is None:
            lost.append(var)
            if holding.kind != "unknown":
                holding = Holding("unknown", f"{death.who} died")
        to.note_entry(new, holding)
        new.kept = entry.kept  # after that, which drops what was kept
    return lost


def warn_of_restart(
    death: WorkerDied, lost: Sequence[SharedVariable], restarts_left: int
) -> None:
    """Say that all ranks were started again, and what is lost."""
    text = f"{death.what_happened}; synk has started all ranks again"
    text += f" ({restarts_left} restarts left)"
    if lost:
        names = ", ".join(map(str, lost))
        text += f". The ranks' own values of {names} are lost: see synk.state"
    warnings.warn(text, RuntimeWarning, stacklevel=callers_level())
