"""Rounds: the masters of nodes exchange headers, which determine what follows.

All masters take part in the same sequence of rounds. In a round every master gives a
*header*, and gets the headers of all. Any further collectives of the round follow from
these headers, which are the same for all, so all masters begin the same ones:

``IDLE``
    The node waits for a command; only node 0 may give a ``COMMAND`` in this round.
``COMMAND``
    Node 0 sends a command: its bytes follow. All nodes run it.
``MEET``
    The node's ranks have reached a meeting with the ranks of other nodes.
``JOIN``
    The node has done its share of the command, or has failed.

A command ends with a round in which all join. A node that fails joins at once; others,
which meet, see it join, give the command up, and join in the next round. So every
master gives equally many headers, whatever happens, and ends all that it has begun.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

IDLE, COMMAND, MEET, JOIN = range(4)

NAMES = "idle", "a command", "meeting", "joining"

_FORMAT = struct.Struct("<qqqq32s")

NBYTES = _FORMAT.size
"""Bytes of a header: a cache line."""

INLINE = 32
"""Bytes of data that fit into a header."""

_FIELDS = np.dtype(
    [("kind", "<i8"), ("number", "<i8"), ("word", "<i8"), ("length", "<i8")]
    + [("inline", f"V{INLINE}")]
)


class Header(NamedTuple):
    """A master's message in a round."""

    kind: int
    number: int = 0  # of the command; a check that masters are in the same one
    word: int = 0  # a number whose meaning the caller of the round defines
    length: int = 0  # of the data, which follow, or are in `inline` if they fit
    inline: bytes = b""

    @classmethod
    def of(cls, kind: int, number: int, data: bytes = b"", word: int = 0) -> Header:
        """Return a header for `data`, which it contains if they fit."""
        inline = data if len(data) <= INLINE else b""
        return cls(kind, number, word, len(data), inline)

    def packed(self) -> bytes:
        """Return the header as bytes."""
        return _FORMAT.pack(*self)

    @property
    def data(self) -> bytes | None:
        """The data, or None if they follow the header."""
        return self.inline[: self.length] if self.length <= INLINE else None


class Headers(Sequence[Header]):
    """The headers of all masters in a round, in the order of nodes.

    They are kept as an array of shape (nodes, NBYTES): to unpack a thousand one by one
    would take longer than the round.
    """

    def __init__(self, data: np.ndarray) -> None:
        self._data = data
        self._fields = data.view(_FIELDS)[:, 0]

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, node: Any) -> Any:
        return Header(*_FORMAT.unpack(self._data[node].tobytes()))

    def are_all(self, kind: int) -> bool:
        """Return whether all headers are of this kind."""
        return bool((self._fields["kind"] == kind).all())

    def agree_on(self, word: int) -> bool:
        """Return whether all headers have this word."""
        return bool((self._fields["word"] == word).all())

    @property
    def are_of_one_command(self) -> bool:
        """Whether all masters are in the same command."""
        numbers = self._fields["number"]
        return bool((numbers == numbers[0]).all())

    @property
    def words(self) -> list[int]:
        """The word of each header."""
        return self._fields["word"].tolist()

    @property
    def lengths(self) -> list[int]:
        """The number of bytes of each master's data."""
        return self._fields["length"].tolist()

    @property
    def data(self) -> list[bytes] | None:
        """The data of each master; None if those of a master follow the headers."""
        lengths = self.lengths
        if max(lengths) > INLINE:
            return None
        if not any(lengths):
            return [b""] * len(lengths)
        inline = self._fields["inline"].tobytes()
        starts = range(0, len(inline), INLINE)
        return [inline[i : i + n] for i, n in zip(starts, lengths, strict=True)]
