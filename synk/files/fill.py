"""Rows of files, written to where ranks read them: a compiled loop, or for images one.

The loop needs Python's lock (GIL) to begin and to end, and not between files. A step
of the script's thread is compiled code that holds it: a thread that came back to Python
after each file would wait there, each time, for a whole step. So the arrays of all
files go to the loop at once, as addresses.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..compiled import array_at, compile_kernel
from ..memory.mapping import address

_INDEX, _PLACE, _TOP, _LEFT, _FLIPPED = range(5)


class Lines:
    """Rows of a file that lie in one array, or in several: a line of the row in each.

    Arrays have one dtype and, where there are several, one number in a row.
    """

    def __init__(self, arrays: Sequence[np.ndarray], rows: int) -> None:
        if any(len(array) != rows for array in arrays):
            raise ValueError(f"{[len(a) for a in arrays]} rows, where {rows} were")
        self.arrays = arrays  # which must live as long as the addresses
        self.addresses = [address(array) for array in arrays]


_BLOCK = 1024
"""Of so many rows all lines are written, before the next are: they are in the cache."""


@compile_kernel
def _gather(files, starts, rows, kind, out):
    width = out.shape[2]
    for f in range(len(files)):
        for low in range(starts[f], starts[f + 1], _BLOCK):
            high = min(low + _BLOCK, starts[f + 1])
            for i in range(files.shape[1]):
                source = array_at(files[f, i], kind.dtype, 1 << 60)
                if width == 1:
                    for row in range(low, high):
                        out[rows[_PLACE, row], i, 0] = source[rows[_INDEX, row]]
                else:
                    for row in range(low, high):
                        first = rows[_INDEX, row] * width
                        line = source[first : first + width]
                        target = out[rows[_PLACE, row], i]
                        for x in range(width):
                            target[x] = line[x]


@compile_kernel
def _copy(files, starts, firsts, kind, out):
    width = out.shape[2]
    for f in range(len(files)):
        before = firsts[f] - starts[f]
        for low in range(starts[f], starts[f + 1], _BLOCK):
            high = min(low + _BLOCK, starts[f + 1])
            for i in range(files.shape[1]):
                source = array_at(files[f, i], kind.dtype, 1 << 60)
                if width == 1:
                    for row in range(low, high):
                        out[row, i, 0] = source[before + row]
                else:
                    for row in range(low, high):
                        first = (before + row) * width
                        for x in range(width):
                            out[row, i, x] = source[first + x]


def gather(
    files: Sequence[Lines], starts: np.ndarray, rows: np.ndarray, out: np.ndarray
) -> None:
    """Write rows of several files, each one whole.

    `starts` says where the rows of each file start in `rows`, and the end. That has the
    rows' indices in their files, and their places in `out`, which is contiguous. Or,
    where rows come one after the other, it has each file's first index alone, and their
    places are those from 0 on.
    """
    if not files:
        return
    addresses = np.array([file.addresses for file in files], np.int64)
    lines = addresses.shape[1]
    width = out.nbytes // max(len(out), 1) // lines
    # A unit as large as lines are made of, and begin at: one loop serves all dtypes.
    places = int(np.bitwise_or.reduce(addresses, axis=None)) | address(out) | width
    unit = next(np.dtype(f"u{size}") for size in (8, 4, 1) if places % size == 0)
    units = out.reshape(-1).view(np.uint8).reshape(len(out), lines, width).view(unit)
    kernel = _copy if rows.ndim == 1 else _gather
    kernel(addresses, starts, rows, np.empty(0, unit), units)


@compile_kernel
def _copy_line(source, first, step, flipped, target):
    if flipped:
        for x in range(target.size):
            target[target.size - 1 - x] = source[first + x * step]
    elif step == 1:
        line = source[first : first + target.size]
        for x in range(target.size):
            target[x] = line[x]
    else:
        for x in range(target.size):
            target[x] = source[first + x * step]


@compile_kernel
def _normalise_line(mean, std, flipped, target):
    if flipped:
        for x in range(target.size):
            at = target.size - 1 - x
            target[at] = (target[at] - mean[x]) / std[x]
    else:
        for x in range(target.size):
            target[x] = (target[x] - mean[x]) / std[x]


@compile_kernel
def _fill_line(source, strides, row, c, y, mean, std, out):
    """Write line y of an image's channel c, if it is in the part that is taken."""
    top, left, flipped = row[_TOP], row[_LEFT], row[_FLIPPED]
    if not top <= y < top + out.shape[2]:
        return
    target = out[row[_PLACE], c, y - top]
    first = row[_INDEX] * strides[0] + c * strides[1] + y * strides[2]
    _copy_line(source, first + left * strides[3], strides[3], flipped, target)
    if mean.size:
        end = left + target.size
        _normalise_line(mean[c, y, left:end], std[c, y, left:end], flipped, target)


@compile_kernel
def _fill(files, starts, rows, kind, mean, std, out):
    for f in range(len(files)):
        address, extent, strides = files[f, 0], files[f, 1], files[f, 2:]
        source = array_at(address, kind.dtype, extent)
        of_file = rows[starts[f] : starts[f + 1]]
        if strides[0] >= strides[3]:
            for row in of_file:
                for c in range(out.shape[1]):
                    for y in range(row[_TOP], row[_TOP] + out.shape[2]):
                        _fill_line(source, strides, row, c, y, mean, std, out)
            continue
        # Images that lie inside of each other, as in c01b: all take a line from the
        # cache that the first has brought there.
        low, high = 1 << 62, 0
        for row in of_file:
            low, high = min(low, row[_TOP]), max(high, row[_TOP] + out.shape[2])
        for c in range(out.shape[1]):
            for y in range(low, high):
                for row in of_file:
                    _fill_line(source, strides, row, c, y, mean, std, out)


def fill(
    arrays: Sequence[np.ndarray],
    starts: np.ndarray,
    rows: np.ndarray,
    mean: np.ndarray,
    std: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write rows of several arrays: of each a part, normalised, mirrored or not.

    Arrays have the shape (rows, channels, height, width) and one dtype; they are dense,
    their axes in memory in any order. `starts` says where the rows of each start in
    `rows`, and the end. That has of each row its index in its array, its place in
    `out`, the first line and column that are taken, and whether these are mirrored.
    `mean` and `std`, of a whole image's shape, have no elements if there are none.
    """
    if not arrays:
        return
    files = [
        [address(a), a.size, *(stride // a.itemsize for stride in a.strides)]
        for a in arrays
    ]
    kind = np.empty(0, arrays[0].dtype)
    _fill(np.array(files, np.int64), starts, rows, kind, mean, std, out)
