"""Taking selected rows out of an array, the way a compiled function wants them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .gather import gather
from .pages import bring
from .partition import Selection, count


class RowTaker:
    """Takes rows into a buffer that is used again, one for each input of a function.

    Adjacent rows are a view, of an array that is C-contiguous and writeable. Others are
    gathered into memory that is warm already: a fresh array of that size would cost
    page faults at every call.
    """

    def __init__(self) -> None:
        self._buffer: np.ndarray | None = None

    def take(self, array: Any, selection: Selection) -> Any:
        """Return the selected rows, C-contiguous; valid until the next call.

        Those of an array of JAX's stay on its device.
        """
        if not isinstance(array, np.ndarray):
            return _take_on_device(array, selection)
        shape = (count(selection), *array.shape[1:])
        if isinstance(selection, slice):
            view = array[selection]
            if view.flags.carray:
                bring(view)
                return view
            # Numba would compile anew for a strided or a read-only array.
            room = self._room(shape, array.dtype)
            room[...] = view
            return room
        # The row numbers were checked when the batch was resolved.
        return gather(array, selection, self._room(shape, array.dtype))

    def take_whole(self, array: Any) -> Any:
        """Return a whole array, as it is."""
        if array.flags.c_contiguous:
            bring(array)
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
    if selection.step not in (None, 1):
        return array[np.arange(len(array))[selection]]
    start, stop, _ = selection.indices(len(array))
    if (start, stop) == (0, len(array)):
        return array
    # Compiled once for each number of rows, wherever they are.
    return lax.dynamic_slice_in_dim(array, start, max(0, stop - start))


def take_rows(
    takers: Sequence[RowTaker],
    arrays: Sequence[np.ndarray],
    selections: Sequence[Selection],
) -> list[Any]:
    """Take the selected rows of every array, each through a taker of its own.

    They are to go through `arrived`, as some may be on their way to a device.
    """
    return [
        taker.take(array, selection)
        for taker, array, selection in zip(takers, arrays, selections, strict=True)
    ]


def arrived(rows: Sequence[Any]) -> list[Any]:
    """Return rows as functions take them: arrays of numpy's or of JAX's."""
    return [row.array() if hasattr(row, "wait") else row for row in rows]
