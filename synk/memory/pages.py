"""Pages of shared memory, mapped before machine code reads them by a mask.

A process that has a segment finds each page of it when it reads there first. But a
vector instruction with a mask, which compilers make of ``switch`` and ``where``, reads
nothing where its mask is off. On a page that the process has not read yet it then takes
hundreds of cycles, every time, as no read ever comes that would bring the page. (A term
that is looked at for y = 0 alone, among rows where it is not 0, made a rank take twice
its time.) The memory of the process that wrote the values has no such pages.
"""

from __future__ import annotations

from mmap import PAGESIZE

import numpy as np

from .mapping import Mapping, address, mapping_of


def are_elsewhere(mapping: Mapping) -> None:
    """Take note that this process has none of a mapping's pages yet, but others do."""
    mapping.start = address(np.frombuffer(mapping, np.uint8))
    mapping.pages_read = bytearray(-(-len(mapping) // PAGESIZE))


def bring(view: np.ndarray) -> None:
    """Read each page that a C-contiguous array lies on, if that was not done before."""
    mapping = mapping_of(view)
    if mapping is None or mapping.pages_read is None:
        return
    start = address(view) - mapping.start
    stop = start + view.nbytes
    first, last = start // PAGESIZE, -(-stop // PAGESIZE)
    if mapping.pages_read.find(0, first, last) < 0:
        return
    memory = np.frombuffer(mapping, np.uint8)
    memory[first * PAGESIZE : stop : PAGESIZE].max()
    mapping.pages_read[first:last] = bytes([1]) * (last - first)
    if 0 not in mapping.pages_read:
        mapping.pages_read = None
