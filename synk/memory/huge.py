"""Huge pages for shared memory: 2 MiB in place of 4 KiB, where the kernel gives them.

Small pages make a core take 1.2 to 2 times as long to read rows, and far longer to
write to them first. The kernel's settings leave shared memory in small pages nearly
everywhere (``transparent_hugepage/shmem_enabled`` is "never"). But a process may ask
for a range to be collapsed into huge pages, from Linux 6.1 on, whatever is set, save
for "deny". It wants memory that is mapped at an address that fits.
"""

from __future__ import annotations

import os
from pathlib import Path
from time import perf_counter

import numpy as np

from ..errors import SynkError
from . import descriptors, memfd
from .mapping import Mapping, address

_SETTING = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
_COLLAPSE = 25
"""``MADV_COLLAPSE`` of ``madvise(2)``, which Python has no name for."""

AT_ONCE = 1 << 25
"""Bytes for which the kernel is asked in one go; it cannot be interrupted meanwhile."""

TRIES = 32
"""Mappings after which the next is taken wherever it lies: each fills a gap between
others, and a process has few as large as a segment that has huge pages."""

SLOW = 8e-9
"""Seconds a byte from which on it is not asked for more. Without huge pages to reserve
memory and to write to it first takes 1e-9 to 2e-9."""


def _size() -> int:
    """Return the bytes of a huge page; 0 if the kernel has none."""
    try:
        return int(_SETTING.with_name("hpage_pmd_size").read_text())
    except (OSError, ValueError):
        return 0


SIZE = _size()


def setting() -> str | None:
    """Return what is set for shared memory: the word in brackets; None without any."""
    try:
        words = _SETTING.read_text().split()
    except OSError:
        return None
    return next((word.strip("[]") for word in words if word.startswith("[")), None)


def are_given() -> bool:
    """Tell whether the kernel makes a huge page for this process now."""
    if not SIZE:
        return False
    try:
        with memfd.create("synk-huge-page") as file:
            os.ftruncate(file.fileno(), file_size(SIZE))
            return fill(file.fileno(), mapped(file.fileno(), SIZE), 0, SIZE)
    except (OSError, SynkError):  # there is no memory, or a call is forbidden
        return False


def file_size(nbytes: int) -> int:
    """Return how long the file of a segment is: its end is for `mapped` alone.

    No memory is behind that.
    """
    return nbytes + SIZE if nbytes >= SIZE else nbytes


def mapped(fd: int, nbytes: int) -> Mapping:
    """Map the first bytes of a file where they can be huge pages, if they fill one.

    Parameters
    ----------
    fd : int
        Of a file of `file_size(nbytes)` or more.
    nbytes : int
        The mapping may be longer by less than a huge page.
    """
    made = _mapped(fd, nbytes)
    if not SIZE or nbytes < SIZE or nbytes + SIZE > os.fstat(fd).st_size:
        return made
    missed = []  # kept meanwhile: they fill the gaps that do not do
    for _ in range(TRIES):
        start = address(np.frombuffer(made, np.uint8))
        if start % SIZE == 0:
            break
        missed.append(made)
        # The kernel puts a mapping right below another: a longer one begins lower.
        made = _mapped(fd, nbytes + (start - nbytes) % SIZE)
    for mapping in missed:
        mapping.close()
    return made


def _mapped(fd: int, nbytes: int) -> Mapping:
    return descriptors.mapped(lambda: Mapping(fd, nbytes), fd)


def fill(fd: int, mapping: Mapping, start: int, stop: int) -> bool:
    """Have huge pages for bytes of a file that are not in memory, where that can be.

    Where it cannot, or takes long, nothing is lost: what is missing is still to be
    reserved.

    Returns
    -------
    bool
        Whether all of them are there that the bytes fill.

    Raises
    ------
    OSError
        If there is no memory.
    """
    if not SIZE:
        return False
    first, last = -(-start // SIZE) * SIZE, stop // SIZE * SIZE
    for begin in range(first, last, AT_ONCE):
        length = min(AT_ONCE, last - begin)
        since = perf_counter()
        for offset in range(begin, begin + length, SIZE):
            # The kernel makes no huge page where there is none at all.
            os.posix_fallocate(fd, offset, 1)
        try:
            mapping.madvise(_COLLAPSE, begin, length)
        except OSError:
            return (
                False  # it is not known here, or set to "deny", or memory is in pieces
            )
        if perf_counter() - since > SLOW * length:
            return False  # the kernel moves other pages about to make room
    return True
