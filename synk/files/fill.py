"""Compiled loops that copy rows of files to the memory that ranks read.

A loop needs Python's lock (GIL) only to begin and to end. A step of the script's thread
is compiled code that holds the lock. A thread that came back to Python after each file
would wait for a whole step each time. So one loop gets the arrays of all files at once,
as addresses.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..compiled import array_at, compile_kernel
from ..memory.mapping import address

_INDEX, _PLACE, _TOP, _LEFT, _FLIPPED = range(5)
"""Columns of the table of rows: see `gather` and `fill`."""


class Lines:
    """A file's rows, as one array or as several columns of one number each.

    All arrays have the same dtype and length.
    """

    def __init__(self, arrays: Sequence[np.ndarray], rows: int) -> None:
        if any(len(array) != rows for array in arrays):
            raise ValueError(f"{[len(a) for a in arrays]} rows, {rows} are expected")
        self.arrays = arrays  # keeps the memory behind the addresses
        self.addresses = [address(array) for array in arrays]


_BLOCK = 1024
"""Rows that are written in all columns before the next ones, to stay in the cache."""


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
    """Copy whole rows of several files to `out`, which is contiguous.

    `rows` has two lines: each row's index in its file, and its place in `out`. `starts`
    says where each file's rows start in `rows`, and where the last ones end. If rows
    are consecutive, `rows` has only each file's first index (one dimension), and the
    rows' places are 0, 1, ...
    """
    if not files:
        return
    addresses = np.array([file.addresses for file in files], np.int64)
    lines = addresses.shape[1]
    width = out.nbytes // max(len(out), 1) // lines
    # The largest unit that divides all addresses and widths: one loop for all dtypes.
    places = int(np.bitwise_or.reduce(addresses, axis=None)) | address(out) | width
    unit = next(np.dtype(f"u{size}") for size in (8, 4, 1) if places % size == 0)
    units = out.reshape(-1).view(np.uint8).reshape(len(out), lines, width).view(unit)
    kernel = _copy if rows.ndim == 1 else _gather
    kernel(addresses, starts, rows, np.empty(0, unit), units)


@compile_kernel
def _copy_line(source, step, target):
    for x in range(target.size):
        target[x] = source[x * step]


@compile_kernel
def _normalise_line(mean, std, target):
    for x in range(target.size):
        target[x] = (target[x] - mean[x]) / std[x]


@compile_kernel
def _fill_line(source, strides, row, c, y, mean, std, out):
    """Write line y of an image's channel c, if it lies in the image's crop."""
    top, left, flipped = row[_TOP], row[_LEFT], row[_FLIPPED]
    if not top <= y < top + out.shape[2]:
        return
    target = out[row[_PLACE], c, y - top]
    first = row[_INDEX] * strides[0] + c * strides[1] + y * strides[2]
    line = source[first + left * strides[3] :]
    if strides[3] == 1:  # a loop of its own, for vectors
        _copy_line(line, 1, target)
    else:
        _copy_line(line, strides[3], target)
    if mean.size:
        end = left + target.size
        _normalise_line(mean[c, y, left:end], std[c, y, left:end], target)
    if flipped:
        for x in range(target.size // 2):
            other = target.size - 1 - x
            target[x], target[other] = target[other], target[x]


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
        # The images are interleaved in memory, as in c01b: the same line of all images
        # is taken while it is in the processor's cache.
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
    """Write crops of images of several arrays to `out`, normalised, some mirrored.

    Arrays have the shape (rows, channels, height, width) and one dtype; they are dense,
    with their axes in memory in any order. `rows` has five columns: an image's index in
    its array, its place in `out`, the crop's first line and column, and whether it is
    mirrored. `starts` says where each array's images start in `rows`, and where the
    last ones end. `mean` and `std` have the shape of a whole image, or no elements.
    """
    if not arrays:
        return
    files = [
        [address(a), a.size, *(stride // a.itemsize for stride in a.strides)]
        for a in arrays
    ]
    kind = np.empty(0, arrays[0].dtype)
    _fill(np.array(files, np.int64), starts, rows, kind, mean, std, out)
