"""Whether the kernel's out-of-memory killer has struck: all it leaves is a count."""

from __future__ import annotations

from pathlib import Path

from ..memory import cgroups


class Kills:
    """The kills of the out-of-memory killer from here on.

    Those of this process's control group are counted where there is such a count. That
    of the whole machine says less: it may have been anybody's process.
    """

    def __init__(self) -> None:
        self._before = _of_cgroup(), _of_machine()

    def any(self) -> bool | None:
        """Tell whether there was any among our processes; None if that is not known."""
        ours, all_of_them = self._before
        now = _of_cgroup()
        if ours is not None and now is not None:
            return now > ours
        if all_of_them is not None and all_of_them == _of_machine():
            return False
        return None


def _of_cgroup() -> int | None:
    """Return the count of our control group, of version 2 or 1."""
    for version, folder in cgroups.groups("memory"):
        name = "memory.events" if version == 2 else "memory.oom_control"
        count = _count(folder / name)
        if count is not None:
            return count
    return None


def _of_machine() -> int | None:
    return _count(cgroups.PROC / "vmstat")


def _count(path: Path) -> int | None:
    """Return the number behind ``oom_kill`` in a file of names and numbers."""
    for line in cgroups.read(path).splitlines():
        name, _, number = line.partition(" ")
        if name == "oom_kill":
            return int(number)
    return None
