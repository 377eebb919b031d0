"""Computes which rows a rank gets, by indices alone.

A *selection* stands for the rows of a `batch` argument: a ``slice`` with step 1, whose
rows are taken without a copy, or an array of non-negative row numbers.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

Selection: TypeAlias = "slice | np.ndarray"


def select(batch, length: int) -> Selection:
    """Return the selection of a user's `batch`, among the rows 0 to `length` - 1."""
    # None selects all rows, and an int n the first n. Slices, negative row numbers and
    # masks mean the same as in numpy. Raises IndexError if a row number is out of
    # range, or a mask has another length; TypeError or ValueError for other things.
    if batch is None:
        return slice(0, length)
    if isinstance(batch, slice):
        start, stop, step = batch.indices(length)
        if step == 1:
            return slice(start, max(start, stop))
        return np.arange(start, stop, step, dtype=np.int64)
    if isinstance(batch, np.ma.MaskedArray):
        raise TypeError(
            "batch is a masked array, whose mask would be lost: pass batch.compressed()"
        )
    if isinstance(batch, np.ndarray) and batch.ndim:
        return _from_array(batch, length)
    try:
        count = operator.index(batch)
    except TypeError:
        return _from_array(np.asarray(batch), length)
    if isinstance(batch, (bool, np.bool_)):
        raise TypeError(f"batch must not be a single bool, got {batch!r}")
    if not 0 <= count <= length:
        raise IndexError(f"batch={count} asks for the first {count} of {length} rows")
    return slice(0, count)


def _from_array(rows: np.ndarray, length: int) -> np.ndarray:
    if rows.ndim != 1:
        got = f"{rows.ndim} dimensions" if rows.ndim else repr(rows[()])
        raise ValueError(f"batch must be an int, a slice or one-dimensional, got {got}")
    if rows.dtype == bool:
        if len(rows) != length:
            raise IndexError(f"batch is a mask of {len(rows)} for {length} rows")
        return np.flatnonzero(rows)
    if rows.size == 0:
        return np.zeros(0, np.int64)
    if rows.dtype.kind not in "iu":
        raise TypeError(f"batch must hold integers or bools, got {rows.dtype}")
    lowest, highest = int(rows.min()), int(rows.max())
    if lowest < -length or highest >= length:
        row = highest if highest >= length else lowest
        raise IndexError(f"batch has row {row}, out of range for {length} rows")
    rows = rows.astype(np.int64, copy=False)
    return np.where(rows < 0, rows + length, rows) if lowest < 0 else rows


def count(selection: Selection) -> int:
    """Return how many rows are selected."""
    if isinstance(selection, slice):
        return selection.stop - selection.start
    return len(selection)


def cuts(rows: int, parts: int, block: int = 1) -> list[int]:
    """Cut `rows` into contiguous parts whose sizes differ by one block at most.

    Returns ``parts + 1`` bounds; part i is ``bounds[i]:bounds[i + 1]``. The larger
    parts come first, so that rank 0 has rows whenever there are any.

    >>> cuts(7, 3)
    [0, 3, 5, 7]
    >>> cuts(1, 3)
    [0, 1, 1, 1]
    >>> cuts(19, 3, 4)  # five blocks, of which the last one has three rows
    [0, 8, 16, 19]
    """
    return [bound(rows, parts, i, block) for i in range(parts + 1)]


def bound(rows: Any, parts: int, i: int, block: int = 1) -> Any:
    """Return ``cuts(rows, parts, block)[i]``; of an array `rows`, for each element.

    >>> bound(7, 3, 2), bound(np.array([7, 1]), 3, 2)
    (5, array([5, 1]))
    """
    size, more = divmod(-(-rows // block), parts)
    least = min if isinstance(rows, int) else np.minimum
    return least((i * size + least(i, more)) * block, rows)


def part_lengths(bounds: Sequence[int]) -> list[int]:
    """Return the number of rows of each part, of the bounds of `cuts`."""
    return [stop - start for start, stop in itertools.pairwise(bounds)]


def spans(counts: Sequence[int]) -> list[tuple[int, int]]:
    """Return the bounds of adjacent groups that have `counts` members.

    >>> spans([2, 3])
    [(0, 2), (2, 5)]
    """
    return list(itertools.pairwise(itertools.accumulate(counts, initial=0)))


def part(selection: Selection, start: int, stop: int) -> Selection:
    """Return the selection of the selected rows from the `start`-th to the `stop`-th.

    >>> part(slice(10, 20), 2, 5)
    slice(12, 15, None)
    """
    if isinstance(selection, slice):
        return slice(selection.start + start, selection.start + stop)
    return selection[start:stop]
