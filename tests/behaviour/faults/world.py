"""What a session must leave as it was: looked at before, and compared after."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from processes import links

PATIENCE = 5.0
"""Seconds that the kernel may take to end the ranks of a zygote that was killed."""

_PR_SET_CHILD_SUBREAPER = 36


class Leak(AssertionError):
    """Something was left behind."""


class World:
    """What this process has, and the names in ``/dev/shm``, at one moment."""

    def __init__(self) -> None:
        self.seen = look()

    def check(self) -> None:
        """Raise Leak unless all is as it was; wait a moment for it."""
        deadline = time.monotonic() + PATIENCE
        while (now := look()) != self.seen and time.monotonic() < deadline:
            time.sleep(0.005)
        if now != self.seen:
            changes = {
                key: (value, now[key])
                for key, value in self.seen.items()
                if now[key] != value
            }
            raise Leak(f"left behind (before, after): {changes}")


def look() -> dict[str, object]:
    """Return what must be the same before a session and after it."""
    gc.collect()
    return {
        "children": children(os.getpid()),
        "descriptors": Counter(map(_kind, links("self"))),
        "names in /dev/shm": names_of_the_dead(),
        "held-back signals": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "handlers": [signal.getsignal(number) for number in _HANDLED],
        "cores": os.sched_getaffinity(0),
    }


_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)


def children(pid: int) -> set[int]:
    """Return the children of a process, those that wait to be reaped too."""
    found = set()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found.update(map(int, path.read_text().split()))
        except OSError:
            continue  # a thread that has ended
    return found


def _kind(link: str) -> str:
    """Return what a descriptor refers to, without the numbers of it."""
    link = link.partition(":")[0] if re.match(r"\w+:\[", link) else link
    return re.sub("synk-[-0-9]+", "synk", link)


def names_of_the_dead() -> set[str]:
    """Return the names in ``/dev/shm`` that processes left which are gone."""
    return {
        path.name
        for path in Path("/dev/shm").iterdir()
        if (found := re.fullmatch(r"(?:sem\.)?synk-(\d+)-\d+", path.name))
        and not psutil.pid_exists(int(found[1]))
    }


# -- processes whose parent has died


@contextmanager
def adopting_orphans() -> Iterator[None]:
    """Have orphans among this process's descendants become its children."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0)


def bury(others: set[int], patience: float) -> list[str]:
    """Wait for the end of all children but `others`; say which had to be killed."""
    deadline = time.monotonic() + patience
    while left := children(os.getpid()) - others:
        for pid in left:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                pass
        if time.monotonic() > deadline:
            return [_kill(pid) for pid in left]
        time.sleep(0.002)
    return []


def _kill(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        said = f"{pid} {process.status()} {process.cmdline()[:3]}"
        process.kill()
        os.waitpid(pid, 0)
    except (psutil.NoSuchProcess, ChildProcessError):
        return f"{pid} (it has just ended)"
    return said
