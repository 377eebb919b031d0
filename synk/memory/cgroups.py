"""The control groups of this process, of both versions, and those around them.

What limits one of them limits all that is within: every level up counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")


class Group(NamedTuple):
    """A control group: of which version, 1 or 2, and its folder."""

    version: int
    folder: Path


def groups(controller: str) -> Iterator[Group]:
    """Go through the groups of this process that a controller limits, inner ones first.

    Parameters
    ----------
    controller : str
        As in "memory" or "cpu". Of version 2 all groups are returned, as each may have
        any controller.
    """
    for line in read(PROC / "self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if not names:
            yield from _around(2, CGROUPS, path)
            yield from _around(2, CGROUPS / "unified", path)
        elif controller in names.split(","):
            # Mounted by all of its names, with a link for each, or without.
            yield from _around(1, CGROUPS / controller, path)
            if names != controller:
                yield from _around(1, CGROUPS / names, path)


def _around(version: int, root: Path, path: str) -> Iterator[Group]:
    """Go through a group and those around it, up to the root.

    In a container the path may be one of the host, and nothing is seen of it but the
    root: a folder that is not there has no limit.
    """
    parts = path.strip("/").split("/")
    for n in range(len(parts), 0, -1) if parts[0] else ():
        yield Group(version, root.joinpath(*parts[:n]))
    yield Group(version, root)


def read(path: Path) -> str:
    """Return a file's text, or "" where the system has no such file."""
    try:
        with open(path, "rb", buffering=0) as file:  # a third of the time of read_text
            return file.read().decode()
    except OSError:
        return ""


def number(path: Path) -> int | None:
    """Return the number that a file has; None if there is none, as for "max"."""
    text = read(path).strip()
    return int(text) if text.isdigit() else None
