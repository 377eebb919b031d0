"""What the masters of nodes say to one another in each round, and what follows from it.

All masters go through one stream of rounds. In each every master gives a *head*, and
has those of all. What else they exchange follows from the heads of a round, which are
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
give the command up, and join in the next round. So every master gives as many heads as
any other, whatever happens, and nothing that was begun is left.

What stands here is that alone: generators that yield heads and receive those of all.
They know of no MPI, and tests run a thousand of them in one process.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

IDLE, COMMAND, MEET, JOIN = range(4)

NAMES = "idle", "a command", "meeting", "joining"

_FORMAT = struct.Struct("<qqqq32s")

NBYTES = _FORMAT.size
"""Bytes of a head."""

INLINE = 32
"""Bytes that can ride in a head."""

assert NBYTES == 64

_FIELDS = np.dtype(
    [("kind", "<i8"), ("number", "<i8"), ("word", "<i8"), ("length", "<i8")]
    + [("inline", f"V{INLINE}")]
)


class Stopped(Exception):
    """Another node has given the present command up."""


class Head(NamedTuple):
    """What a master says in a round.

    Attributes
    ----------
    kind : int
    number : int
        Of the command; a check that masters are in the same one.
    word : int
        On which it depends what is done next; see who gives it.
    length : int
        Bytes that follow, or are in `inline` if they are few.
    inline : bytes
    """

    kind: int
    number: int = 0
    word: int = 0
    length: int = 0
    inline: bytes = b""

    def packed(self) -> bytes:
        """Return it as bytes."""
        return _FORMAT.pack(*self)

    @classmethod
    def unpacked(cls, data: bytes) -> Head:
        """Return what `packed` was."""
        return cls(*_FORMAT.unpack(data))

    @property
    def data(self) -> bytes | None:
        """What it says, if it says all."""
        return self.inline[: self.length] if self.length <= INLINE else None


class Heads(Sequence[Head]):
    """The heads of all masters in a round, in the order of nodes.

    A thousand are looked at as arrays: one by one would take longer than the round.

    Parameters
    ----------
    data : numpy.ndarray of uint8, shape (nodes, NBYTES)
        They as bytes; is kept.
    """

    def __init__(self, data: np.ndarray) -> None:
        self._data = data
        self._fields = data.view(_FIELDS)[:, 0]

    @classmethod
    def of(cls, heads: Sequence[Head]) -> Heads:
        """Return heads that are at hand."""
        packed = b"".join([each.packed() for each in heads])
        return cls(np.frombuffer(packed, np.uint8).reshape(-1, NBYTES))

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return Heads(self._data[place])
        return Head.unpacked(self._data[place].tobytes())

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
    def say_all(self) -> bool:
        """Whether nothing that they say follows."""
        return bool((self._fields["length"] <= INLINE).all())

    @property
    def data(self) -> list[bytes] | None:
        """What each master says, if heads say all."""
        if not self.say_all:
            return None
        lengths = self.lengths
        if not any(lengths):
            return [b""] * len(lengths)
        inline = self._fields["inline"].tobytes()
        starts = range(0, len(inline), INLINE)
        return [inline[i : i + n] for i, n in zip(starts, lengths, strict=True)]


def head(kind: int, number: int, data: bytes = b"", word: int = 0) -> Head:
    """Return a head for data, which rides in it or follows."""
    inline = data if len(data) <= INLINE else b""
    return Head(kind, number, word, len(data), inline)


Rounds: TypeAlias = Generator[Head, Heads, Heads]
"""Heads to give, one after the other; receives those of all; returns the last."""


def meeting(own: Head) -> Rounds:
    """Meet the other nodes in one round.

    Raises
    ------
    Stopped
        If a node has given the command up.
    """
    heads = yield own
    if not heads.are_all(MEET):
        raise Stopped
    return heads


def joining(own: Head) -> Rounds:
    """Wait until all nodes have joined."""
    while True:
        heads = yield own
        if heads.are_all(JOIN):
            return heads
