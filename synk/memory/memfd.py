"""Memory behind a file descriptor, which has no name that it could be found by."""

from __future__ import annotations

import ctypes
import errno
import os
from io import FileIO

from ..forbidden import in_words
from .descriptors import opened

_CLOEXEC = 0x1
_NOEXEC_SEAL = 0x8
"""The flags of ``memfd_create(2)``. The second says that no program is to be run from
the memory; kernels before 6.3 do not know it, later ones may insist on it."""


def create(name: str) -> FileIO:
    """Return new, empty memory as a file, which programs that are run do not get.

    Parameters
    ----------
    name : str
        Shown in ``/proc/<pid>/fd`` and ``maps``; nobody can open the memory by it.

    Raises
    ------
    SynkError
        If a sandbox forbids it.
    OSError
    """
    with in_words("memfd_create"):
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


def _by_libc(name: str, flags: int) -> int:
    """``os.memfd_create``, which a Python built with an old C library does not have.

    Conda's is such a one.
    """
    fd = ctypes.CDLL(None, use_errno=True).memfd_create(name.encode(), flags)
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"memfd_create: {os.strerror(number)}")
    return fd


_memfd_create = getattr(os, "memfd_create", _by_libc)
