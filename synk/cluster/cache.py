"""`NodeCache`: node 0's table of the rows of `Data` that other nodes have copies of.

Rows that the script cannot have written to since they were sent (see `Lending`) are not
sent again. A node has one copy of a `Data`, with either

* its own ranks' rows of the slices in calls: each row is sent once, to the node that
  computes on it; or
* all rows, once calls have selected as many rows by their numbers as there are, as with
  shuffled batches: in the next epoch a node needs other rows.

Copies have numbers. Numbers and slices are the same for all nodes, and each node finds
by itself which rows of a slice are its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from ..memory.segment import Window

Key: TypeAlias = tuple[int, int]
"""The key of a `Data`: that of its segment."""

Span: TypeAlias = tuple[int, int, int]
"""A slice: its first row, the row after its last, and the block at whose multiples it
is cut between ranks; see `partition.cuts`."""


@dataclass
class Cached:
    """Node 0's entry for other nodes' copies of one `Data`."""

    number: int  # of the copy, on all nodes
    state: int  # of the values; see `Lending.state`
    was_whole: bool = False  # a former copy, of other values, had all rows
    is_whole: bool = False  # nodes have all rows
    spans: set[Span] = field(default_factory=set)  # else each has its rows of these
    nbytes: int = 0  # the most that the copy takes on a node
    asked: int = 0  # rows that commands have selected by their numbers


class NodeCache:
    """Node 0's table of other nodes' copies; each node may keep `room` more bytes.

    Every command is planned between `begin` and `note_sent`. If an interrupt keeps a
    planned command from being sent, the table has changes that nodes do not have: then
    the next command makes all nodes give up all copies.
    """

    def __init__(self, room: int = 0) -> None:
        self.room = room
        self._copies: dict[Key, Cached] = {}
        self._numbers = itertools.count()
        self._is_full = False
        self._is_sent = True
        self._command = self._planned = b""
        # For the command: the numbers of copies that nodes give up, and the windows of
        # `Data` that it sends whole, by number.
        self.forgotten: list[int] = []
        self.wholes: dict[int, Window] = {}
        # The data that the command uses, and those of which it has slices.
        self._used: set[Key] = set()
        self._cut: set[Key] = set()

    # -- a command

    def begin(self) -> None:
        """Begin to plan a command."""
        if not self._is_sent:
            # Which of these the nodes have is not known any more.
            self.forgotten += [copy.number for copy in self._copies.values()]
            self._copies.clear()
            self._command = b""
        self._is_sent = False
        self.wholes, self._used, self._cut = {}, set(), set()

    def is_repeat(self, command: bytes) -> bool:
        """Note the command to be sent; return whether it equals the last one sent."""
        self._planned = command
        return command == self._command

    def note_sent(self) -> None:
        """Note that the command was sent; called where no interrupt can come."""
        self.forgotten, self._command = [], self._planned
        self._is_sent = True

    def note_words(self, words: Sequence[int]) -> None:
        """Note the nodes' words at the end of a command: see `Inbox.word`."""
        if any(word < 0 for word in words):
            # Only some nodes have the rows of this command.
            for data in self._used:
                self.forget(data)
            self.room, self._command, self._is_full = 0, b"", True
        elif any(words) and not self._is_full:
            self.room = min(word for word in words if word)

    # -- the data that a command uses

    def forget(self, data: Key) -> None:
        """Have nodes give up their copies of data, with the next command."""
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
        """Return the number of the copy if nodes have, or now get, all rows, else None.

        The command selects `asked` rows by numbers; with None every rank reads all,
        which count once in a command.
        """
        if asked is None:
            asked = 0 if data in self._used else rows
        copy = self._copy(data, state)
        if copy is None or copy.is_whole:
            return None if copy is None else copy.number
        copy.asked += asked
        # Sending all rows to all nodes takes node 0 as long as sending an epoch's rows
        # to the nodes that compute on them. If a former whole copy became outdated, as
        # when the script writes after each epoch, wait for twice as many rows.
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
        """Return the number of nodes' copy for slices of data, and the slices to send.

        `spans` has the slices, and the most bytes of each on a node. The number is None
        if nodes keep no rows of these values. Slices without room are not kept.
        """
        copy = self._copy(data, state)
        if copy is None or copy.is_whole:
            return None if copy is None else copy.number, []
        new = {span: size for span, size in spans.items() if span not in copy.spans}
        overlap = copy.nbytes + sum(new.values()) > nbytes  # all rows would take less
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

    def add_read(self, data: Key, state: int, spans: Mapping[Span, int]) -> int:
        """Return the number of a copy with rows of slices that nodes have read."""
        copy = self._copy(data, state)
        assert copy is not None
        copy.spans, copy.nbytes = set(spans), sum(spans.values())
        self.room -= copy.nbytes
        return copy.number

    def is_whole(self, data: Key) -> bool:
        """Return whether nodes have, or get, all rows of data the command uses."""
        return data in self._used and self._copies[data].is_whole

    def has(self, data: Key, span: Span) -> bool:
        """Return whether nodes have, or get, their rows of a slice."""
        return span in self._copies[data].spans

    def _copy(self, data: Key, state: int) -> Cached | None:
        """Return the entry for these values; None if the command uses others, too."""
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
        """Replace nodes' copies by whole ones; return the number, None without room."""
        # Other arguments of this command may be slices of the present copy.
        if data in self._cut or nbytes > self.room:
            return None
        self.room -= nbytes
        self.forgotten.append(copy.number)
        copy.number = next(self._numbers)
        copy.is_whole, copy.spans, copy.nbytes = True, set(), nbytes
        self.wholes[copy.number] = window
        return copy.number
