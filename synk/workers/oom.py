"""Whether the kernel's out-of-memory killer has struck: all it leaves is a count."""

from __future__ import annotations

from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
PROC = Path("/proc")


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
    for line in _read(PROC / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            folder, name = CGROUPS, "memory.events"
        elif "memory" in controllers.split(","):
            folder, name = CGROUPS / "memory", "memory.oom_control"
        else:
            continue
        # In a container the path may be the host's, and the root the container's own.
        for place in (folder / path.lstrip("/"), folder):
            count = _count(place / name)
            if count is not None:
                return count
    return None


def _of_machine() -> int | None:
    return _count(PROC / "vmstat")


def _count(path: Path) -> int | None:
    """Return the number behind ``oom_kill`` in a file of names and numbers."""
    for line in _read(path).splitlines():
        name, _, number = line.partition(" ")
        if name == "oom_kill":
            return int(number)
    return None


def _read(path: Path) -> str:
    """Return a file's text, or "" where the system has no such file."""
    try:
        return path.read_text()
    except OSError:
        return ""
