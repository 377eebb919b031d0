"""Rows of arrays, written to where ranks read them: one compiled loop.

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
