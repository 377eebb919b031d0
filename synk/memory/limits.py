"""How much memory there is to be had: of the machine, and of this process's cgroups.

Memory of a segment is nobody's limit but these. Where they are passed the kernel does
not refuse: it kills processes. So who reserves looks here first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from . import cgroups
from .cgroups import number, read

_UNLIMITED = 1 << 60
"""Bytes; version 1 has no word for "no limit", and gives a number above this."""


class Limit(NamedTuple):
    """What limits memory: a cgroup, or the machine; the bytes it has, and has left."""

    cgroup: Path | None
    total: int
    free: int

    def __str__(self) -> str:
        whose = "the machine's" if self.cgroup is None else f"cgroup {self.cgroup}'s"
        return f"{whose} {self.total:,}"


def memory_limits() -> list[Limit]:
    """Return all limits of this process: the machine's first, then its cgroups'.

    What the kernel would drop first, its cache of files, counts as free. Swap does not.
    A limit that cannot be read is left out.
    """
    return [*_machine(), *_cgroups()]


def tightest() -> Limit | None:
    """Return the limit that has the least left; None if none can be read."""
    return min(memory_limits(), key=lambda limit: limit.free, default=None)


def _machine() -> Iterator[Limit]:
    fields = _fields(cgroups.PROC / "meminfo")
    if "MemAvailable:" in fields:
        total, available = fields["MemTotal:"], fields["MemAvailable:"]
        yield Limit(None, 1024 * total, 1024 * available)


def _cgroups() -> Iterator[Limit]:
    for version, folder in cgroups.groups("memory"):
        if version == 2:
            total, used = number(folder / "memory.max"), folder / "memory.current"
            cache = ["inactive_file", "active_file", "slab_reclaimable"]
        else:
            total = number(folder / "memory.limit_in_bytes")
            used = folder / "memory.usage_in_bytes"
            cache = ["total_inactive_file", "total_active_file"]
        if total is not None and total < _UNLIMITED:
            yield _limit(folder, total, used, cache)


def _limit(folder: Path, total: int, used: Path, cache: Sequence[str]) -> Limit:
    stat = _fields(folder / "memory.stat")
    taken = (number(used) or 0) - sum(stat.get(name, 0) for name in cache)
    return Limit(folder, total, max(0, total - taken))


def _fields(path: Path) -> dict[str, int]:
    """Return the numbers of a file of names and numbers."""
    rows = (line.split() for line in read(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}
