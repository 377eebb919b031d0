"""Where a node puts what comes with commands, and what it keeps of that.

It comes right into shared memory, which the node's ranks read: what is kept into
segments of its own, and all else to where the node's session has such things.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from ..memory.limits import tightest
from ..memory.segment import Segment, Window
from .cache import Span
from .launcher import Node
from .message import Here, Message, OfAll, OfEach

UNKNOWN = 1 << 40
"""Bytes that are taken to be free where the system does not say how many are."""


def free_memory() -> int:
    """Return how many bytes of memory nobody uses on this machine."""
    limit = tightest()
    return UNKNOWN if limit is None else limit.free


def to_keep(free: int, kept: int, nodes: Sequence[Node], node: int) -> int:
    """Return how many bytes more a node may keep: half of what it would have free.

    It keeps `kept` bytes already, and has `free` on its machine, with other nodes
    there.
    """
    hosts = [each.host for each in nodes]
    share = (free + kept) // (2 * hosts.count(hosts[node]))
    return max(1, share - kept)


class Copy:
    """A copy of some rows of one `Data`, one after the other, in shared memory."""

    def __init__(self, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self.starts: dict[Span, int] = {}  # where this node's rows of slices begin
        self._dtype, self._shape = dtype, shape
        self.rows = 0
        self.segment = Segment(1)

    @property
    def window(self) -> Window:
        """All its rows."""
        array = self.segment.array(self._dtype, (self.rows, *self._shape))
        return self.segment.window(array)

    def add(self, rows: int) -> np.ndarray:
        """Make room for further rows, and return it."""
        width = math.prod(self._shape) * self._dtype.itemsize
        self.segment.grow((self.rows + rows) * width)
        shape, offset = (rows, *self._shape), self.rows * width
        self.rows += rows
        return self.segment.array(self._dtype, shape, offset)


class WholeCopy:
    """A copy of all rows of one `Data`, of whatever shape."""

    def __init__(self, dtype: np.dtype, shape: tuple[int, ...]) -> None:
        self.segment = Segment(math.prod(shape) * dtype.itemsize)
        self.array = self.segment.array(dtype, shape)
        self.window = self.segment.window(self.array)


class Inbox:
    """What a node gets with commands.

    Parameters
    ----------
    room : callable
        Makes room for what is not kept: given dtypes and shapes, returns arrays in
        shared memory, and their windows.

    Attributes
    ----------
    copies : dict
        Copies of data, by number; see `NodeCache`.
    gone : list of tuple of int
        The keys of segments that the node's ranks may unmap.
    error : BaseException or None
        Why there was no room for what came with the last command.
    has_changed : bool
        Whether that has had the node keep other rows than before.
    windows, sent : list
        Where the arrays lie that all nodes got with it, but for what is kept, and those
        that were sent to this node alone: None for what is kept, or was not sent.
    """

    def __init__(
        self, room: Callable[[list], tuple[list[np.ndarray], list[Window]]]
    ) -> None:
        self._room = room
        self.copies: dict[int, Copy | WholeCopy] = {}
        self.gone: list[tuple[int, int]] = []
        self.error: BaseException | None = None
        self.has_changed = False
        self.windows: list[Window] = []
        self.sent: list[Window | None] = []

    def word(self, nodes: Sequence[Node], node: int) -> int:
        """Return what node 0 is told: how many bytes may be kept, or -1 for an error.

        That is 0, and tells nothing, where nothing has changed.
        """
        if self.error is not None:
            return -1
        if not self.has_changed:
            return 0
        kept = sum(copy.segment.nbytes for copy in self.copies.values())
        return to_keep(free_memory(), kept, nodes, node)

    def make_room(self, message: Message, here: Here) -> list[np.ndarray]:
        """Return arrays for the bytes that follow a message, in their order.

        Nothing is raised here: the bytes come in any case.
        """
        self.error, self.has_changed = None, False
        for number in message.forgotten:
            copy = self.copies.pop(number, None)
            if copy is not None:
                self.gone.append(copy.segment.key)
                self.has_changed = True
        shapes = [kind.shapes_at(here) for kind in message.rows]
        try:
            return self._places(message, shapes)
        except Exception as error:
            self.error = error
            kinds = [(kind.dtype, kind.shape) for kind in message.following]
            for each, some in zip(message.rows, shapes, strict=True):
                kinds += [(each.dtype, shape) for shape in some]
            return [np.empty(shape, dtype) for dtype, shape in kinds]

    def _places(
        self, message: Message, shapes: Sequence[list[tuple[int, ...]]]
    ) -> list[np.ndarray]:
        passing = [
            (each.dtype, each.shape)
            for each in message.common
            if isinstance(each, np.ndarray) or each.number is None
        ]
        for kind, some in zip(message.rows, shapes, strict=True):
            if kind.number is None:
                passing += [(kind.dtype, shape) for shape in some]
        places, windows = self._room(passing) if passing else ([], [])
        left = iter(zip(places, windows, strict=True))
        self.windows, self.sent, found = [], [], []
        for each in message.common:
            if isinstance(each, OfAll) and each.number is not None:
                self.has_changed = True
                whole = self.copies[each.number] = WholeCopy(each.dtype, each.shape)
                found.append(whole.array)
                continue
            place, window = next(left)
            self.windows.append(window)
            if isinstance(each, np.ndarray):
                place[...] = each
            else:
                found.append(place)
        for kind, some in zip(message.rows, shapes, strict=True):
            mine: Window | None = None
            if kind.number is not None:
                found += self._keep_rows(kind, [shape[0] for shape in some])
            elif some:
                place, mine = next(left)
                found.append(place)
            self.sent.append(mine)
        return found

    def _keep_rows(self, kind: OfEach, lengths: Sequence[int]) -> list[np.ndarray]:
        """Make room for rows of slices in the copy that a node has, or in a new one."""
        assert kind.number is not None
        self.has_changed = True
        copy = self.copies.get(kind.number)
        if not isinstance(copy, Copy):
            copy = self.copies[kind.number] = Copy(kind.dtype, kind.shape)
        start, place = copy.rows, copy.add(sum(lengths))
        ends = np.cumsum([0, *lengths]).tolist()
        for span, end in zip(kind.spans, ends, strict=False):
            copy.starts[span] = start + end
        return [place[i:j] for i, j in itertools.pairwise(ends)]
