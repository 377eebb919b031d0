"""Mapped memory that says when it goes, for who has told a device where it lies."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Any

import numpy as np


class Mapping(mmap.mmap):
    """A mapping, of a segment or (``Mapping(-1, nbytes)``) of memory of its own.

    Attributes
    ----------
    asked_by : object
        Who has last tried to pin it.
    before_unmapping : callable or None
        Called when nobody has the mapping any more, while its memory is still there.
        (A weak reference would be told after that.)
    start : int
        Its address, where `pages_read` is kept.
    pages_read : bytearray or None
        For each page whether this process has read it; None if it has all. See `pages`.
    """

    asked_by: Any = None
    before_unmapping: Callable[[], object] | None = None
    start: int
    pages_read: bytearray | None = None

    def __del__(self) -> None:
        if self.before_unmapping is not None:
            self.before_unmapping()


def address(array: np.ndarray) -> int:
    """Return where an array's first element lies."""
    return array.__array_interface__["data"][0]


def mapping_of(array: np.ndarray) -> Mapping | None:
    """Return the mapping that an array lies in, if it is a view of one."""
    base = array.base
    while isinstance(base, np.ndarray):
        base = base.base
    return base if isinstance(base, Mapping) else None
