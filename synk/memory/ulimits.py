"""Limits of a process, such as of its open files, in words when they are met."""

from __future__ import annotations

import contextlib
import errno
import resource
from collections.abc import Iterator

from ..errors import SynkError

TOO_MANY_FILES = errno.EMFILE, errno.ENFILE


def explain(error: OSError) -> str | None:
    """Say which limit has led to an error, what it is and what to do; None if none."""
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


@contextlib.contextmanager
def in_words() -> Iterator[None]:
    """Have a limit that is met in a ``with`` block be an error of synk's, in words."""
    try:
        yield
    except OSError as error:
        text = explain(error)
        if text is None:
            raise
        raise SynkError(text) from error


def _value(limit: int) -> str:
    soft, _ = resource.getrlimit(limit)
    return "unlimited" if soft == resource.RLIM_INFINITY else f"{soft:,}"
