"""Commands for the ranks of other nodes, as node 0's master sends them.

Arrays in the arguments are sent as bytes. For a command of which each node needs only
its own ranks' rows, `CODECS` has a `Codec`: a function that selects each node's rows on
node 0, and one that puts them into the arguments on the other nodes. The modules of
such commands, in rooms above, register them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..cluster.cache import NodeCache
from ..cluster.message import (
    SMALL,
    Here,
    Message,
    OfAll,
    OfEach,
    Outgoing,
    Sent,
    Total,
    pickled,
)
from ..memory.partition import spans
from ..memory.segment import Window, check_whole, is_window, key_of, state_of
from .context import Dropped, RankContext


class Encoder:
    """Collects the rows and arrays of one command that only some nodes get."""

    def __init__(self, context: RankContext, cache: NodeCache) -> None:
        self.context, self.cache = context, cache
        self.others = [
            Here(node, *span, context.size)
            for node, span in enumerate(spans(context.comm.ranks))
        ][1:]
        # Among nodes with equally many ranks, the first has the most rows: see `cuts`.
        by_ranks = {here.stop - here.first: here for here in reversed(self.others)}
        self._largest = list(by_ranks.values())
        self.kinds: list[OfEach] = []
        self.rows: list[list[np.ndarray]] = [[] for _ in context.comm.ranks]

    def most_rows(self, totals: Sequence[Total]) -> int:
        """Return how many rows a node gets at most, of calls with `totals` rows."""
        return max(here.rows_of(totals) for here in self._largest)

    def send(self, kind: OfEach, of_node: Callable[[Here], list[np.ndarray]]) -> Sent:
        """Send each node the array, in pieces, of `of_node`; return a stand-in."""
        self.kinds.append(kind)
        for here in self.others:
            shapes = kind.shapes_at(here)
            if shapes:
                pieces = of_node(here)
                if len(pieces) > len(shapes):
                    pieces = [np.concatenate(pieces)]
                pieces = [np.asarray(piece, order="C") for piece in pieces]
                assert [piece.shape for piece in pieces] == shapes, (shapes, kind)
                self.rows[here.node] += pieces
        return Sent(len(self.kinds) - 1)

    def to_one(self, rank: int, value: Any) -> Any:
        """Send a window's array to the node of `rank` alone; return a stand-in."""
        if not is_window(value):
            return value
        array = self.context.array(value)
        node = next((h.node for h in self.others if h.first <= rank < h.stop), 0)
        return self.send(OfEach(array.dtype, array.shape, only=node), lambda _: [array])

    def keep(self, window: Window) -> int | None:
        """Return the number by which nodes keep a copy of a window's array, or None."""
        state = state_of(window)
        if state is None:
            return None
        array = self.context.array(window)
        rows = len(array) if array.ndim else 1
        return self.cache.whole(key_of(window), state, window, rows, array.nbytes)


class Codec(NamedTuple):
    """Functions for a command of which each node gets only the rows of its ranks."""

    # ``encode(args, encoder)``, on node 0, returns the arguments for all other nodes.
    encode: Callable[[tuple, Encoder], tuple]
    # ``decode(args, here, copies)``, on another node, returns the arguments for its
    # ranks; `copies` are the arrays that the node keeps, by number.
    decode: Callable[[tuple, Here, Mapping[int, Any]], tuple]
    # ``combine(context, args, replies)``, there, returns the replies to send back.
    combine: Callable[[RankContext, tuple, list], list] = lambda *given: given[2]


CODECS: dict[Callable, Codec] = {}
"""The codecs of commands, by the command's function."""


def for_nodes(
    work: Callable,
    args: tuple,
    notices: tuple[Dropped, ...],
    launch: int,
    context: RankContext,
    cache: NodeCache,
) -> Outgoing:
    """Return a command as it is sent to the other nodes, with each node's rows."""
    cache.begin()
    for kind, key in notices:
        if kind == "segment":
            cache.forget(key)
    encoder = Encoder(context, cache)
    if work in CODECS:
        args = CODECS[work].encode(args, encoder)
    name = work.__module__, work.__name__
    command = "run", name, args, notices
    data, windows = pickled(command, encoder.keep)
    given: list[tuple[Window, int | None]] = [(window, None) for window in windows]
    given += [(window, number) for number, window in cache.wholes.items()]
    common: list[OfAll | np.ndarray] = []
    arrays = []
    for window, number in given:
        check_whole(window)
        array = np.asarray(context.array(window), order="C")
        if number is None and array.nbytes <= SMALL:
            common.append(array)
        else:
            common.append(OfAll(array.dtype, array.shape, number))
            arrays.append(array)
    if cache.is_repeat(data):
        data = b""
    message = Message(data, common, encoder.kinds, cache.forgotten)
    return Outgoing(message.packed(), arrays, encoder.rows, launch, is_planned=True)
