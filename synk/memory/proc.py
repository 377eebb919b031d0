"""Processes as ``/proc`` and the kernel know them: numbers, start times, privileges.

In a PID namespace (``unshare --pid``, without ``--mount-proc``) ``/proc`` may still be
that of the namespace around it. A process is there, by another number than `os.getpid`
returns, and the number that it knows is another process's.
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
    """Tell whether this process has the same number in ``/proc`` as for itself."""
    return number() == os.getpid()


def threads() -> list[int]:
    """Return the threads of this process, by their numbers for itself."""
    names = os.listdir("/proc/self/task")
    if knows_us():
        return list(map(int, names))
    found = []
    for name in names:
        with contextlib.suppress(OSError):  # it has ended
            with open(f"/proc/self/task/{name}/status") as status:
                # From the namespace of /proc to its own.
                lines = [line for line in status if line.startswith("NSpid:")]
            found += [int(line.split()[-1]) for line in lines]
    return found


def stat(pid: int) -> list[str]:
    """Return what proc(5) says of a process, from its state on; [] if it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            # The name, in brackets, may hold anything.
            return file.read().rpartition(")")[2].split()
    except OSError:
        return []


def start_time(pid: int) -> int:
    """Return when a process was started, in clock ticks since boot; 0 if it is gone."""
    fields = stat(pid)
    return int(fields[19]) if fields else 0


def pid_namespace() -> int:
    """Return which processes the process ids of this one count."""
    return os.stat("/proc/self/ns/pid").st_ino


def user() -> tuple:
    """Return whose process this is: its user and group ids, and its other groups."""
    return os.getresuid(), os.getresgid(), sorted(os.getgroups())


def let_ranks_in() -> None:
    """Let processes of this user open descriptors of this one and of its children."""
    # They may anyway, unless it has changed its user id by ``os.setuid``. It may then
    # know what only its former user is to know, and so the kernel closes it to the user
    # that it has become. But ranks are that user's, and open each other's memory. So it
    # is opened, to a debugger of the user's too, and the kernel writes core dumps of
    # it.
    libc = ctypes.CDLL(None)
    if libc.prctl(_PR_GET_DUMPABLE, 0, 0, 0, 0) != 1:
        libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
