"""One segment for all that a rank has others read, message after message."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from .segment import Segment, Window, layout

PATIENCE = 100
"""Messages in a row that need far less before the memory of a large one is given back:
a script may have few large ones among many small, and reserving takes time."""

SMALL = 1 << 20
"""Bytes that are kept in any case."""

_Layout: TypeAlias = tuple[list, list[np.ndarray], list[Window], int]

_NOTHING: _Layout = [], [], [], 0


class Arena:
    """One segment, filled from its start for every message and used again.

    It grows to the largest message. When then `PATIENCE` messages in a row need less
    than a quarter of that, it shrinks to the largest of these; not where it may be
    pinned for a device, see `Segment.give_back`.
    """

    def __init__(self, can_shrink: bool = True) -> None:
        self._can_shrink = can_shrink
        self._segment: Segment | None = None
        # What was put last, where it lies, its windows and bytes: replaced as one, so
        # that they belong together even after an interrupt.
        self._layout = _NOTHING
        self._is_large = False  # whether there is anything that could go back
        self._small_ones = self._largest = 0

    def put(self, arrays: Sequence[np.ndarray]) -> list[Window]:
        """Copy arrays into the arena, over what was there; return their windows."""
        if not arrays:  # all stays as it is; most calls of a loop have none
            if self._is_large:
                self._count(0)
            return []
        places, windows = self.room([(array.dtype, array.shape) for array in arrays])
        for place, array in zip(places, arrays, strict=True):
            place[...] = array
        return windows

    def room(self, kinds: list) -> tuple[list[np.ndarray], list[Window]]:
        """Make room for arrays, over what was there; return places and windows."""
        # `kinds` has a dtype and a shape for each. They and what follows from them are
        # replaced as one: an interrupt leaves the layout of before, or the new one.
        if kinds != self._layout[0]:  # calls in a loop mostly bring the same again
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
        """Count messages that need far less than there is; shrink in time."""
        segment = self._segment
        assert segment is not None
        if 4 * nbytes > segment.reserved:
            self._small_ones = self._largest = 0
            return
        self._largest = max(self._largest, nbytes)
        self._small_ones += 1
        if self._small_ones >= PATIENCE:
            if self._layout[3] > self._largest:
                self._layout = _NOTHING  # it has to be laid out anew, and to grow
            segment.give_back(self._largest)
            self._is_large = segment.reserved > SMALL
            self._small_ones = self._largest = 0
