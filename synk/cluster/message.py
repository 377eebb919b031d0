"""A command as it travels to other nodes: what all get, and what each gets alone.

Node 0 sends one message to all, which is as long for two nodes as for a thousand. Large
arrays follow it: those that all get, and then to each node the rows of its own ranks.
How many these are each finds by itself, from the number of rows of all ranks together
(`Here`). They go into shared memory of that node (`inbox`), of which its ranks get
windows in place of node 0's. In replies arrays come along, in the places of windows.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import cloudpickle
import numpy as np

from ..memory.partition import bound, cuts
from ..memory.segment import Window, is_window
from ..workers import channel
from .cache import Span

SMALL = 1 << 14
"""Bytes of an array up to which it is a part of the message."""

FEW = 4096
"""Bytes of a reply's array up to which it travels in a stack of those that are alike:
node 0 reads those of all ranks."""

Total: TypeAlias = tuple[int, int]
"""How many rows all ranks have together, and by how many these are cut between them;
see `partition.cuts`."""


class Here(NamedTuple):
    """Which ranks a node has: from `first` to `stop`, of `size` ranks of all nodes."""

    node: int
    first: int
    stop: int
    size: int

    def rows(self, total: Total) -> tuple[int, int]:
        """Return where the rows of a node begin and stop, of so many of all ranks."""
        rows, block = total
        first, stop = (
            bound(rows, self.size, i, block) for i in (self.first, self.stop)
        )
        return first, stop

    def spans(self, totals: Sequence[Total]) -> list[tuple[int, int]]:
        """Return the same for each of several calls."""
        if len(totals) < 8:  # numpy takes longer for so few
            return list(map(self.rows, totals))
        rows, blocks = np.array(totals).T
        ends = [bound(rows, self.size, i, blocks) for i in self[1:3]]
        return list(zip(*(end.tolist() for end in ends), strict=True))

    def rows_of(self, totals: Sequence[Total]) -> int:
        """Return how many rows a node has in several calls."""
        return sum(stop - first for first, stop in self.spans(totals))


class OfAll(NamedTuple):
    """An array that all nodes get, and whose bytes follow the message."""

    dtype: np.dtype
    shape: tuple[int, ...]
    number: int | None  # by which they keep it, as a copy of data, if it has one


class OfEach(NamedTuple):
    """An array of which each node gets its own rows."""

    dtype: np.dtype
    shape: tuple[int, ...]  # of one row; of the whole array where one node gets it
    totals: tuple[Total, ...] = ()  # for each call whose rows these are
    only: int | None = None  # the node that gets it, if no other does
    number: int | None = None  # by which nodes keep the rows, in a copy of data
    # Of slices that are kept, as many as totals. Their rows are sent one by one, so
    # that node 0 need not copy them.
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
    """What all nodes get."""

    data: bytes  # the command, see `pickled`; nothing, if it is the last one again
    common: Sequence[OfAll | np.ndarray] = ()  # small arrays are a part of the message
    rows: Sequence[OfEach] = ()
    forgotten: Sequence[int] = ()  # copies that nodes give up

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
    """A command that node 0 is to send."""

    message: bytes
    common: Sequence[np.ndarray] = ()  # whose bytes all nodes get
    rows: Sequence[Sequence[np.ndarray]] = ()  # of each node, none of node 0
    launch: int = 0  # its number on the ranks, which the header of the round says
    is_planned: bool = False  # with the `NodeCache`


def plain(command: Any) -> Outgoing:
    """Return a command that names no arrays."""
    return Outgoing(Message(pickle.dumps(command, protocol=5)).packed())


# -- commands and replies as bytes, without their arrays

_WINDOW, _SENT, _KEPT, _BOUNDS = range(4)


class Sent(NamedTuple):
    """Stands for an array that a node gets alone: in its place comes a window, or None.

    It has the place of that among all such arrays of the command.
    """

    place: int


class Cuts(NamedTuple):
    """Stands for where the parts of rows begin and end, as `cuts` returns them."""

    rows: int
    parts: int
    block: int = 1


Windows: TypeAlias = dict[str, tuple[int, Window]]
"""Those that a command names, with their numbers."""


def pickled(
    command: Any, keep: Callable[[Window], int | None]
) -> tuple[bytes, list[Window]]:
    """Return a command as bytes, and the windows that it names by numbers."""
    # What the other end cannot import is pickled by value. `keep` returns by which
    # number nodes have a copy of what is in a window, or None; it may be asked more
    # than once.
    windows: Windows = {}

    def dumps_by(make: Any, message: object) -> bytes:
        windows.clear()  # of the other way, which may have come to some
        file = io.BytesIO()
        pickler = make(file, protocol=5)
        pickler.windows, pickler.keep = windows, keep
        pickler.dump(message)
        return file.getvalue()

    ways = partial(dumps_by, _ByName), partial(dumps_by, _ByValue)
    data = channel.dumps(command, *ways)
    return data, [window for _, window in windows.values()]


class _PutsWindowsAside:
    """Puts windows aside: a part of both picklers."""

    windows: Windows
    keep: Callable[[Window], int | None]

    def persistent_id(self, value: Any) -> tuple | None:
        """Return what stands for a window, and for what nodes find by themselves."""
        if type(value) is Sent:
            return _SENT, value.place
        if type(value) is Cuts:
            return _BOUNDS, *value
        if not is_window(value):
            return None
        number = self.keep(value)
        if number is not None:
            return _KEPT, number
        key = repr(value)  # the dtype of records is a list
        number, _ = self.windows.setdefault(key, (len(self.windows), value))
        return _WINDOW, number


class _ByName(_PutsWindowsAside, pickle.Pickler):
    pass


class _ByValue(_PutsWindowsAside, cloudpickle.Pickler):
    pass


def unpickled(
    data: bytes,
    windows: Sequence | Mapping[int, Any],
    sent: Sequence = (),
    copies: Mapping[int, Any] = MappingProxyType({}),
) -> Any:
    """Return the command that has come, with what is to stand for its arrays."""
    # Those are the arrays of all nodes, those of this, and by number what has the
    # `window` of rows that the node keeps.
    unpickler = _Unpickler(io.BytesIO(data))
    unpickler.found = {
        _WINDOW: windows.__getitem__,
        _SENT: sent.__getitem__,
        _KEPT: lambda number: copies[number].window,
        _BOUNDS: cuts,
    }
    return unpickler.load()


class _Unpickler(pickle.Unpickler):
    found: dict[int, Callable]

    def persistent_load(self, pid: tuple) -> Any:
        """Return what takes the place of what `persistent_id` has told of."""
        kind, *what = pid
        return self.found[kind](*what)


def dumps(reply: Any, locate: Callable[[Window], np.ndarray] | None = None) -> bytes:
    """Return a reply as bytes, with the arrays that its windows describe."""
    data, windows = pickled(reply, lambda _: None)
    assert locate is not None or not windows
    arrays = [np.asarray(locate(w), order="C") for w in windows] if locate else []
    # Few bytes go in stacks, of arrays of one dtype and shape and with their numbers:
    # to read a stack takes as long as to read an array.
    alike: dict[Any, list[int]] = {}
    for number, array in enumerate(arrays):
        kind = (array.dtype, array.shape) if array.nbytes <= FEW else number
        alike.setdefault(kind, []).append(number)
    stacks = []
    for some in alike.values():
        stack = arrays[some[0]][None]  # of one that is alone no copy
        if some[1:]:
            stack = np.stack([arrays[i] for i in some], dtype=stack.dtype)
        stacks.append((stack, some))
    return pickle.dumps((data, stacks), protocol=5)


def loads(data: bytes | memoryview) -> Any:
    """Return what a reply says, arrays in the place of windows."""
    given, stacks = pickle.loads(data)
    if not stacks:
        return pickle.loads(given)  # faster: node 0 reads a thousand
    # Each is a view, not a scalar where it has no dimensions.
    pairs = [(i, stack[k, ...]) for stack, some in stacks for k, i in enumerate(some)]
    return unpickled(given, dict(pairs))
