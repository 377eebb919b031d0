"""What a system call that failed for want of something means, and what to do."""

from __future__ import annotations

import errno
import os
import resource


def explained(what: str, number: int) -> str:
    """Return a message that names the limit which an errno speaks of.

    Parameters
    ----------
    what : str
        What could not be done.
    number : int
        The errno.
    """
    why = {
        errno.EAGAIN: (
            "this user, or a container, may not have more processes and threads"
            f" (ulimit -u is {_soft(resource.RLIMIT_NPROC)}, and a container has"
            " pids.max): raise the limit, or fork fewer ranks"
        ),
        errno.EMFILE: (
            "this process may not have more files open"
            f" (ulimit -n is {_soft(resource.RLIMIT_NOFILE)}): raise the limit"
        ),
        errno.ENFILE: "the machine has too many files open (sysctl fs.file-max)",
        errno.ENOMEM: "there is not enough memory for it: fork fewer ranks",
    }.get(number)
    return f"{what}: {os.strerror(number)}" + (f"; {why}" if why else "")


def _soft(limit: int) -> str:
    soft, _ = resource.getrlimit(limit)
    return "unlimited" if soft == resource.RLIM_INFINITY else str(soft)


LIMITS = (errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""The numbers of errors that speak of a limit."""
