"""Opens descriptors: each is owned by an object at once, and is no standard stream's.

An interrupt can come after any call that Python code makes, also between a call that
opens a descriptor and the next line, which stores it; it would then stay open. To block
signals is not enough: another thread may take one, and the handler runs in the main
thread all the same. So `map`, which is C code, makes the object that owns a descriptor.

A script may run with descriptor 0, 1 or 2 closed, as daemons do, or by the shell's
``>&-``. The next descriptor then gets this number, and ``print``, or a message of a C
library, writes to it: over data, if it is shared memory. So each descriptor that is
kept, or is of mapped memory, is opened here, and is 3 or more.
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

from .refusals import forbidden_explained

Mapped = TypeVar("Mapped")

FIRST = 3
"""The first number that is not a standard stream's."""


def opened(opener: Callable[..., int], *args: Any, mode: str = "r") -> FileIO:
    """Return ``opener(*args)`` as a file; `opener`, in C, returns a descriptor."""
    (file,) = map(FileIO, map(opener, *((arg,) for arg in args)), (mode,))
    return _above_streams(file)


def open_pipe() -> tuple[FileIO, FileIO]:
    """Return the ends of a new pipe: for reading, and for writing."""
    ends = itertools.chain.from_iterable(itertools.starmap(os.pipe, [()]))
    reads, writes = map(FileIO, ends, "rw")
    return _above_streams(reads), _above_streams(writes)


def open_pidfd(pid: int) -> FileIO:
    """Return a pidfd, which can be polled for the end of a process."""
    # A Python that was built with old kernel headers, as Conda's, has no function for
    # it, even if the kernel has the call.
    opener = getattr(os, "pidfd_open", None)
    with forbidden_explained("pidfd_open"):
        if opener is not None:
            return opened(opener, pid)
        return opened(_by_libc, "syscall", _SYS_PIDFD_OPEN, pid, 0)


_SYS_PIDFD_OPEN = 434
"""The number on all architectures but Alpha."""


def open_again(pid: int | str, fd: int) -> FileIO:
    """Open the file of a process's descriptor, with a file position of its own."""
    path, flags = f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC
    return opened(os.open, path, flags, mode="r+")


def new_memory(name: str) -> FileIO:
    """Return new, empty memory as a file, which other programs do not inherit."""
    # ``/proc/<pid>/fd`` and ``maps`` show `name`; it does not open the memory.
    with forbidden_explained("memfd_create"):
        try:
            file = opened(_memfd_create, name, _CLOEXEC | _NOEXEC_SEAL, mode="r+")
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            file = opened(_memfd_create, name, _CLOEXEC, mode="r+")
    try:
        # By default all users may read and write, as others cannot get a descriptor.
        # This is a second protection.
        os.fchmod(file.fileno(), 0o600)
    except BaseException:
        file.close()
        raise
    return file


_CLOEXEC = 0x1
_NOEXEC_SEAL = 0x8
"""Flags of ``memfd_create(2)``. The second forbids to run a program from the memory;
kernels before 6.3 do not know it, and later ones may require it."""


def _by_libc(function: str, *args: Any) -> int:
    """Call a function of the C library that returns a descriptor; raise OSError."""
    fd = getattr(ctypes.CDLL(None, use_errno=True), function)(*args)
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")
    return fd


def _memfd_by_libc(name: str, flags: int) -> int:
    return _by_libc("memfd_create", name.encode(), flags)


# Looked up once, here, so that tests can replace it by one that fails.
_memfd_create = getattr(os, "memfd_create", _memfd_by_libc)


def _above_streams(file: FileIO) -> FileIO:
    """Return the file, or a duplicate if its descriptor is a standard stream's."""
    if file.fileno() >= FIRST:
        return file
    number, to = file.fileno(), fcntl.F_DUPFD_CLOEXEC
    numbers = map(fcntl.fcntl, (number,), (to,), (FIRST,))
    (moved,) = map(FileIO, numbers, (file.mode,))
    file.close()
    return moved


@contextlib.contextmanager
def stream_numbers_taken() -> Iterator[None]:
    """Occupy the numbers of closed standard streams in a ``with`` block that forks.

    Some libraries open pipes in a child before code of synk runs there, as Arrow does
    once it has read CSV.
    """
    with contextlib.ExitStack() as taken:
        while not all(map(_is_open, range(FIRST))):
            taken.enter_context(FileIO(os.devnull))
        yield


def mapped(make: Callable[[int, int], Mapped], fd: int, nbytes: int) -> Mapped:
    """Return ``make(fd, nbytes)``, a mapping that has no standard stream's descriptor.

    Python's `mmap` duplicates the descriptor, to the lowest free number, and does not
    say which. So mappings whose duplicate has got a stream's number are kept open until
    one has got another number.
    """
    closed, missed = [n for n in range(FIRST) if not _is_open(n)], []
    while True:
        made = make(fd, nbytes)
        free = [n for n in closed if not _is_open(n, fd)]
        if len(free) == len(closed):
            return made
        missed.append(made)
        closed = free


def _is_open(number: int, other: int | None = None) -> bool:
    """Return whether a descriptor is open, and of the same file as `other` if given."""
    try:
        found = os.fstat(number)
    except OSError:
        return False
    return other is None or os.path.samestat(found, os.fstat(other))
