"""What there is to be had of memory and cores: the machine's, and the control groups'.

What limits a control group limits all groups within it, so every level up counts. Both
versions of control groups are read, as a machine may have either, or both at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")

_UNLIMITED = 1 << 60
"""Bytes; version 1 has no word for "no limit", and gives a number above this."""


class MemoryLimit(NamedTuple):
    """What limits memory: a control group, or the machine (None); in bytes."""

    cgroup: Path | None
    total: int
    free: int

    def __str__(self) -> str:
        whose = "the machine's" if self.cgroup is None else f"cgroup {self.cgroup}'s"
        return f"{whose} {self.total:,}"


def memory_limits() -> list[MemoryLimit]:
    """Return all limits of this process: the machine's first, then its cgroups'."""
    # What the kernel would drop first, its cache of files, counts as free. Swap does
    # not. A limit that cannot be read is left out.
    found: list[MemoryLimit] = []
    machine = _fields(PROC / "meminfo")
    if "MemAvailable:" in machine:
        total, free = machine["MemTotal:"], machine["MemAvailable:"]
        found.append(MemoryLimit(None, 1024 * total, 1024 * free))
    return [*found, *_memory_cgroups()]


def tightest() -> MemoryLimit | None:
    """Return the limit that has the least left; None if none can be read."""
    # Where it is passed the kernel does not refuse memory: it kills processes. So
    # whoever reserves looks here first.
    return min(memory_limits(), key=lambda limit: limit.free, default=None)


def cpu_quota() -> float | None:
    """Return the CPU quota in cores, the least of all control groups; None for none."""
    quotas = []
    for version, folder in cgroups("cpu"):
        if version == 2:
            numbers = _read(folder / "cpu.max").split()
        else:
            files = "cpu.cfs_quota_us", "cpu.cfs_period_us"
            numbers = [_read(folder / name).strip() for name in files]
        # "max" and -1 say that there is none, and an empty file nothing.
        if len(numbers) == 2 and all(map(str.isdigit, numbers)):
            quota, period = map(int, numbers)
            if quota and period:
                quotas.append(quota / period)
    return min(quotas, default=None)


class OomKills:
    """The kills of the kernel's out-of-memory killer from here on.

    All that it leaves is a count. Where this process's control group has one, it is
    ours. That of the whole machine says less: it may have been anybody's process.
    """

    def __init__(self) -> None:
        self._before = self._counts()

    def any(self) -> bool | None:
        """Tell whether there was any among our processes; None if that is not known."""
        (ours, machine), (ours_now, machine_now) = self._before, self._counts()
        if ours is not None and ours_now is not None:
            return ours_now > ours
        if machine is not None and machine == machine_now:
            return False
        return None

    def _counts(self) -> tuple[int | None, int | None]:
        """Return the counts of our control group and of the machine."""
        ours = None
        for version, folder in cgroups("memory"):
            name = "memory.events" if version == 2 else "memory.oom_control"
            ours = _fields(folder / name).get("oom_kill")
            if ours is not None:
                break
        return ours, _fields(PROC / "vmstat").get("oom_kill")


def cgroups(controller: str) -> Iterator[tuple[int, Path]]:
    """Yield version and folder of the groups that limit this process, inner ones first.

    All groups of version 2 are yielded, as each may have any controller.
    """
    for line in _read(PROC / "self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if not names:
            yield from _around(2, CGROUPS, path)
            yield from _around(2, CGROUPS / "unified", path)
        elif controller in names.split(","):
            # Mounted by all of its names, with a link for each, or without.
            yield from _around(1, CGROUPS / controller, path)
            if names != controller:
                yield from _around(1, CGROUPS / names, path)


def _around(version: int, root: Path, path: str) -> Iterator[tuple[int, Path]]:
    """Yield a group and those around it, up to the root."""
    # In a container the path may be one of the host, and nothing is seen of it but the
    # root: a folder that is not there has no limit.
    parts = path.strip("/").split("/")
    for n in range(len(parts), 0, -1) if parts[0] else ():
        yield version, root.joinpath(*parts[:n])
    yield version, root


def _memory_cgroups() -> Iterator[MemoryLimit]:
    for version, folder in cgroups("memory"):
        if version == 2:
            total, used = _number(folder / "memory.max"), folder / "memory.current"
            cache = ["inactive_file", "active_file", "slab_reclaimable"]
        else:
            total = _number(folder / "memory.limit_in_bytes")
            used = folder / "memory.usage_in_bytes"
            cache = ["total_inactive_file", "total_active_file"]
        if total is not None and total < _UNLIMITED:
            stat = _fields(folder / "memory.stat")
            taken = (_number(used) or 0) - sum(stat.get(name, 0) for name in cache)
            yield MemoryLimit(folder, total, max(0, total - taken))


def _read(path: Path) -> str:
    """Return a file's text, or "" where the system has no such file."""
    try:
        with open(path, "rb", buffering=0) as file:  # a third of the time of read_text
            return file.read().decode()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    """Return the number that a file has; None if there is none, as for "max"."""
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _fields(path: Path) -> dict[str, int]:
    """Return the numbers of a file of names and numbers."""
    rows = (line.split() for line in _read(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}
