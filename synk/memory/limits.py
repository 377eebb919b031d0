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
    return [*_machine(), *_cgroups()]


def tightest() -> Limit | None:
    """Return the limit that has the least left; None if none can be read."""
    return min(memory_limits(), key=lambda limit: limit.free, default=None)


def _machine() -> Iterator[Limit]:
    fields = _fields(PROC / "meminfo")
    if "MemAvailable:" in fields:
        total, available = fields["MemTotal:"], fields["MemAvailable:"]
        yield Limit(None, 1024 * total, 1024 * available)


def _cgroups() -> Iterator[Limit]:
    for line in _read(PROC / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _version_2(CGROUPS, path)
            yield from _version_2(CGROUPS / "unified", path)
        elif "memory" in controllers.split(","):
            yield from _version_1(CGROUPS / "memory", path)


def _version_2(root: Path, path: str) -> Iterator[Limit]:
    for folder in _around(root, path):
        total, used = _number(folder / "memory.max"), folder / "memory.current"
        if total is not None:
            cache = "inactive_file", "active_file", "slab_reclaimable"
            yield _limit(folder, total, used, cache)


def _version_1(root: Path, path: str) -> Iterator[Limit]:
    for folder in _around(root, path):
        total, used = _number(folder / "memory.limit_in_bytes"), "memory.usage_in_bytes"
        if total is not None and total < _UNLIMITED:
            cache = "total_inactive_file", "total_active_file"
            yield _limit(folder, total, folder / used, cache)


def _limit(folder: Path, total: int, used: Path, cache: tuple[str, ...]) -> Limit:
    stat = _fields(folder / "memory.stat")
    taken = (_number(used) or 0) - sum(stat.get(name, 0) for name in cache)
    return Limit(folder, total, max(0, total - taken))


def _around(root: Path, path: str) -> list[Path]:
    """Return the folders of a cgroup and of those around it, up to the root.

    In a container the path may be one of the host, and nothing is seen of it but the
    root: a folder that is not there has no limit.
    """
    parts = path.strip("/").split("/")
    inner = [root.joinpath(*parts[:n]) for n in range(len(parts), 0, -1) if parts[0]]
    return [*inner, root]


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
        with open(path, "rb", buffering=0) as file:  # a third of the time of read_text
            return file.read().decode()
    except OSError:
        return ""
