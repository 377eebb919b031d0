"""The numbers that processes have in ``/proc``: not always those that they know.

In a PID namespace (``unshare --pid``, without ``--mount-proc``) ``/proc`` may still be
that of the namespace around it. A process is there, by another number than `os.getpid`
returns, and the number that it knows is another process's.
"""

from __future__ import annotations

import os

from ..errors import SynkError


def number() -> int:
    """Return the number of this process in ``/proc``.

    Raises
    ------
    SynkError
        If it is not there.
    """
    try:
        return int(os.readlink("/proc/self"))
    except (OSError, ValueError) as error:
        raise SynkError(
            "this process is not in /proc, by which ranks open each other's memory: it"
            " is not mounted, or it is that of another PID namespace. Mount it there:"
            " `mount -t proc proc /proc`, or `unshare --mount-proc`"
        ) from error


def knows_us() -> bool:
    """Tell whether this process has the same number in ``/proc`` as for itself."""
    return number() == os.getpid()


def threads() -> list[int]:
    """Return the threads of this process, by their numbers for itself."""
    names = os.listdir("/proc/self/task")
    if knows_us():
        return list(map(int, names))
    found = (_own_number(name) for name in names)
    return [thread for thread in found if thread is not None]


def _own_number(name: str) -> int | None:
    """Return the number that a thread has for itself; None if it has ended."""
    try:
        with open(f"/proc/self/task/{name}/status") as status:
            for line in status:
                if line.startswith("NSpid:"):  # from the namespace of /proc to its own
                    return int(line.split()[-1])
    except OSError:
        pass
    return None
