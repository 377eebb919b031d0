"""What synk opens: owned by an object from the first moment on, and no standard stream.

An interrupt can come after any call that Python code makes: also between a call that
opens something and the noting of its descriptor, which would stay open. Holding signals
back is not enough: another thread may take one, and its handler runs here all the same.
So the object that owns a descriptor is made by `map`, which goes on in C.

A script may run with descriptor 0, 1 or 2 closed, as daemons do, and the shell by
``>&-``. What is opened then gets that number, and the next ``print``, or a message of a
C library, is written over it: over data, where it is shared memory. So every descriptor
that is kept, or that memory lies behind, comes from here: at 3 or above.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import itertools
import os
from collections.abc import Callable, Iterator
from io import FileIO
from typing import Any, TypeVar

from .refusals import forbidden_in_words

Mapped = TypeVar("Mapped")

FIRST = 3
"""The first descriptor that is no standard stream's."""


def opened(opener: Callable[..., int], *args: Any, mode: str = "r") -> FileIO:
    """Return what a call opens; `opener` is compiled code that returns a descriptor."""
    (file,) = map(FileIO, map(opener, *((arg,) for arg in args)), (mode,))
    return _above_streams(file)


def open_pipe() -> tuple[FileIO, FileIO]:
    """Return the ends of a new pipe: where it is read and where it is written to."""
    ends = itertools.chain.from_iterable(itertools.starmap(os.pipe, [()]))
    reads, writes = map(FileIO, ends, "rw")
    return _above_streams(reads), _above_streams(writes)


def open_pidfd(pid: int) -> FileIO:
    """Return a descriptor that can be read from when a process has ended."""
    # A Python built with old kernel headers does not have the call. Conda's is such a
    # one: it is made for kernels that lack it, and runs on others.
    opener = getattr(os, "pidfd_open", None)
    with forbidden_in_words("pidfd_open"):
        if opener is not None:
            return opened(opener, pid)
        return opened(_by_libc, "syscall", _SYS_PIDFD_OPEN, pid, 0)


_SYS_PIDFD_OPEN = 434
"""The same on all architectures but Alpha."""


def open_again(pid: int | str, fd: int) -> FileIO:
    """Open what a descriptor of a process is for, at a position of its own."""
    path, flags = f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC
    return opened(os.open, path, flags, mode="r+")


def new_memory(name: str) -> FileIO:
    """Return new, empty memory as a file, which programs that are run do not get."""
    # `name` is shown in ``/proc/<pid>/fd`` and ``maps``; nobody can open it by that.
    with forbidden_in_words("memfd_create"):
        try:
            file = opened(_memfd_create, name, _CLOEXEC | _NOEXEC_SEAL, mode="r+")
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            file = opened(_memfd_create, name, _CLOEXEC, mode="r+")
    try:
        # The kernel lets everybody read and write, as nobody else can come to have a
        # descriptor. We do not: of two locks one may fail.
        os.fchmod(file.fileno(), 0o600)
    except BaseException:
        file.close()
        raise
    return file


_CLOEXEC = 0x1
_NOEXEC_SEAL = 0x8
"""The flags of ``memfd_create(2)``. The second says that no program is to be run from
the memory; kernels before 6.3 do not know it, later ones may insist on it."""


def _by_libc(function: str, *args: Any) -> int:
    """Call a function that opens something, which this Python does not have."""
    fd = getattr(ctypes.CDLL(None, use_errno=True), function)(*args)
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")
    return fd


def _memfd_by_libc(name: str, flags: int) -> int:
    return _by_libc("memfd_create", name.encode(), flags)


# Looked up here, once: tests have it fail as on older kernels.
_memfd_create = getattr(os, "memfd_create", _memfd_by_libc)


def _above_streams(file: FileIO) -> FileIO:
    """Return a file that is no standard stream: the same one, or its duplicate."""
    if file.fileno() >= FIRST:
        return file
    number, to = file.fileno(), fcntl.F_DUPFD_CLOEXEC
    numbers = map(fcntl.fcntl, (number,), (to,), (FIRST,))
    (moved,) = map(FileIO, numbers, (file.mode,))
    file.close()
    return moved


@contextlib.contextmanager
def streams_taken() -> Iterator[None]:
    """Have no standard stream's number be free in a ``with`` block that forks.

    Some libraries open pipes in a child before any code of ours runs there: Arrow does
    so once it has read CSV.
    """
    with contextlib.ExitStack() as taken:
        while not all(map(_is_for, range(FIRST))):
            taken.enter_context(FileIO(os.devnull))
        yield


def mapped(make: Callable[[int, int], Mapped], fd: int, nbytes: int) -> Mapped:
    """Return what `make` maps of a file: the descriptor that it keeps is no stream's.

    Python's `mmap` makes a duplicate of the descriptor, with the lowest number that is
    free, and tells nobody which. So a mapping whose duplicate has become a stream is
    kept until there is one that found no stream's number free.
    """
    closed, missed = [n for n in range(FIRST) if not _is_for(n)], []
    while True:
        made = make(fd, nbytes)
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
