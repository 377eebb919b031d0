"""Takes selected rows of an array, C-contiguous, for a compiled function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .mapping import touch_pages
from .partition import Selection, count


class RowTaker:
    """Takes the rows of one input of a function, call after call.

    Adjacent rows are a view if they are C-contiguous and writeable. Other rows are
    gathered in a buffer that is used again, as a new array would cost page faults in
    every call.
    """

    def __init__(self) -> None:
        self._buffer: np.ndarray | None = None

    def take(self, array: Any, selection: Selection) -> Any:
        """Return the selected rows, C-contiguous; valid until the next call."""
        # Rows of an array of JAX stay on its device.
        if not isinstance(array, np.ndarray):
            return _take_on_device(array, selection)
        shape = (count(selection), *array.shape[1:])
        if isinstance(selection, slice):
            view = array[selection]
            if view.flags.carray:
                touch_pages(view)
                return view
            # For a strided or read-only array numba would compile again.
            room = self._room(shape, array.dtype)
            room[...] = view
            return room
        # `select` has checked the row numbers, and with "clip" numpy writes to the room
        # directly.
        room = self._room(shape, array.dtype)
        return np.take(array, selection, 0, room, "clip")

    def take_whole(self, array: Any) -> Any:
        """Return a whole array, without a copy."""
        if array.flags.c_contiguous:
            touch_pages(array)
        return array

    def _room(self, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        buffer = self._buffer
        if (
            buffer is None
            or buffer.dtype != dtype
            or buffer.shape[1:] != shape[1:]
            or len(buffer) < shape[0]
        ):
            buffer = self._buffer = np.empty(shape, dtype)
        return buffer[: shape[0]]


def _take_on_device(array: Any, selection: Selection) -> Any:
    from jax import lax

    if not isinstance(selection, slice):
        return array[selection]
    rows = count(selection)
    if rows == len(array):
        return array
    # JAX compiles this once for each number of rows, not for each start.
    return lax.dynamic_slice_in_dim(array, selection.start, rows)


def take_rows(
    takers: Sequence[RowTaker],
    arrays: Sequence[np.ndarray],
    selections: Sequence[Selection],
) -> list[Any]:
    """Take the selected rows of every array, each by its taker."""
    # Some rows may still be being copied to a device: callers use `arrived`.
    return [
        taker.take(array, selection)
        for taker, array, selection in zip(takers, arrays, selections, strict=True)
    ]


def arrived(rows: Sequence[Any]) -> list[Any]:
    """Return rows of `take_rows` as arrays of numpy or JAX, for a function."""
    return [row.array() if hasattr(row, "wait") else row for row in rows]
