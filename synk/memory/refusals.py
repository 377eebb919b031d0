"""Messages for failed system calls: a limit was met, or the call is forbidden.

Old versions of Docker, gVisor, and sandboxes of batch systems forbid calls that are
newer than they are. The error looks like a lack of rights (EPERM) or like an old kernel
(ENOSYS).
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import resource
from collections.abc import Iterator
from pathlib import Path

from ..errors import SynkError

FORBIDDEN = errno.EPERM, errno.ENOSYS
"""Errors of a forbidden call."""

TOO_MANY_FILES = errno.EMFILE, errno.ENFILE

LIMITS = errno.EAGAIN, *TOO_MANY_FILES, errno.ENOMEM
"""Errors of a call that starts a process, if a limit is met."""

USES = {
    "memfd_create": "memory is made that ranks share",
    "fallocate": "memory is reserved that ranks share",
    "pidfd_open": "it is seen that a rank has died",
    "sched_getaffinity": "it is asked which cores may be used",
    "sched_setaffinity": "ranks are pinned to cores",
}


# -- limits


def explain_limit(error: OSError) -> str | None:
    """Return a text on the limit behind an error, and what to do; None if no limit."""
    if error.errno == errno.EMFILE:
        return (
            f"too many open files: ulimit -n is {_value(resource.RLIMIT_NOFILE)}. Each"
            " synk.Data takes two, and so do variables that are reduced. Allow more"
            " before the script starts, or with resource.setrlimit before synk.fork()"
        )
    if error.errno == errno.ENFILE:
        return "too many open files on this machine: sysctl fs.file-max allows more"
    if error.errno == errno.ENOMEM:
        return (
            "the process cannot map so much: ulimit -v is"
            f" {_value(resource.RLIMIT_AS)}, and sysctl vm.max_map_count limits in how"
            " many pieces"
        )
    if error.errno == errno.EFBIG:
        return f"ulimit -f is {_value(resource.RLIMIT_FSIZE)}: allow larger files"
    return None


def not_started(what: str, number: int) -> str:
    """Return the message that `what` failed with errno `number`, and why."""
    why: str | None
    if number == errno.EAGAIN:
        why = (
            "this user, or a container, may not have more processes and threads"
            f" (ulimit -u is {_value(resource.RLIMIT_NPROC)}, and a container has"
            " pids.max): raise the limit, or fork fewer ranks"
        )
    elif number == errno.ENOMEM:
        why = "there is not enough memory for it: fork fewer ranks"
    else:
        why = explain_limit(OSError(number, ""))
    return f"{what}: {os.strerror(number)}" + (f"; {why}" if why else "")


@contextlib.contextmanager
def limits_explained() -> Iterator[None]:
    """Raise SynkError, with an explanation, if a limit is met in a ``with`` block."""
    try:
        yield
    except OSError as error:
        text = explain_limit(error)
        if text is None:
            raise
        raise SynkError(text) from error


def _value(limit: int) -> str:
    soft, _ = resource.getrlimit(limit)
    return "unlimited" if soft == resource.RLIM_INFINITY else f"{soft:,}"


# -- calls that are forbidden


@contextlib.contextmanager
def forbidden_explained(call: str) -> Iterator[None]:
    """Raise SynkError, with an explanation, if `call` is forbidden in a block."""
    try:
        yield
    except OSError as error:
        if error.errno not in FORBIDDEN:
            raise
        raise SynkError(why_forbidden(call, error)) from error


def why_forbidden(call: str, error: OSError) -> str:
    """Return the message that a call is forbidden, its purpose, and what forbids it."""
    number = error.errno or 0
    if _has_seccomp_filter():
        by_what = (
            "a seccomp filter does it, which a container, a batch system or a sandbox"
            " has set; it must allow the call (docker run --security-opt seccomp=...)"
        )
    elif number == errno.ENOSYS:
        by_what = f"this kernel, {platform.release()}, does not have it"
    else:
        by_what = "a sandbox or a security module (AppArmor, SELinux) must allow it"
    fails = f"{errno.errorcode.get(number, number)}, {error.strerror}"
    return (
        f"the system call {call}, by which {USES[call]}, is forbidden ({fails}):"
        f" {by_what}"
    )


def _has_seccomp_filter() -> bool:
    try:
        text = Path("/proc/self/status").read_text()
    except OSError:
        return False
    return any(line.split() == ["Seccomp:", "2"] for line in text.splitlines())
