"""How much memory there is to be had: of the machine, and of this process's cgroups.

Memory of a segment is nobody's limit but these. Where they are passed the kernel does
not refuse: it kills processes. So who reserves looks here first.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")

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
    return [*_machine(), *_version_2(), *_version_1()]


def tightest() -> Limit | None:
    """Return the limit that has the least left; None if none can be read."""
    return min(memory_limits(), key=lambda limit: limit.free, default=None)


def _machine() -> Iterator[Limit]:
    fields = _fields(PROC / "meminfo")
    if "MemAvailable:" in fields:
        total, available = fields["MemTotal:"], fields["MemAvailable:"]
        yield Limit(None, 1024 * total, 1024 * available)


def _version_2() -> Iterator[Limit]:
    for root in (CGROUPS, CGROUPS / "unified"):
        for folder in _folders(root, ""):
            total, used = _number(folder / "memory.max"), folder / "memory.current"
            if total is not None:
                cache = ("inactive_file", "active_file", "slab_reclaimable")
                yield _limit(folder, total, used, cache)


def _version_1() -> Iterator[Limit]:
    for folder in _folders(CGROUPS / "memory", "memory"):
        total = _number(folder / "memory.limit_in_bytes")
        if total is not None and total < _UNLIMITED:
            used = folder / "memory.usage_in_bytes"
            yield _limit(
                folder, total, used, ("total_inactive_file", "total_active_file")
            )


def _limit(folder: Path, total: int, used: Path, cache: tuple[str, ...]) -> Limit:
    stat = _fields(folder / "memory.stat")
    taken = (_number(used) or 0) - sum(stat.get(name, 0) for name in cache)
    return Limit(folder, total, max(0, total - taken))


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Return the folders of this process's cgroup and of those around it.

    In a container the path may be one of the host, of which nothing is seen but the
    root: what does not exist is left out.
    """
    for line in _read(PROC / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            folder = root / path.strip("/")
            while folder != root and root in folder.parents:
                if folder.is_dir():
                    yield folder
                folder = folder.parent
            yield root


def _fields(path: Path) -> dict[str, int]:
    """Return the numbers of a file of names and numbers."""
    rows = (line.split() for line in _read(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _read(path: Path) -> str:
    """Return a file's text, or "" where the system has no such file."""
    try:
        return path.read_text()
    except OSError:
        return ""
