"""System calls that are forbidden: by which rule, and what synk needs them for.

Old versions of Docker, gVisor, and the sandboxes of batch systems forbid calls that
their authors did not know, by an error that looks like one of rights (EPERM) or like an
old kernel (ENOSYS).
"""

from __future__ import annotations

import contextlib
import errno
import platform
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .errors import SynkError

ERRORS = errno.EPERM, errno.ENOSYS
"""What a call fails with that is forbidden."""

USES = {
    "memfd_create": "memory is made that ranks share",
    "fallocate": "memory is reserved that ranks share",
    "pidfd_open": "it is seen that a rank has died",
    "sched_getaffinity": "it is asked which cores may be used",
    "sched_setaffinity": "ranks are pinned to cores",
}

_STATUS = Path("/proc/self/status")


@contextlib.contextmanager
def in_words(call: str) -> Iterator[None]:
    """Have a call that is forbidden in a ``with`` block be an error of synk's."""
    try:
        yield
    except OSError as error:
        if error.errno not in ERRORS:
            raise
        raise SynkError(sentence(call, error)) from error


def is_forbidden(call: Callable[..., object], *args: Any) -> bool:
    """Try a call; tell whether it is forbidden."""
    try:
        call(*args)
    except OSError as error:
        return error.errno in ERRORS
    return False


def sentence(call: str, error: OSError) -> str:
    """Say that a call is forbidden, what it is for, and what forbids it."""
    number = error.errno or 0
    fails = f"{errno.errorcode.get(number, number)}, {error.strerror}"
    return (
        f"the system call {call}, by which {USES[call]}, is forbidden ({fails}):"
        f" {_by_what(number)}"
    )


def _by_what(number: int) -> str:
    if _has_filter():
        return (
            "a seccomp filter does it, which a container, a batch system or a sandbox"
            " has set; it must allow the call (docker run --security-opt seccomp=...)"
        )
    if number == errno.ENOSYS:
        return f"this kernel, {platform.release()}, does not have it"
    return "a sandbox or a security module (AppArmor, SELinux) must allow it"


def _has_filter() -> bool:
    try:
        text = _STATUS.read_text()
    except OSError:
        return False
    return any(line.split() == ["Seccomp:", "2"] for line in text.splitlines())
