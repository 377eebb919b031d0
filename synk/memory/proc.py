"""Process ids, start times and privileges, from ``/proc`` and the kernel.

In a PID namespace (``unshare --pid``, without ``--mount-proc``) ``/proc`` may still be
that of the outer namespace. A process has another number there than `os.getpid`
returns, and that number is another process's in ``/proc``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os

from ..errors import SynkError

_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4


def number() -> int:
    """Return the number of this process in ``/proc``; raise SynkError without one."""
    try:
        return int(os.readlink("/proc/self"))
    except (OSError, ValueError) as error:
        raise SynkError(
            "this process is not in /proc, by which ranks open each other's memory: it"
            " is not mounted, or it is that of another PID namespace. Mount it there:"
            " `mount -t proc proc /proc`, or `unshare --mount-proc`"
        ) from error


def knows_us() -> bool:
    """Return whether this process's number in ``/proc`` is its `os.getpid`."""
    return number() == os.getpid()


def threads() -> list[int]:
    """Return the ids of this process's threads, in its own namespace."""
    names = os.listdir("/proc/self/task")
    if knows_us():
        return list(map(int, names))
    found = []
    for name in names:
        with contextlib.suppress(OSError):  # the thread has ended
            with open(f"/proc/self/task/{name}/status") as status:
                # Its ids from the namespace of /proc to its own.
                lines = [line for line in status if line.startswith("NSpid:")]
            found += [int(line.split()[-1]) for line in lines]
    return found


def stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/<pid>/stat`` from the state on; [] if it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            # The name before these, in brackets, may have any characters.
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def start_time(pid: int) -> int:
    """Return when a process was started, in clock ticks since boot; 0 if it is gone."""
    fields = stat(pid)
    return int(fields[19]) if fields else 0


def pid_namespace() -> int:
    """Return the number of this process's PID namespace."""
    return os.stat("/proc/self/ns/pid").st_ino


def user() -> tuple:
    """Return this process's user ids, group ids and supplementary groups."""
    return os.getresuid(), os.getresgid(), sorted(os.getgroups())


def let_ranks_in() -> None:
    """Let processes of this user open descriptors of this one and of its children."""
    # They may, unless this process has changed its user id by ``os.setuid``. The kernel
    # then protects it, as it may have secrets of its former user. But ranks run as the
    # new user, and open each other's memory. So this ends the protection, which also
    # allows the user's debuggers and core dumps.
    libc = ctypes.CDLL(None)
    if libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) != 1:
        libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
