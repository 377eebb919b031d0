"""A segment for arrays that other ranks read, used again for each message."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from .segment import Segment, Window, layout

PATIENCE = 100
"""Small messages in a row after which the memory of a large one is given back. (Large
ones may come between many small ones, and to reserve memory takes time.)"""

SMALL = 1 << 20
"""Bytes that are never given back."""

_Layout: TypeAlias = tuple[list, list[np.ndarray], list[Window], int]
"""Of a message: dtypes and shapes, arrays in the arena, their windows, and bytes."""

_NOTHING: _Layout = [], [], [], 0


class Arena:
    """One segment, which is filled from its start for every message.

    It grows to the largest message. If then `PATIENCE` messages in a row need less than
    a quarter of it, it shrinks to the largest of these, if it `can_shrink`: not if it
    may be pinned for a device (see `Segment.give_back`).
    """

    def __init__(self, can_shrink: bool = True) -> None:
        self._can_shrink = can_shrink
        self._segment: Segment | None = None
        # Of the last message. Replaced as one object, so that its parts belong together
        # even after an interrupt.
        self._layout = _NOTHING
        self._is_large = False  # whether it has memory that could be given back
        self._small_ones = self._largest = 0

    def put(self, arrays: Sequence[np.ndarray]) -> list[Window]:
        """Copy arrays into the arena, over those from before; return their windows."""
        if not arrays:  # the usual case in a loop: the old content stays
            if self._is_large:
                self._count(0)
            return []
        places, windows = self.room([(array.dtype, array.shape) for array in arrays])
        for place, array in zip(places, arrays, strict=True):
            place[...] = array
        return windows

    def room(self, kinds: list) -> tuple[list[np.ndarray], list[Window]]:
        """Return new arrays in the arena, over those from before, and their windows."""
        # `kinds` has a dtype and a shape for each array.
        if kinds != self._layout[0]:  # in a loop they are mostly the same
            self._layout = kinds, *self._lay_out(kinds)
        _, places, windows, nbytes = self._layout
        if self._is_large:
            self._count(nbytes)
        return places, windows

    def _lay_out(self, kinds: list) -> tuple[list[np.ndarray], list[Window], int]:
        sizes = [math.prod(shape) * dtype.itemsize for dtype, shape in kinds]
        offsets, total = layout(sizes)
        if self._segment is None:
            self._segment = Segment(total)
        self._segment.grow(total)
        self._is_large = self._can_shrink and self._segment.reserved > SMALL
        places = [
            self._segment.array(dtype, shape, offset)
            for (dtype, shape), offset in zip(kinds, offsets, strict=True)
        ]
        windows = [
            self._segment.window(place, offset)
            for place, offset in zip(places, offsets, strict=True)
        ]
        return places, windows, total

    def _count(self, nbytes: int) -> None:
        """Count messages in a row that need little memory; shrink after many."""
        segment = self._segment
        assert segment is not None
        if 4 * nbytes > segment.reserved:
            self._small_ones = self._largest = 0
            return
        self._largest = max(self._largest, nbytes)
        self._small_ones += 1
        if self._small_ones >= PATIENCE:
            if self._layout[3] > self._largest:
                self._layout = _NOTHING  # that message would have to grow it again
            segment.give_back(self._largest)
            self._is_large = segment.reserved > SMALL
            self._small_ones = self._largest = 0
