"""Limits of memory and cores: the machine's, and those of control groups (cgroups).

A limit of a control group holds for all groups within it, so all ancestors count. Both
versions of control groups are read, as a machine may have either, or both at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")

_UNLIMITED = 1 << 60
"""Bytes. Without a limit, version 1 has a number above this."""


class MemoryLimit(NamedTuple):
    """A limit of memory, of a control group or of the machine (None), in bytes."""

    cgroup: Path | None  # its folder
    total: int
    free: int

    def __str__(self) -> str:
        whose = "the machine's" if self.cgroup is None else f"cgroup {self.cgroup}'s"
        return f"{whose} {self.total:,}"


def memory_limits() -> list[MemoryLimit]:
    """Return all memory limits of this process: the machine's, then its cgroups'."""
    # The kernel's cache of files counts as free, as the kernel drops it first. Swap
    # does not count. A limit that cannot be read is left out.
    found: list[MemoryLimit] = []
    machine = _fields(PROC / "meminfo")
    if "MemAvailable:" in machine:
        total, free = machine["MemTotal:"], machine["MemAvailable:"]
        found.append(MemoryLimit(None, 1024 * total, 1024 * free))
    return [*found, *_memory_cgroups()]


def tightest() -> MemoryLimit | None:
    """Return the limit with the least free memory; None if none can be read."""
    # Beyond a limit the kernel does not refuse memory, but kills processes. So code
    # that reserves memory looks here first.
    return min(memory_limits(), key=lambda limit: limit.free, default=None)


def cpu_quota() -> float | None:
    """Return the least CPU quota of all control groups, in cores; None without any."""
    quotas = []
    for version, folder in cgroups("cpu"):
        if version == 2:
            numbers = _read(folder / "cpu.max").split()
        else:
            files = "cpu.cfs_quota_us", "cpu.cfs_period_us"
            numbers = [_read(folder / name).strip() for name in files]
        # "max" and -1 mean no quota; an unreadable file is "".
        if len(numbers) == 2 and all(map(str.isdigit, numbers)):
            quota, period = map(int, numbers)
            if quota and period:
                quotas.append(quota / period)
    return min(quotas, default=None)


class OomKills:
    """Counts kills by the kernel's out-of-memory killer, from the making of this on.

    The killer leaves only counts. That of this process's control group, if it has one,
    counts our own processes. The machine's may count anybody's.
    """

    def __init__(self) -> None:
        self._before = self._counts()

    def any(self) -> bool | None:
        """Return whether one of our processes was killed; None if it is not known."""
        (ours, machine), (ours_now, machine_now) = self._before, self._counts()
        if ours is not None and ours_now is not None:
            return ours_now > ours
        if machine is not None and machine == machine_now:
            return False
        return None

    def _counts(self) -> tuple[int | None, int | None]:
        """Return the counts of our control group and of the machine; None if none."""
        ours = None
        for version, folder in cgroups("memory"):
            name = "memory.events" if version == 2 else "memory.oom_control"
            ours = _fields(folder / name).get("oom_kill")
            if ours is not None:
                break
        return ours, _fields(PROC / "vmstat").get("oom_kill")


def cgroups(controller: str) -> Iterator[tuple[int, Path]]:
    """Yield version and folder of the groups that limit this process, innermost first.

    Version 1 has separate groups for the `controller`; of version 2 all are yielded.
    """
    for line in _read(PROC / "self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if not names:
            yield from _with_ancestors(2, CGROUPS, path)
            yield from _with_ancestors(2, CGROUPS / "unified", path)
        elif controller in names.split(","):
            # It is mounted under all of its names joined, and may have a link for each.
            yield from _with_ancestors(1, CGROUPS / controller, path)
            if names != controller:
                yield from _with_ancestors(1, CGROUPS / names, path)


def _with_ancestors(version: int, root: Path, path: str) -> Iterator[tuple[int, Path]]:
    """Yield a group and its ancestors, up to the root."""
    # In a container the path may be the host's, of which only the root is visible. A
    # folder that does not exist has no limit.
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
    """Return a file's text, or "" if it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:  # a third of the time of read_text
            return file.read().decode()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    """Return the number in a file; None if there is none, as in "max"."""
    text = _read(path).strip()
    return int(text) if text.isdigit() else None


def _fields(path: Path) -> dict[str, int]:
    """Return the numbers in a file that has a name and a number in each line."""
    rows = (line.split() for line in _read(path).splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1 and row[1].isdigit()}
