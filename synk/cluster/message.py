"""A command as it travels to other nodes: what all get, and what each gets alone.

Node 0 sends one message to all, which is as long for two nodes as for a thousand. Large
arrays follow it: those that all get, and then to each node the rows of its own ranks.
How many these are each finds by itself, from the number of rows of all ranks together
(`Here`).
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ..memory.partition import bound
from .keeping import Draft, Span

SMALL = 1 << 14
"""Bytes of an array up to which it is a part of the message."""


Total: TypeAlias = tuple[int, int]
"""How many rows all ranks have together, and by how many these are cut between them;
see `partition.cuts`."""

FEW = 8
"""Calls of which numpy takes longer than Python."""


class Here(NamedTuple):
    """Which ranks a node has.

    Attributes
    ----------
    node : int
    first, stop : int
        The first of its ranks, and that of the next node.
    size : int
        The number of ranks of all nodes.
    """

    node: int
    first: int
    stop: int
    size: int

    def rows(self, total: Total) -> tuple[int, int]:
        """Return where the rows of a node begin and stop, of so many of all ranks."""
        rows, block = total
        first, stop = (bound(rows, self.size, i, block) for i in self._ends)
        return first, stop

    @property
    def _ends(self) -> tuple[int, int]:
        return self.first, self.stop

    def spans(self, totals: Sequence[Total]) -> list[tuple[int, int]]:
        """Return the same for each of several calls."""
        if len(totals) < FEW:
            return list(map(self.rows, totals))
        rows, blocks = np.array(totals).T
        ends = [bound(rows, self.size, i, blocks) for i in self._ends]
        return list(zip(*(end.tolist() for end in ends), strict=True))

    def rows_of(self, totals: Sequence[Total]) -> int:
        """Return how many rows a node has in several calls."""
        return sum(stop - first for first, stop in self.spans(totals))


class OfAll(NamedTuple):
    """An array that all nodes get, and whose bytes follow the message.

    Attributes
    ----------
    dtype : numpy.dtype
    shape : tuple of int
    number : int or None
        By which nodes keep it as a copy of data.
    """

    dtype: np.dtype
    shape: tuple[int, ...]
    number: int | None


class OfEach(NamedTuple):
    """An array of which each node gets its own rows.

    Attributes
    ----------
    dtype : numpy.dtype
    shape : tuple of int
        Of one row, or of the whole array where one node alone gets it.
    totals : tuple of Total
        For each call whose rows these are, one after the other.
    only : int or None
        The node that gets it, if no other does.
    number : int or None
        By which nodes keep the rows, in a copy of data.
    spans : tuple of Span
        If they do: the slices whose rows these are, as many as totals. They are sent
        one by one, so that node 0 need not copy them.
    """

    dtype: np.dtype
    shape: tuple[int, ...]
    totals: tuple[Total, ...] = ()
    only: int | None = None
    number: int | None = None
    spans: tuple[Span, ...] = ()

    def shapes_at(self, here: Here) -> list[tuple[int, ...]]:
        """Return the shapes of what a node gets: one, or those of slices, or none."""
        if self.only is not None:
            return [self.shape] if self.only == here.node else []
        if self.spans:
            lengths = [stop - first for first, stop in here.spans(self.totals)]
            return [(length, *self.shape) for length in lengths]
        return [(here.rows_of(self.totals), *self.shape)]


class Message(NamedTuple):
    """What all nodes get.

    Attributes
    ----------
    data : bytes
        The command, pickled, with arrays by their numbers; see `translate`. Nothing, if
        it is the last one again.
    common : list of (OfAll or numpy.ndarray)
        What all nodes get; small arrays are a part of the message.
    rows : list of OfEach
    forgotten : list of int
        Copies that nodes give up.
    """

    data: bytes
    common: Sequence[OfAll | np.ndarray] = ()
    rows: Sequence[OfEach] = ()
    forgotten: Sequence[int] = ()

    @property
    def following(self) -> list[OfAll]:
        """What all nodes get, and is no part of the message."""
        return [each for each in self.common if isinstance(each, OfAll)]

    def packed(self) -> bytes:
        """Return it as bytes: none, where nothing has to be said."""
        return pickle.dumps(tuple(self), protocol=5) if any(self) else b""

    @classmethod
    def unpacked(cls, data: bytes) -> Message:
        """Return a message that has come."""
        return cls(*pickle.loads(data)) if data else cls(b"")


class Outgoing(NamedTuple):
    """A command that node 0 is to send.

    Attributes
    ----------
    message : bytes
        See `Message`.
    common : sequence of numpy.ndarray
        Whose bytes all nodes get.
    rows : sequence of sequence of numpy.ndarray
        Whose bytes each node gets, none for node 0.
    draft : Draft or None
        What follows from it for what nodes keep.
    launch : int
        The number of a launch on the ranks, which the head of the round says.
    """

    message: bytes
    common: Sequence[np.ndarray] = ()
    rows: Sequence[Sequence[np.ndarray]] = ()
    draft: Draft | None = None
    launch: int = 0


def plain(command: Any) -> Outgoing:
    """Return a command that names no arrays."""
    return Outgoing(Message(pickle.dumps(command, protocol=5)).packed())
