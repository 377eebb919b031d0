"""Mapped memory: in huge pages, known to devices, and there before it is read.

Small pages, of 4 KiB and not 2 MiB, make a core take 1.2 to 2 times as long to read
rows, and far longer to write to them first. The kernel's settings leave shared memory
in small pages nearly everywhere (``transparent_hugepage/shmem_enabled`` is "never").
But a process may ask for a range to be collapsed into huge pages, from Linux 6.1 on,
whatever is set, save for "deny", where it is mapped at an address that fits.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from mmap import PAGESIZE
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from ..errors import SynkError
from .descriptors import mapped, new_memory

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


def _huge_page_size() -> int:
    """Return the bytes of a huge page; 0 if the kernel has none."""
    try:
        return int(_SETTING.with_name("hpage_pmd_size").read_text())
    except (OSError, ValueError):
        return 0


HUGE = _huge_page_size()


class Mapping(mmap.mmap):
    """A mapping, of a segment or (``Mapping(-1, nbytes)``) of memory of its own."""

    asked_by: Any = None
    """Who has last tried to pin it for a device."""

    # Called when nobody has the mapping any more, while its memory is still there. (A
    # weak reference would be told after that.)
    before_unmapping: Callable[[], object] | None = None

    pages_read: bytearray | None = None
    """For each page whether this process has read it; None if it has all."""

    start: int  # where it lies, if there are such pages

    def __del__(self) -> None:
        if self.before_unmapping is not None:
            self.before_unmapping()

    def written_elsewhere(self) -> None:
        """Take note that this process has none of the pages yet, but others do."""
        self.start = address(np.frombuffer(self, np.uint8))
        self.pages_read = bytearray(-(-len(self) // PAGESIZE))


def bring(array: np.ndarray) -> None:
    """Have the pages of a C-contiguous array mapped before machine code reads it."""
    # A process that has a segment finds each page of it when it reads there first. But
    # a vector instruction with a mask, which compilers make of ``switch`` and
    # ``where``, reads nothing where its mask is off. On a page that the process has not
    # read yet it then takes hundreds of cycles, every time, as no read ever comes that
    # would bring the page. (A term that is looked at for y = 0 alone, among rows where
    # it is not 0, made a rank take twice its time.) Who wrote the values has them.
    mapping = mapping_of(array)
    if mapping is None or mapping.pages_read is None:
        return
    start = address(array) - mapping.start
    stop = start + array.nbytes
    first, last = start // PAGESIZE, -(-stop // PAGESIZE)
    if mapping.pages_read.find(0, first, last) >= 0:
        np.frombuffer(mapping, np.uint8)[first * PAGESIZE : stop : PAGESIZE].max()
        mapping.pages_read[first:last] = bytes([1]) * (last - first)
        if 0 not in mapping.pages_read:
            mapping.pages_read = None


def address(array: np.ndarray) -> int:
    """Return where an array's first element lies."""
    return array.__array_interface__["data"][0]


def mapping_of(array: np.ndarray) -> Mapping | None:
    """Return the mapping that an array lies in, if it is a view of one."""
    base = array.base
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, Mapping) else None


# -- huge pages


def huge_setting() -> str | None:
    """Return what is set for shared memory: the word in brackets; None without any."""
    try:
        words = _SETTING.read_text().split()
    except OSError:
        return None
    return next((word.strip("[]") for word in words if word.startswith("[")), None)


def are_huge_given() -> bool:
    """Tell whether the kernel makes a huge page for this process now."""
    if not HUGE:
        return False
    try:
        with new_memory("synk-huge-page") as file:
            fd = file.fileno()
            os.ftruncate(fd, file_size(HUGE))
            return fill(fd, map_file(fd, HUGE), 0, HUGE)
    except (OSError, SynkError):  # there is no memory, or a call is forbidden
        return False


def file_size(nbytes: int) -> int:
    """Return how long the file of a segment is: its end is for `map_file` alone."""
    return nbytes + HUGE if nbytes >= HUGE else nbytes  # with no memory behind that


def map_file(fd: int, nbytes: int) -> Mapping:
    """Map the first bytes of a file where they can be huge pages, if they fill one."""
    # The file has `file_size(nbytes)` or more, and the mapping may be longer by less
    # than a huge page.
    made = mapped(Mapping, fd, nbytes)
    if not HUGE or nbytes < HUGE or nbytes + HUGE > os.fstat(fd).st_size:
        return made
    missed = []  # kept meanwhile: they fill the gaps that do not do
    for _ in range(TRIES):
        start = address(np.frombuffer(made, np.uint8))
        if start % HUGE == 0:
            break
        missed.append(made)
        # The kernel puts a mapping right below another: a longer one begins lower.
        made = mapped(Mapping, fd, nbytes + (start - nbytes) % HUGE)
    for mapping in missed:
        mapping.close()
    return made


def fill(fd: int, mapping: Mapping, start: int, stop: int) -> bool:
    """Have huge pages for bytes of a file that are not in memory; tell if all are huge.

    Where they cannot be, or it takes long, nothing is lost: what is missing is still to
    be reserved. Raises OSError if there is no memory.
    """
    if not HUGE:
        return False
    first, last = -(-start // HUGE) * HUGE, stop // HUGE * HUGE
    for begin in range(first, last, AT_ONCE):
        length = min(AT_ONCE, last - begin)
        since = perf_counter()
        for offset in range(begin, begin + length, HUGE):
            # The kernel makes no huge page where there is none at all.
            os.posix_fallocate(fd, offset, 1)
        try:
            mapping.madvise(_COLLAPSE, begin, length)
        except OSError:  # not known here, or set to "deny", or memory is in pieces
            return False
        if perf_counter() - since > SLOW * length:
            return False  # the kernel moves other pages about to make room
    return True
