"""`Inbox`: memory for the arrays that a node receives with commands.

Arrays are received right into shared memory, which the node's ranks read. Copies of
`Data`, which are kept for later commands, have segments of their own; other arrays go
to the memory of the node's session.
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
"""Bytes assumed to be free if the system does not say how many are."""


def free_memory() -> int:
    """Return the free bytes of memory of this machine."""
    limit = tightest()
    return UNKNOWN if limit is None else limit.free


def to_keep(free: int, kept: int, nodes: Sequence[Node], node: int) -> int:
    """Return how many more bytes a node may keep, of half of `free` + `kept`."""
    hosts = [each.host for each in nodes]  # nodes of one machine share its memory
    share = (free + kept) // (2 * hosts.count(hosts[node]))
    return max(1, share - kept)


class Copy:
    """A copy of rows of one `Data`, in shared memory.

    If `whole`, `array` has room for all rows, of `shape`. Otherwise it has this node's
    rows of slices, one after the other, and `shape` is that of a row.
    """

    def __init__(
        self, dtype: np.dtype, shape: tuple[int, ...], whole: bool = False
    ) -> None:
        self.starts: dict[Span, int] = {}  # a slice's first row in `array`
        self._dtype, self._shape = dtype, shape
        self.rows = 0
        self.segment = Segment(math.prod(shape) * dtype.itemsize if whole else 1)
        self.array = self.segment.array(dtype, shape if whole else (0, *shape))

    @property
    def window(self) -> Window:
        """The window of `array`."""
        return self.segment.window(self.array)

    def add(self, rows: int) -> np.ndarray:
        """Make room for `rows` more rows of slices, and return that part of `array`."""
        start, self.rows = self.rows, self.rows + rows
        width = math.prod(self._shape) * self._dtype.itemsize
        self.segment.grow(self.rows * width)
        self.array = self.segment.array(self._dtype, (self.rows, *self._shape))
        return self.array[start:]


class Inbox:
    """The memory for arrays that come with commands, on another node than 0.

    ``room(kinds)`` makes memory for arrays that are not kept: given pairs of dtype and
    shape, it returns arrays in shared memory, and their windows.
    """

    def __init__(
        self, room: Callable[[list], tuple[list[np.ndarray], list[Window]]]
    ) -> None:
        self._room = room
        self.copies: dict[int, Copy] = {}  # by the numbers of `NodeCache`
        # The keys of segments that the node's ranks may unmap.
        self.gone: list[tuple[int, int]] = []
        # For the last command: the error if there was no memory for its arrays; whether
        # `copies` has changed; the windows of the arrays sent to all nodes; and those
        # of the arrays sent to this node alone, None for rows in `copies`.
        self.error: BaseException | None = None
        self.has_changed = False
        self.windows: list[Window] = []
        self.sent: list[Window | None] = []

    def word(self, nodes: Sequence[Node], node: int) -> int:
        """Return the word of the node's `JOIN` header, for `NodeCache.note_words`.

        It is the number of further bytes that the node may keep, -1 after an error, or
        0 if the command has not changed `copies`.
        """
        if self.error is not None:
            return -1
        if not self.has_changed:
            return 0
        kept = sum(copy.segment.nbytes for copy in self.copies.values())
        return to_keep(free_memory(), kept, nodes, node)

    def make_room(self, message: Message, here: Here) -> list[np.ndarray]:
        """Return arrays to receive the bytes that follow a message, in their order."""
        # Nothing is raised here, as the bytes must be received in any case.
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
            # This node will not run the command, and node 0 forgets copies: see `word`.
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
        # Before the first session `room` cannot be called, and nothing needs it.
        places, windows = self._room(passing) if passing else ([], [])
        left = iter(zip(places, windows, strict=True))
        self.windows, self.sent, found = [], [], []
        for each in message.common:
            if isinstance(each, OfAll) and each.number is not None:
                self.has_changed = True
                copy = self.copies[each.number] = Copy(each.dtype, each.shape, True)
                found.append(copy.array)
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
        """Return room for rows of slices, in the node's copy of data or a new one."""
        assert kind.number is not None
        self.has_changed = True
        copy = self.copies.get(kind.number)
        if copy is None:
            copy = self.copies[kind.number] = Copy(kind.dtype, kind.shape)
        start, place = copy.rows, copy.add(sum(lengths))
        ends = np.cumsum([0, *lengths]).tolist()
        for span, end in zip(kind.spans, ends, strict=False):
            copy.starts[span] = start + end
        return [place[i:j] for i, j in itertools.pairwise(ends)]
