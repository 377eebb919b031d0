"""Mappings of shared memory: in huge pages, with pages read ahead, pinned for devices.

With small pages (4 KiB, not 2 MiB) a core takes 1.2 to 2 times as long to read rows,
and far longer to write them the first time. On nearly all machines the kernel's setting
(``transparent_hugepage/shmem_enabled`` is "never") leaves shared memory in small pages.
But from Linux 6.1 on a process may ask the kernel to collapse a range into huge pages.
That works with all settings but "deny", if the range is mapped at a fitting address.
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
"""``MADV_COLLAPSE`` of ``madvise(2)``, for which Python has no name."""

AT_ONCE = 1 << 25
"""Bytes to collapse in one call, which cannot be interrupted."""

TRIES = 32
"""How often to map again for a fitting address. Each try fills a gap between mappings,
and a process has few gaps as large as a segment with huge pages."""

SLOW = 8e-9
"""Seconds a byte: if the kernel takes longer, it is not asked for more huge pages. In
small pages, to reserve memory and write to it the first time takes 1e-9 to 2e-9."""


def _huge_page_size() -> int:
    """Return the bytes of a huge page; 0 if the kernel does not support them."""
    try:
        return int(_SETTING.with_name("hpage_pmd_size").read_text())
    except (OSError, ValueError):
        return 0


HUGE = _huge_page_size()


class Mapping(mmap.mmap):
    """A mapping of a segment, or with ``Mapping(-1, nbytes)`` of private memory."""

    tried_by: Any = None
    """The `ToDevice` that has last tried to pin the mapping."""

    # Called when the mapping is deleted, while its memory is still mapped. (A weak
    # reference's callback would come later.)
    before_unmapping: Callable[[], object] | None = None

    pages_read: bytearray | None = None
    """For each page, whether this process has read it; None if all have been read."""

    start: int  # the mapping's address, if `pages_read` is not None

    def __del__(self) -> None:
        if self.before_unmapping is not None:
            self.before_unmapping()

    def mark_unread(self) -> None:
        """Note that another process has written the pages, and this has read none."""
        self.start = address(np.frombuffer(self, np.uint8))
        self.pages_read = bytearray(-(-len(self) // PAGESIZE))


def touch_pages(array: np.ndarray) -> None:
    """Read a byte of each page of a C-contiguous array, so that all are mapped."""
    # The kernel maps a page into a process at the process's first access. But a vector
    # instruction with a mask, which compilers make of ``switch`` and ``where``, reads
    # nothing where its mask is off. On a page that is not mapped it then takes hundreds
    # of cycles, each time again. (A term for rows with y = 0, of which there were none,
    # made a rank take twice the time.) The process that wrote the values has the pages.
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
    """Return the address of an array's first element."""
    return array.__array_interface__["data"][0]


def mapping_of(array: np.ndarray) -> Mapping | None:
    """Return the mapping of which an array is a view, or None."""
    base = array.base
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, Mapping) else None


# -- huge pages


def huge_setting() -> str | None:
    """Return the kernel's setting for shared memory, such as "never", or None."""
    try:
        words = _SETTING.read_text().split()
    except OSError:
        return None
    return next((word.strip("[]") for word in words if word.startswith("[")), None)


def are_huge_given() -> bool:
    """Return whether the kernel makes a huge page for this process now, by a trial."""
    if not HUGE:
        return False
    try:
        with new_memory("synk-huge-page") as file:
            fd = file.fileno()
            os.ftruncate(fd, file_size(HUGE))
            return fill(fd, map_file(fd, HUGE), 0, HUGE)
    except (OSError, SynkError):  # no memory is free, or a call is forbidden
        return False


def file_size(nbytes: int) -> int:
    """Return the length of a segment's file, with space at its end for `map_file`."""
    return nbytes + HUGE if nbytes >= HUGE else nbytes  # no memory is behind the end


def map_file(fd: int, nbytes: int) -> Mapping:
    """Map the first `nbytes` of a file, at an address that fits huge pages if possible.

    The file has at least `file_size(nbytes)`. The mapping may be longer than `nbytes`,
    by less than a huge page.
    """
    made = mapped(Mapping, fd, nbytes)
    if not HUGE or nbytes < HUGE or nbytes + HUGE > os.fstat(fd).st_size:
        return made
    missed = []  # kept meanwhile, to fill the gaps that do not fit
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
    """Reserve bytes of a file in huge pages; return whether all whole ones are huge.

    If the kernel gives none, or is slow, this stops early, and the caller reserves the
    rest. Raises OSError if there is no memory.
    """
    if not HUGE:
        return False
    first, last = -(-start // HUGE) * HUGE, stop // HUGE * HUGE
    for begin in range(first, last, AT_ONCE):
        length = min(AT_ONCE, last - begin)
        since = perf_counter()
        for offset in range(begin, begin + length, HUGE):
            # The kernel makes a huge page only of a range that has at least one page.
            os.posix_fallocate(fd, offset, 1)
        try:
            mapping.madvise(_COLLAPSE, begin, length)
        except OSError:  # an old kernel, the setting "deny", or fragmented memory
            return False
        if perf_counter() - since > SLOW * length:
            return False  # the kernel has to move other pages to make huge ones
    return True
