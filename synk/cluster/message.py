"""The format of commands to other nodes, and of their replies.

Node 0 sends one message to all nodes, whose length does not depend on their number.
Large arrays follow it: first those for all nodes, then for each node the rows of its
own ranks. Each node finds the number of its rows from the number of all ranks' rows
(`Here`). It receives arrays into its shared memory (`inbox`), and its ranks get windows
of that in place of node 0's windows. A reply has arrays in the places of windows.
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
"""The most bytes of an array that is a part of the message."""

FEW = 4096
"""The most bytes of a reply's array that is stacked with others of its dtype and shape,
so that node 0 reads all ranks' replies faster."""

Total: TypeAlias = tuple[int, int]
"""The number of all ranks' rows, and the block at whose multiples they are cut between
ranks; see `partition.cuts`."""


class Here(NamedTuple):
    """The ranks of a node: `first` to `stop`, of `size` ranks of all nodes."""

    node: int
    first: int
    stop: int
    size: int

    def rows(self, total: Total) -> tuple[int, int]:
        """Return the first row of the node's ranks, and the one after their last."""
        rows, block = total
        first, stop = (
            bound(rows, self.size, i, block) for i in (self.first, self.stop)
        )
        return first, stop

    def spans(self, totals: Sequence[Total]) -> list[tuple[int, int]]:
        """Return `rows` for each of several calls."""
        if len(totals) < 8:  # numpy takes longer for a few
            return list(map(self.rows, totals))
        rows, blocks = np.array(totals).T
        ends = [bound(rows, self.size, i, blocks) for i in self[1:3]]
        return list(zip(*(end.tolist() for end in ends), strict=True))

    def rows_of(self, totals: Sequence[Total]) -> int:
        """Return the number of the node's rows in several calls together."""
        return sum(stop - first for first, stop in self.spans(totals))


class OfAll(NamedTuple):
    """An array for all nodes, whose bytes follow the message."""

    dtype: np.dtype
    shape: tuple[int, ...]
    number: int | None  # of the copy of a `Data`; None if it is not kept


class OfEach(NamedTuple):
    """An array of which each node gets its own ranks' rows."""

    dtype: np.dtype
    shape: tuple[int, ...]  # of one row; with `only`, of the whole array
    totals: tuple[Total, ...] = ()  # for each call that uses the array
    only: int | None = None  # the only node that gets the array, whole
    number: int | None = None  # of the copy that keeps the rows; None: not kept
    # The slices that are kept, one for each total. The rows of each are sent by
    # themselves, so that node 0 need not copy them together.
    spans: tuple[Span, ...] = ()

    def shapes_at(self, here: Here) -> list[tuple[int, ...]]:
        """Return the shapes of the arrays a node receives: one, by slice, or none."""
        if self.only is not None:
            return [self.shape] if self.only == here.node else []
        if self.spans:
            lengths = [stop - first for first, stop in here.spans(self.totals)]
            return [(length, *self.shape) for length in lengths]
        return [(here.rows_of(self.totals), *self.shape)]


class Message(NamedTuple):
    """The message to all nodes: a command, and a description of its arrays."""

    data: bytes  # the command, see `pickled`; empty to repeat the last one
    common: Sequence[OfAll | np.ndarray] = ()  # small arrays are a part of the message
    rows: Sequence[OfEach] = ()
    forgotten: Sequence[int] = ()  # numbers of copies to give up

    @property
    def following(self) -> list[OfAll]:
        """The arrays for all nodes that follow the message."""
        return [each for each in self.common if isinstance(each, OfAll)]

    def packed(self) -> bytes:
        """Return the message as bytes; none to repeat the last one without arrays."""
        return pickle.dumps(tuple(self), protocol=5) if any(self) else b""

    @classmethod
    def unpacked(cls, data: bytes) -> Message:
        """Return the message in bytes that `packed` has returned."""
        return cls(*pickle.loads(data)) if data else cls(b"")


class Outgoing(NamedTuple):
    """A command for node 0 to send, with its arrays."""

    message: bytes
    common: Sequence[np.ndarray] = ()  # arrays to follow, for all nodes
    rows: Sequence[Sequence[np.ndarray]] = ()  # for each node; none for node 0
    launch: int = 0  # the launch's number on the ranks, the word of the header
    is_planned: bool = False  # the `NodeCache` was used, and is told when it is sent


def plain(command: Any) -> Outgoing:
    """Return a command without arrays."""
    return Outgoing(Message(pickle.dumps(command, protocol=5)).packed())


# -- commands and replies as bytes, without their arrays

_WINDOW, _SENT, _KEPT, _BOUNDS = range(4)


class Sent(NamedTuple):
    """Stands for array `place` of `Message.rows`; a node puts its window, or None."""

    place: int


class Cuts(NamedTuple):
    """Stands for the bounds of parts of rows; a node computes them by `cuts`."""

    rows: int
    parts: int
    block: int = 1


Windows: TypeAlias = dict[str, tuple[int, Window]]
"""The windows in a command and their numbers, by `repr`."""


def pickled(
    command: Any, keep: Callable[[Window], int | None]
) -> tuple[bytes, list[Window]]:
    """Return a command as bytes, with numbers for windows, and these windows.

    Objects that the other end cannot import are pickled by value. ``keep(window)``
    returns the number of nodes' copy of a window's array, or None; it may be called
    more than once for a window.
    """
    windows: Windows = {}

    def dumps_by(make: Any, message: object) -> bytes:
        windows.clear()  # a failed first way may have added some
        file = io.BytesIO()
        pickler = make(file, protocol=5)
        pickler.windows, pickler.keep = windows, keep
        pickler.dump(message)
        return file.getvalue()

    ways = partial(dumps_by, _ByName), partial(dumps_by, _ByValue)
    data = channel.dumps(command, *ways)
    return data, [window for _, window in windows.values()]


class _PutsWindowsAside:
    """A mixin of both picklers, which replaces windows by numbers."""

    windows: Windows
    keep: Callable[[Window], int | None]

    def persistent_id(self, value: Any) -> tuple | None:
        """Return the stand-in of a window, a `Sent` or a `Cuts`; None for others."""
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
    """Return the command in `data`, with this node's windows or arrays put in.

    `windows` has those of arrays for all nodes, `sent` those of this node's rows, and
    `copies` the node's `Copy` of data, by number.
    """
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
        """Return the object for a stand-in that `persistent_id` has returned."""
        kind, *what = pid
        return self.found[kind](*what)


def dumps(reply: Any, locate: Callable[[Window], np.ndarray] | None = None) -> bytes:
    """Return a reply as bytes; ``locate(window)`` returns a window's array."""
    data, windows = pickled(reply, lambda _: None)
    assert locate is not None or not windows
    arrays = [np.asarray(locate(w), order="C") for w in windows] if locate else []
    # Small arrays of one dtype and shape are stacked, with their numbers: reading a
    # stack takes as long as reading one array.
    alike: dict[Any, list[int]] = {}
    for number, array in enumerate(arrays):
        kind = (array.dtype, array.shape) if array.nbytes <= FEW else number
        alike.setdefault(kind, []).append(number)
    stacks = []
    for some in alike.values():
        stack = arrays[some[0]][None]  # a single array is not copied
        if some[1:]:
            stack = np.stack([arrays[i] for i in some], dtype=stack.dtype)
        stacks.append((stack, some))
    return pickle.dumps((data, stacks), protocol=5)


def loads(data: bytes | memoryview) -> Any:
    """Return the reply in bytes of `dumps`, with arrays in place of windows."""
    given, stacks = pickle.loads(data)
    if not stacks:
        return pickle.loads(given)  # faster: node 0 reads a thousand
    # `...` gives views, also of arrays without dimensions.
    pairs = [(i, stack[k, ...]) for stack, some in stacks for k, i in enumerate(some)]
    return unpickled(given, dict(pairs))
