"""Which rows of data that stays as it is other nodes have, from commands before.

What a script cannot have written to since it was sent (`Data` knows) is not sent again.
Of a `Data` a node has a copy, either of

* the rows of its own in slices that calls had: each is sent to the nodes that compute
  on it, once; or of
* all rows, when calls have asked by numbers, as shuffled batches do, for as many rows
  as there are: the next epoch has others in each batch, of which a node would have few.

Numbers and slices are the same for all nodes, and each finds by itself which rows of a
slice are its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ..memory.segment import Window

Key: TypeAlias = tuple[int, int]
"""Of a `Data`: that of its segment."""

Span: TypeAlias = tuple[int, int, int]
"""Where the rows of a slice begin and stop, and by how many it is cut between ranks: a
rank has a multiple of these; see `partition.cuts`."""


@dataclass
class Cached:
    """What all other nodes have of one `Data`, as node 0 knows it."""

    number: int  # what nodes know it by
    state: int  # which values it has; see `Lending`
    was_whole: bool = False  # all rows were sent, and had other values then
    is_whole: bool = False
    spans: set[Span] = field(default_factory=set)  # else each has its rows of these
    nbytes: int = 0  # what a node needs for it, at the most
    asked: int = 0  # rows that were asked for by their numbers, and sent


class NodeCache:
    """What node 0 knows of the rows that other nodes keep, `room` bytes of each.

    Every command is planned between `begin` and `sent`. One that was not sent, as an
    interrupt came, has changed what is said here and nothing there: then all nodes
    forget all that they have with the next.
    """

    def __init__(self, room: int = 0) -> None:
        self.room = room
        self._copies: dict[Key, Cached] = {}
        self._numbers = itertools.count()
        self._is_full = False
        self._is_sent = True
        self._command = self._planned = b""
        # Of the command: copies that nodes give up with it, and windows of `Data` that
        # all nodes get a copy of, by number.
        self.forgotten: list[int] = []
        self.wholes: dict[int, Window] = {}
        # What the command uses, and of which it has slices.
        self._used: set[Key] = set()
        self._cut: set[Key] = set()

    # -- a command

    def begin(self) -> None:
        """Begin to plan a command."""
        if not self._is_sent:
            # Those of commands before are among them: which ones is not known any more.
            self.forgotten += [copy.number for copy in self._copies.values()]
            self._copies.clear()
            self._command = b""
        self._is_sent = False
        self.wholes, self._used, self._cut = {}, set(), set()

    def is_again(self, command: bytes) -> bool:
        """Take note of what is to be sent; tell whether it is that of the last time."""
        self._planned = command
        return command == self._command

    def sent(self) -> None:
        """Take note that the nodes have got the command; no interrupt comes here."""
        self.forgotten, self._command = [], self._planned
        self._is_sent = True

    def told(self, words: Sequence[int]) -> None:
        """Take note of what nodes say at the end of a command: see `Inbox.word`."""
        if any(word < 0 for word in words):
            # Some have the rows of the last command and some have not.
            for data in self._used:
                self.forget(data)
            self.room, self._command, self._is_full = 0, b"", True
        elif any(words) and not self._is_full:
            self.room = min(word for word in words if word)

    # -- what it uses

    def forget(self, data: Key) -> None:
        """Have nodes give up the rows of data that is no more."""
        known = self._copies.pop(data, None)
        if known is not None:
            self.forgotten.append(known.number)

    def whole(
        self,
        data: Key,
        state: int,
        window: Window,
        rows: int,
        nbytes: int,
        asked: int | None = None,
    ) -> int | None:
        """Return by which number nodes have all rows; None if they are not to."""
        # The command asks for so many of the rows by their numbers; by default for all,
        # which all ranks read: they are counted once, however often they are named.
        if asked is None:
            asked = 0 if data in self._used else rows
        copy = self._copy(data, state)
        if copy is None or copy.is_whole:
            return None if copy is None else copy.number
        copy.asked += asked
        # To send all of it to all nodes takes node 0 as long as to send each batch of
        # an epoch to those that compute on it. Where that was in vain before, as
        # someone writes to the data after each epoch, the values are to stay first.
        if copy.asked < (2 * rows if copy.was_whole else rows):
            return None
        return self._make_whole(data, copy, window, nbytes)

    def slices(
        self,
        data: Key,
        state: int,
        window: Window,
        nbytes: int,
        spans: Mapping[Span, int],
    ) -> tuple[int | None, list[Span]]:
        """Return by which number nodes have rows of slices, and of which it is new."""
        # The number is None where they keep no rows of this data. A slice that is too
        # much, by its bytes of a node in `spans`, is not among those that nodes have.
        copy = self._copy(data, state)
        if copy is None or copy.is_whole:
            return None if copy is None else copy.number, []
        new = {span: size for span, size in spans.items() if span not in copy.spans}
        overlap = copy.nbytes + sum(new.values()) > nbytes  # then all rows take less
        if overlap and self._make_whole(data, copy, window, nbytes) is not None:
            return copy.number, []
        self._cut.add(data)
        found: list[Span] = []
        for span, of_node in new.items():
            if of_node <= self.room and copy.nbytes + of_node <= nbytes:
                self.room -= of_node
                copy.nbytes += of_node
                copy.spans.add(span)
                found.append(span)
        return copy.number, found

    def has_got(self, data: Key, state: int, spans: Mapping[Span, int]) -> int:
        """Return the number by which nodes have rows that they got by themselves."""
        copy = self._copy(data, state)
        assert copy is not None
        copy.spans, copy.nbytes = set(spans), sum(spans.values())
        self.room -= copy.nbytes
        return copy.number

    def is_whole(self, data: Key) -> bool:
        """Tell whether nodes have, or get, all rows of data that the command uses."""
        return data in self._used and self._copies[data].is_whole

    def has(self, data: Key, span: Span) -> bool:
        """Tell whether nodes have, or get, their rows of a slice."""
        return span in self._copies[data].spans

    def _copy(self, data: Key, state: int) -> Cached | None:
        """Return a copy of these values; None if this command has others already."""
        known = self._copies.get(data)
        if known is None or known.state != state:
            if known is not None and data in self._used:
                return None
            copy = self._copies[data] = Cached(next(self._numbers), state)
            if known is not None:
                self.forgotten.append(known.number)
                copy.was_whole = known.is_whole or known.was_whole
            known = copy
        self._used.add(data)
        return known

    def _make_whole(
        self, data: Key, copy: Cached, window: Window, nbytes: int
    ) -> int | None:
        """Have nodes have all rows in place of some; None if that is too much."""
        # Other arguments of this command may be slices of the copy that there is.
        if data in self._cut or nbytes > self.room:
            return None
        self.room -= nbytes
        self.forgotten.append(copy.number)
        copy.number = next(self._numbers)
        copy.is_whole, copy.spans, copy.nbytes = True, set(), nbytes
        self.wholes[copy.number] = window
        return copy.number
