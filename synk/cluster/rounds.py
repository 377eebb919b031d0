"""What the masters of nodes say to one another in each round, and what follows from it.

All masters go through one stream of rounds. In each every master gives a *header*, and
has those of all. What else they exchange follows from the headers of a round, which are
the same for all, so that no exchange is begun by some of them alone:

``IDLE``
    A node that waits for a command; node 0 alone can give a ``COMMAND`` then.
``COMMAND``
    Node 0 has one: its bytes follow. All nodes run it.
``MEET``
    The ranks of a node have come to where they meet those of others.
``JOIN``
    A node has done its share, or has failed.

A command ends when all join. Who fails joins at once; others, who meet, see that there,
give the command up, and join in the next round. So every master gives as many headers
as any other, whatever happens, and nothing that was begun is left.
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
"""Bytes that can ride in a header."""

_FIELDS = np.dtype(
    [("kind", "<i8"), ("number", "<i8"), ("word", "<i8"), ("length", "<i8")]
    + [("inline", f"V{INLINE}")]
)


class Header(NamedTuple):
    """What a master says in a round."""

    kind: int
    number: int = 0  # of the command; a check that masters are in the same one
    word: int = 0  # on which it depends what is done next; see who gives it
    length: int = 0  # of bytes that follow, or are in `inline` if they are few
    inline: bytes = b""

    @classmethod
    def of(cls, kind: int, number: int, data: bytes = b"", word: int = 0) -> Header:
        """Return a header for data, which rides in it or follows."""
        inline = data if len(data) <= INLINE else b""
        return cls(kind, number, word, len(data), inline)

    def packed(self) -> bytes:
        """Return it as bytes."""
        return _FORMAT.pack(*self)

    @property
    def data(self) -> bytes | None:
        """What it says, if it says all."""
        return self.inline[: self.length] if self.length <= INLINE else None


class Headers(Sequence[Header]):
    """The headers of all masters in a round, in the order of nodes.

    A thousand are looked at as arrays, shape (nodes, NBYTES): one by one would take
    longer than the round.
    """

    def __init__(self, data: np.ndarray) -> None:
        self._data = data
        self._fields = data.view(_FIELDS)[:, 0]

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, node: Any) -> Any:
        return Header(*_FORMAT.unpack(self._data[node].tobytes()))

    def are_all(self, kind: int) -> bool:
        """Tell whether all are of a kind."""
        return bool((self._fields["kind"] == kind).all())

    def agree_on(self, word: int) -> bool:
        """Tell whether all have said this word."""
        return bool((self._fields["word"] == word).all())

    @property
    def are_of_one_command(self) -> bool:
        """Whether all masters are in the same command."""
        numbers = self._fields["number"]
        return bool((numbers == numbers[0]).all())

    @property
    def words(self) -> list[int]:
        """What each master has given as its word."""
        return self._fields["word"].tolist()

    @property
    def lengths(self) -> list[int]:
        """The bytes that each master says."""
        return self._fields["length"].tolist()

    @property
    def data(self) -> list[bytes] | None:
        """What each master says; None if more follows than the headers."""
        lengths = self.lengths
        if max(lengths) > INLINE:
            return None
        if not any(lengths):
            return [b""] * len(lengths)
        inline = self._fields["inline"].tobytes()
        starts = range(0, len(inline), INLINE)
        return [inline[i : i + n] for i, n in zip(starts, lengths, strict=True)]
