"""Taking the rows of the next call while the present one computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from time import perf_counter
from typing import Protocol, TypeVar

import numpy as np

from ..threads.helper import Helper
from .partition import Selection
from .rows import RowTaker, arrived, take_rows


class HasRows(Protocol):
    """What rows can be taken for: arrays, and a selection of rows of each."""

    start: float
    """When the wait for the rows began."""

    @property
    def sources(self) -> Sequence[np.ndarray]:
        """The arrays that rows are taken from."""

    @property
    def selections(self) -> Sequence[Selection]:
        """Which rows of each."""


Item = TypeVar("Item", bound=HasRows)


class Ahead:
    """Goes through items, while a thread takes the rows of the next one.

    Parameters
    ----------
    takers : sequence of two sequences of RowTaker
        In each one for every array of an item: one set is filled while the other is in
        use.
    """

    def __init__(self, takers: Sequence[Sequence[RowTaker]]) -> None:
        self._helper = Helper("synk-rows")
        self._takers = takers

    def __enter__(self) -> Ahead:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Wait for the thread to end."""
        self._helper.close()

    def through(self, items: Iterable[Item]) -> Iterator[tuple[Item, list[np.ndarray]]]:
        """Return every item with its rows; these are valid until the next one."""
        turn, waiting = 0, None
        for item in items:
            before = None
            if waiting is not None:
                before = self._arrived(waiting)
            self._helper.begin(
                take_rows, self._takers[turn], item.sources, item.selections
            )
            turn = 1 - turn
            if before is not None:
                yield before
            waiting = item
        if waiting is not None:
            yield self._arrived(waiting)

    def _arrived(self, item: Item) -> tuple[Item, list[np.ndarray]]:
        item.start = perf_counter()
        return item, arrived(self._helper.wait())
