"""Which rows of data that stays as it is other nodes have, from commands before.

A likelihood is called with the same rows again and again, an epoch goes through the
same batches. Nobody has to say so: what a script cannot have written to since it was
sent (`Data` knows) is not sent again. Of a `Data` a node has a copy, either of

* the rows of its own in slices that calls had: each is sent to the nodes that compute
  on it, once; or of
* all rows, when calls have asked by numbers, as shuffled batches do, for as many rows
  as there are: the next epoch has others in each batch, of which a node would have few.

Node 0 plans in a `Draft` what a command changes. That holds from the moment on in which
the command is sent: an interrupt before leaves everything as it was. Numbers and slices
are the same for all nodes, and each finds by itself which rows of a slice are its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ..memory.segment import Window

Key: TypeAlias = tuple[int, int]
"""Of a `Data`: that of its segment."""

Span: TypeAlias = tuple[int, int, int]
"""Where the rows of a slice begin and stop, and by how many it is cut between ranks: a
rank has a multiple of these; see `partition.cuts`."""


@dataclass
class Copy:
    """What all other nodes have of one `Data`, as node 0 knows it.

    Attributes
    ----------
    number : int
        What nodes know it by.
    state : int
        Which values it has; see `Lending`.
    was_whole : bool
        Whether all rows were sent, and had other values then.
    is_whole : bool
    spans : set of Span
        Otherwise: slices of which each node has its own rows.
    nbytes : int
        What a node needs for it, at the most.
    asked : int
        Rows that were asked for by their numbers, and sent.
    """

    number: int
    state: int
    was_whole: bool = False
    is_whole: bool = False
    spans: set[Span] = field(default_factory=set)
    nbytes: int = 0
    asked: int = 0


class Keeping:
    """What node 0 knows of the rows that others keep.

    Parameters
    ----------
    room : int
        Bytes that every node may keep.

    Attributes
    ----------
    copies : dict
        By `Key`.
    command : bytes
        That which was sent last, without its arrays.
    """

    def __init__(self, room: int = 0) -> None:
        self.command = b""
        self.room = room
        self.copies: dict[Key, Copy] = {}
        self.numbers = itertools.count()
        self.forgotten: list[int] = []
        self._last: list[Key] = []
        self._is_full = False

    def sent(self, draft: Draft) -> None:
        """Take note that the nodes have got the command of a draft."""
        self.forgotten, self.command = [], draft.command
        for data in draft.gone:
            self.copies.pop(data, None)
        for data, copy in draft.copies.items():
            copy.spans.update(draft.spans.get(data, ()))
            self.copies[data] = copy
        self._last = list(draft.copies)
        self.room -= draft.used

    def told(self, words: Sequence[int]) -> None:
        """Take note of what nodes say at the end of a command: see `Inbox.word`."""
        if any(word < 0 for word in words):
            # Some have the rows of the last command and some have not.
            for data in self._last:
                if data in self.copies:
                    self.forgotten.append(self.copies.pop(data).number)
            self.room, self.command, self._is_full = 0, b"", True
        elif any(words) and not self._is_full:
            self.room = min(word for word in words if word)


class Draft:
    """What a command changes of what nodes keep.

    Attributes
    ----------
    forgotten : list of int
        Copies that nodes give up, by number.
    wholes : dict
        By number: the windows of `Data` that all nodes get a copy of.
    command : bytes
        That which is sent.
    copies, spans, gone, used
        For `Keeping.sent`: copies with other rows or numbers than before, by `Key`;
        further slices of them; data that is no more; bytes of a node for all that.
    """

    def __init__(self, keeping: Keeping) -> None:
        self._keeping = keeping
        self.command = b""
        self.forgotten = list(keeping.forgotten)
        self.wholes: dict[int, Window] = {}
        self.copies: dict[Key, Copy] = {}
        self.spans: dict[Key, dict[Span, None]] = {}
        self.gone: set[Key] = set()
        self.used = 0

    def is_again(self, command: bytes) -> bool:
        """Take note of what is sent; tell whether it is that of the last time."""
        self.command = command
        return command == self._keeping.command

    def forget(self, data: Key) -> None:
        """Have nodes give up the rows of data that is no more."""
        known = self._keeping.copies.get(data)
        if known is not None and data not in self.gone:
            self.gone.add(data)
            self.forgotten.append(known.number)

    def whole(
        self, data: Key, state: int, window: Window, rows: int, nbytes: int, asked: int
    ) -> int | None:
        """Return by which number nodes have all rows; None if they are not to.

        Parameters
        ----------
        data : Key
        state : int
        window : Window
        rows, nbytes : int
            Of the whole data.
        asked : int
            Rows that this command asks for by their numbers.
        """
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
        spans: Sequence[tuple[Span, int]],
    ) -> tuple[int | None, list[Span]]:
        """Return by which number nodes have rows of slices, and of which it is new.

        None is returned where they keep no rows of this data. A slice that is too much
        is left out, and is not among those that nodes have.

        Parameters
        ----------
        data : Key
        state : int
        window : Window
        nbytes : int
            Of all rows.
        spans : sequence of (Span, int)
            Slices, and the bytes of a node for each.
        """
        copy = self._copy(data, state)
        if copy is None or copy.is_whole:
            return None if copy is None else copy.number, []
        further = self.spans.get(data, {})
        new = {
            span: of_node
            for span, of_node in spans
            if span not in copy.spans and span not in further
        }
        overlap = copy.nbytes + sum(new.values()) > nbytes  # then all rows take less
        if overlap and self._make_whole(data, copy, window, nbytes) is not None:
            return copy.number, []
        further = self.spans.setdefault(data, further)
        found: list[Span] = []
        for span, of_node in new.items():
            if self.used + of_node <= self._keeping.room and (
                copy.nbytes + of_node <= nbytes
            ):
                self.used += of_node
                copy.nbytes += of_node
                further[span] = None
                found.append(span)
        return copy.number, found

    def has_got(self, data: Key, state: int, spans: Mapping[Span, int]) -> int:
        """Take note that nodes have rows of slices, which they got by themselves.

        Parameters
        ----------
        data : Key
        state : int
        spans : mapping of Span to int
            Slices, and the bytes of a node for each.

        Returns
        -------
        int
            By which number they are to know them.
        """
        copy = self._copy(data, state)
        assert copy is not None
        self.spans[data] = dict.fromkeys(spans)
        copy.nbytes = sum(spans.values())
        self.used += copy.nbytes
        return copy.number

    def is_whole(self, data: Key) -> bool:
        """Tell whether nodes have, or get, all rows of data that was asked for."""
        return data in self.copies and self.copies[data].is_whole

    def has(self, data: Key, span: Span) -> bool:
        """Tell whether nodes have, or get, their rows of a slice."""
        return span in self.copies[data].spans or span in self.spans[data]

    def _copy(self, data: Key, state: int) -> Copy | None:
        """Return a copy of these values; None if this command has others already."""
        found = self.copies.get(data)
        if found is not None:
            return found if found.state == state else None
        keeping = self._keeping
        known = None if data in self.gone else keeping.copies.get(data)
        if known is not None and known.state == state:
            found = replace(known)
        else:
            found = Copy(next(keeping.numbers), state)
            if known is not None:
                self.forgotten.append(known.number)
                found.was_whole = known.is_whole or known.was_whole
        self.copies[data] = found
        return found

    def _make_whole(
        self, data: Key, copy: Copy, window: Window, nbytes: int
    ) -> int | None:
        """Have nodes have all rows in place of some; None if that is too much."""
        # Other arguments of this command may be slices of the copy that there is.
        if data in self.spans or self.used + nbytes > self._keeping.room:
            return None
        self.used += nbytes
        self.forgotten.append(copy.number)
        copy.number = next(self._keeping.numbers)
        copy.is_whole, copy.spans, copy.nbytes = True, set(), nbytes
        self.wholes[copy.number] = window
        return copy.number
