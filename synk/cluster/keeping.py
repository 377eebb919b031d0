"""Which rows of data that stays as it is other nodes have, from calls before.

A likelihood is called with the same rows again and again, an epoch goes through the
same batches. Nobody has to say so: what a script cannot have written to since it was
sent (`Data` knows) is not sent again.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from typing import NamedTuple


class Rows(NamedTuple):
    """Rows that a node keeps, or is to keep.

    Attributes
    ----------
    number : int
        What both ends know them by.
    are_there : bool
        Whether the node has them.
    """

    number: int
    are_there: bool


class Keeping:
    """What node 0 knows of the rows that others keep."""

    def __init__(self) -> None:
        self._numbers: dict[tuple, int] = {}
        self._bytes: dict[tuple[tuple[int, int], int], int] = defaultdict(int)
        self._states: dict[tuple[int, int], int] = {}
        self._new: list[tuple] = []
        self._next = itertools.count()
        self._forgotten: list[int] = []

    def of(
        self,
        node: int,
        data: tuple[int, int],
        state: int,
        rows: tuple[int, int],
        nbytes: int,
        most: int,
    ) -> Rows | None:
        """Return how a node is told of rows; None if it is not to keep them.

        Parameters
        ----------
        node : int
        data : tuple of int
            The data, by its segment.
        state : int
            Its values: others have another one.
        rows : tuple of int
            Where they begin and stop.
        nbytes : int
            Of these rows.
        most : int
            Bytes that a node keeps of the data.
        """
        if self._states.setdefault(data, state) != state:
            self.forget(data)
            self._states[data] = state
        key = data, node, rows
        number = self._numbers.get(key)
        if number is not None:
            return Rows(number, key not in self._new)
        if self._bytes[data, node] + nbytes > most:
            return None
        self._bytes[data, node] += nbytes
        self._numbers[key] = number = next(self._next)
        self._new.append(key)
        return Rows(number, False)

    def forget(self, data: tuple[int, int]) -> None:
        """Have nodes give up the rows of data that is gone, or has other values."""
        self._states.pop(data, None)
        for key in [key for key in self._numbers if key[0] == data]:
            self._forgotten.append(self._numbers.pop(key))
        for place in [place for place in self._bytes if place[0] == data]:
            del self._bytes[place]

    def forgotten(self) -> list[int]:
        """Return what nodes are to give up."""
        return list(self._forgotten)

    def sent(self) -> None:
        """Take note that the nodes have got the command that tells them so."""
        self._new.clear()
        self._forgotten.clear()
