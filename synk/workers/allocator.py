"""Memory of temporary arrays: kept by a rank, not given back after every call.

Compiled functions make their intermediate arrays anew in every call. The C library
takes large ones from the kernel and gives them back, and the kernel hands out zeroed
pages, one fault for each 4 kB: of a step of a network with 2,048 rows of 800 units,
that was 8 % of the time. Ranks keep the memory instead, as much as a call has needed.
"""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of <malloc.h>

_KEEP = 2**31 - 1, 2**30
"""Bytes: free memory beyond the first goes back, and arrays from the second on do."""

_USUAL = 64 * 2**20, 32 * 2**20
"""What the GNU C library's own adjustment of these comes to in the end."""

_OF_THE_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_memory() -> bool:
    """Keep memory from now on; return whether that is possible.

    It is with the GNU C library, unless the user has set its allocator otherwise.
    """
    if any(name in os.environ for name in _OF_THE_USER):
        return False
    return _set(*_KEEP)


def give_back() -> None:
    """Give back what is free now, and large arrays from now on."""
    if _set(*_USUAL):
        ctypes.CDLL(None).malloc_trim(0)


def _set(trim: int, mmap: int) -> bool:
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    return bool(
        library.mallopt(_MMAP_THRESHOLD, mmap)
        and library.mallopt(_TRIM_THRESHOLD, trim)
    )
