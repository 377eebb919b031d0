"""The order of an epoch's rows, and how it is cut into parts: arithmetic only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

ORDER, DRAWS = 0, 1
"""The last number of a random stream's seed, after seed and epoch: its purpose."""


class Part(NamedTuple):
    """Some batches of an epoch, and the arrays with their rows.

    ``step.run(part.batches, *part.inputs)`` makes a step for each batch.

    Attributes
    ----------
    batches : list
        For each step, the argument `batch` of a call.
    inputs : tuple
        The inputs of the step, Data or array_like.
    """

    batches: list
    inputs: tuple[Any, ...]


class Order:
    """The order of an epoch's rows; only the rows asked for last are in memory.

    The files are shuffled, and then the rows of each *window*: `window` files that are
    next to each other in that order. So each file is read once, and a window is needed
    at a time.

    `counts` has the number of rows of each file. The order follows from seed and epoch
    alone; without `shuffle` it is that of files and rows. `ends` has the place in the
    order where each window ends.
    """

    def __init__(
        self, counts: Sequence[int], window: int, seed: int, epoch: int, shuffle: bool
    ) -> None:
        self._starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self._window, self._shuffle = window, shuffle
        self._seed = [seed, epoch, ORDER]
        self._begin()
        lengths = np.asarray(counts, np.int64)[self._files]
        self.ends = np.cumsum(
            np.add.reduceat(lengths, np.arange(0, len(lengths), window))
        )

    def _begin(self) -> None:
        self._random = np.random.default_rng(self._seed)
        self._files = np.arange(len(self._starts) - 1)
        if self._shuffle:
            self._files = self._random.permutation(len(self._files))
        self._first = self._next = 0  # the place of `_rows`, and the next file's
        self._rows = np.empty(0, np.int64)

    def between(self, low: int, high: int) -> np.ndarray:
        """Return the numbers of the rows at the places `low` to `high` of the order."""
        if low < self._first:
            self._begin()
        found = [self._rows]
        have = self._first + len(self._rows)
        while have < high:
            files = self._files[self._next : self._next + self._window]
            self._next += self._window
            rows = np.concatenate(
                [np.arange(self._starts[f], self._starts[f + 1]) for f in files]
            )
            found.append(self._random.permutation(rows) if self._shuffle else rows)
            have += len(rows)
        self._rows = np.concatenate(found)[low - self._first :]
        self._first = low
        return self._rows[: high - low]


def is_consecutive(rows: np.ndarray) -> bool:
    """Return whether each number is one more than the number before: 5, 6, 7."""
    return len(rows) > 0 and bool((rows[1:] - rows[:-1] == 1).all())


def sorting(rows: np.ndarray) -> np.ndarray:
    """Return `numpy.argsort` of non-negative integers, only faster.

    If the numbers are dense, each is written to its place. Otherwise they are sorted by
    16 bits at a time, for which NumPy has a radix sort.

    >>> sorting(np.array([1 << 40, 7, 1 << 20])).tolist()
    [1, 2, 0]
    """
    if (rows[1:] >= rows[:-1]).all():
        return np.arange(len(rows))
    low = rows.min()
    span = int(rows.max() - low) + 1
    if span <= 2 * len(rows):
        places = np.full(span, -1)
        places[rows - low] = np.arange(len(rows))
        order = places if span == len(rows) else places[places >= 0]
        if len(order) == len(rows) and order.min() >= 0:  # no two are equal
            return order
    order = np.argsort(rows.astype(np.uint16), kind="stable")
    rows = rows >> 16
    while rows.any():
        digits = rows[order].astype(np.uint16)
        order = order[np.argsort(digits, kind="stable")]
        rows = rows >> 16
    return order


def cut(ends: np.ndarray, batch_size: int) -> Iterator[tuple[int, int]]:
    """Yield where the parts of an epoch begin and end: whole batches.

    A part ends with the last whole batch in a window; the window's other rows belong to
    the next part. The last batch of all has the rows that are left.

    >>> list(cut(np.array([5, 6, 16]), 4))
    [(0, 4), (4, 16)]
    """
    low = 0
    for end in ends.tolist():
        high = end if end == ends[-1] else end - end % batch_size
        if high > low:
            yield low, high
            low = high


def most_rows(counts: Sequence[int], window: int, batch_size: int) -> int:
    """Return the most rows that a part may have, in any order of the files."""
    largest = sum(sorted(counts)[-window:])
    return min(sum(counts), largest + batch_size - 1)


def batches_of_part(rows: int, batch_size: int) -> list[slice]:
    """Return the batches of a part of `rows` rows, as slices.

    >>> batches_of_part(5, 2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return [
        slice(low, min(low + batch_size, rows)) for low in range(0, rows, batch_size)
    ]
