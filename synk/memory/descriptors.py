"""Descriptors of synk's own, above those of the standard streams.

A script may run with descriptor 0, 1 or 2 closed, as daemons do, and the shell by
``>&-``. What is opened then gets that number, and the next ``print``, or a message of a
C library, is written over it: over data, where it is shared memory. So every descriptor
that is kept, or that memory lies behind, comes from here: at 3 or above.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from io import FileIO
from typing import Any, TypeVar

Mapped = TypeVar("Mapped")

FIRST = 3
"""The first descriptor that is no standard stream's."""


def opened(opener: Callable[..., int], *args: Any, mode: str = "r") -> FileIO:
    """Return what a call opens, as an object that owns it from the first moment on.

    An interrupt can come after any call that Python code makes: also between the call
    and the noting of its descriptor, which would stay open. `map` goes on in C.

    Parameters
    ----------
    opener : callable
        Of compiled code, which returns a descriptor.
    *args
        Its arguments.
    mode : str
        How the descriptor may be used, as for `io.FileIO`.
    """
    (file,) = map(FileIO, map(opener, *((arg,) for arg in args)), (mode,))
    return above_streams(file)


def above_streams(file: FileIO) -> FileIO:
    """Return a file that is no standard stream: the same one, or its duplicate."""
    if file.fileno() >= FIRST:
        return file
    number, to = file.fileno(), fcntl.F_DUPFD_CLOEXEC
    numbers = map(fcntl.fcntl, (number,), (to,), (FIRST,))
    (moved,) = map(FileIO, numbers, (file.mode,))
    file.close()
    return moved


def opened_for_life(opener: Callable[..., int], *args: Any) -> int:
    """Return the descriptor itself, where it is kept as long as the process lives."""
    fd = opener(*args)
    if fd >= FIRST:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST)
    finally:
        os.close(fd)


def mapped(make: Callable[[], Mapped], fd: int) -> Mapped:
    """Return a mapping of a file: the descriptor that it keeps is no stream's.

    Python's `mmap` makes a duplicate of the descriptor, with the lowest number that is
    free, and tells nobody which. So a mapping whose duplicate has become a stream is
    kept until there is one that found no stream's number free.

    Parameters
    ----------
    make : callable
        Maps the file.
    fd : int
        Its descriptor.
    """
    closed, missed = [n for n in range(FIRST) if not _is_for(n)], []
    while True:
        made = make()
        free = [n for n in closed if not _is_for(n, fd)]
        if len(free) == len(closed):
            return made
        missed.append(made)
        closed = free


def _is_for(number: int, other: int | None = None) -> bool:
    """Tell whether a descriptor is open, and for the same file as another one."""
    try:
        found = os.fstat(number)
    except OSError:
        return False
    return other is None or os.path.samestat(found, os.fstat(other))
