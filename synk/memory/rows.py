"""Takes selected rows of an array, C-contiguous, for a compiled function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from ..compiled import compile_kernel, pointer
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
        # `select` has checked the row numbers.
        return gather(array, selection, self._room(shape, array.dtype))

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


# -- rows that lie far apart

# Shuffled rows of a large array come from main memory, and a core that copies one after
# the other waits for the start of each. This kernel prefetches the start of a row while
# it copies the rows before; the hardware prefetches the rest of a row by itself. For
# 512 rows of 3 kB that took 0.84 of the time of ``numpy.take``.

_AHEAD = 2  # rows; 1 to 4 make no difference
_LINES = 16  # cache lines of 64 bytes; to prefetch whole rows was slower
_WORTHWHILE = 1024  # bytes in a row; shorter ones are left to numpy


@intrinsic
def _prefetch(typing_context: Any, array: Any, index: Any) -> tuple:
    """Prefetch the cache line of an array's element, by LLVM's ``llvm.prefetch``."""

    def generate(context, builder, signature, arguments):
        line, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [line, number, number, number])
        function = builder.module.declare_intrinsic("llvm.prefetch", [line], kind)
        place = pointer(context, builder, signature, arguments)
        place = builder.bitcast(place, line)
        # for reading, to be kept in all caches, data
        builder.call(function, [place, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, index), generate


@compile_kernel
def _gather(data, width, rows, out):
    for i in range(rows.size):
        if i + _AHEAD < rows.size:
            next_row = rows[i + _AHEAD] * width
            for line in range(min(_LINES, width // 64)):
                _prefetch(data, next_row + line * 64)
        source = data[rows[i] * width : rows[i] * width + width]
        target = out[i * width : i * width + width]
        for j in range(source.size):
            target[j] = source[j]


def gather(array: np.ndarray, rows: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Take rows of an array; like ``numpy.take(array, rows, 0, out, "clip")``."""
    # `rows` are int64, from 0 on and in range, which is not checked. `out` is
    # C-contiguous, and has the array's dtype.
    width = out.strides[0] if len(out) else 0
    if width < _WORTHWHILE or not array.flags.c_contiguous or not rows.flags.carray:
        # With mode="clip" numpy writes to `out` directly.
        return np.take(array, rows, 0, out, "clip")
    data = array.reshape(-1).view(np.uint8)
    _gather(data, width, rows, out.reshape(-1).view(np.uint8))
    return out
