"""``python -m synk clean``: end what this user's sessions left whose master is gone.

Ranks end with their master by themselves, whatever has ended it. They may not where the
process that looks after them, the zygote, was stopped (SIGSTOP) before. And versions of
synk that gave segments names left one in ``/dev/shm`` when they were killed at the
wrong moment. What belongs to a session whose master is there is not touched.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from .sessions import find_sessions, process

SHARED_MEMORY = Path("/dev/shm")

_NAME = re.compile(r"(?:sem\.)?synk-(\d+)-\d+")
_DEADLINE = 5.0


def main(argv: Sequence[str]) -> int:
    """Clean, and print what was done; the exit status is 1 if something is left."""
    parser = argparse.ArgumentParser(
        prog="python -m synk clean",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-n", "--dry-run", action="store_true", help="only say what would be done"
    )
    is_dry = parser.parse_args(argv).dry_run
    processes, names = list(orphans()), list(leftovers())
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


def orphans() -> Iterator[tuple[int, str]]:
    """Yield the zygotes and ranks of sessions whose master is gone, and what they are.

    Only such as have the records of their session open, and their parent: a process
    that has one of their numbers by now has not.
    """
    for session in find_sessions():
        if not session.is_orphan:
            continue
        master = session.owner.master
        known = {session.owner.zygote: "zygote"}
        known |= {pid: f"rank {rank}" for rank, pid in enumerate(session.pids) if rank}
        ours = known.keys() & session.holders
        # One that was forked before the session has not its records, but its ranks.
        parents = {found.parent for pid in ours if (found := process(pid)) is not None}
        for pid in sorted(ours | (parents & {session.owner.zygote})):
            found = process(pid)
            if found is not None and found.state != "dead":
                what = f"{known[pid]} (pid {pid}, {found.state})"
                yield pid, f"{what} of a session whose master, {master}, is gone"


def leftovers() -> Iterator[Path]:
    """Yield names in ``/dev/shm`` of this user whose processes are gone.

    Nobody ever opens a segment by its name.
    """
    for path in sorted(SHARED_MEMORY.glob("*synk-*")):
        match = _NAME.fullmatch(path.name)
        with contextlib.suppress(OSError):
            is_ours = path.lstat().st_uid == os.getuid()
            if match and is_ours and not Path(f"/proc/{match[1]}").exists():
                yield path


def _ends(pid: int) -> bool:
    """Wait for the end of a process that was killed; return whether it came."""
    deadline = time.monotonic() + _DEADLINE
    while (found := process(pid)) is not None and found.state != "dead":
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
