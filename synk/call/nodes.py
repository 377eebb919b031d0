"""Calls on other nodes: the inputs that node 0 sends them, and the outputs they return.

The message of a call names arrays, and the rows of each call. Another node gets the
rows of an input in one of these ways:

* Of `Data` that nobody can write to, the node may have a copy of all rows
  (`NodeCache`), and takes rows from it as node 0 does. If rows are selected by numbers,
  node 0 sends it the numbers of its own ranks' rows.
* Of slices of such `Data`, node 0 sends the rows of the node's ranks, once; the node
  keeps them.
* Other rows of the node's ranks are sent with each command, call after call.

In arrays that were sent, row i of a call's batch is row ``i - offset``, with an offset
for each call, as in rows that the master has staged for the ranks of its own machine.

If an output is large, a node combines the values of its own ranks and sends the result.
Small outputs are sent as the ranks have them, and combined in the order of ranks, as on
one machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..cluster.cache import Span
from ..cluster.comm import goes_by_rank
from ..cluster.inbox import Copy
from ..cluster.message import Cuts, Here, OfEach, Sent, Total
from ..memory.partition import Selection, count, cuts, part
from ..memory.segment import Window, check_whole, key_of, state_of
from ..ranks.context import RankContext
from ..ranks.to_nodes import CODECS, Codec, Encoder
from ..reduce_ops import combine
from .arguments import CallRows, InputSource, located
from .call_worker import worker_call
from .outputs import IN_FIRST
from .run_worker import worker_run


class InParts(NamedTuple):
    """The `InputSource`, in a message to nodes, of an input that they have in part."""

    sent: Any
    """The rows that come with this command and are not kept."""
    copy: int | None
    """The number of the node's copy of slices, if it keeps some."""
    state: int | None
    """The state of the kept rows; see `InputSource`."""
    span: tuple[int, int] | None
    """The rows of a minibatch, in place of those that the call selects."""


class SentNumbers(NamedTuple):
    """The selection, in a message to nodes, of calls that select by row numbers.

    `sent` has the numbers of a node's ranks, call after call; None if not needed.
    """

    sent: Any


# -- on node 0


def encode(args: tuple, encoder: Encoder) -> tuple:
    """Return the message of a call, or of a run's list of calls, for all nodes."""
    (job, rows, *others), *rest = args
    if isinstance(rows, list):
        rows = _encoded(rows, job, encoder)
    else:
        (rows,) = _encoded([rows], job, encoder)
    return (job, rows, *others), *rest


def _encoded(rows: Sequence[tuple], job: tuple, encoder: Encoder) -> list[tuple]:
    """Return the `CallRows` of calls with the same sources, for all nodes."""
    number, subset, kind, *_ = job
    calls = [CallRows(*call) for call in rows]
    parts = encoder.context.size
    bounds: list[Any] = [
        Cuts(call.total, parts, _block_of(call.bounds, job)) for call in calls
    ]
    programs = encoder.context.functions[number]
    if calls[0].sources and not programs.cut(kind, subset).inputs_read:
        calls = _CallEncoder(encoder, calls, job).encoded()
    pairs = zip(calls, bounds, strict=True)
    return [tuple(call._replace(bounds=cut)) for call, cut in pairs]


def _block_of(bounds: list[int], job: tuple) -> int:
    """Return the rows of a block if ranks' bounds are at blocks, otherwise 1."""
    block = job[-1] or 1
    is_at_blocks = bounds == cuts(bounds[-1], len(bounds) - 1, block)
    return block if is_at_blocks else 1


class _CallEncoder:
    """Encodes the rows of calls whose ranks read only their own rows."""

    def __init__(self, encoder: Encoder, calls: Sequence[CallRows], job: tuple) -> None:
        self._encoder, self._calls = encoder, calls
        locate = encoder.context.array
        self._chosen: list[Any] = [located(locate, call.selection) for call in calls]
        self._totals = [(call.total, _block_of(call.bounds, job)) for call in calls]

    def encoded(self) -> list[CallRows]:
        """Return the calls with sources and selections for all nodes."""
        sources = [
            self._input(InputSource(*source)) for source in self._calls[0].sources
        ]
        calls = [call._replace(sources=sources) for call in self._calls]
        numbered = [
            k for k, rows in enumerate(self._chosen) if not isinstance(rows, slice)
        ]
        numbers = SentNumbers(None)
        if numbered and any(type(each) is tuple and not each[2] for each in sources):
            numbers = self._numbers(numbered)
        for k in numbered:
            calls[k] = calls[k]._replace(selection=numbers)
        return calls

    def _numbers(self, numbered: list[int]) -> SentNumbers:
        """Send each node the row numbers of its ranks, for the calls `numbered`."""
        totals = tuple(self._totals[k] for k in numbered)

        def of_node(here: Here) -> list[np.ndarray]:
            pairs = zip(numbered, here.spans(totals), strict=True)
            return [self._chosen[k][slice(*span)] for k, span in pairs]

        kind = OfEach(np.dtype(np.int64), (), totals)
        return SentNumbers(self._encoder.send(kind, of_node))

    def _input(self, source: InputSource) -> Any:
        """Return a source for all nodes; send and keep its rows as needed."""
        encoder, window = self._encoder, source.array
        array = encoder.context.array(window)
        chosen, span = self._chosen, None
        if source.is_batch:  # never in a run
            span = -source.offset, self._totals[0][0] - source.offset
            chosen = [slice(*span)]
        state, copy = state_of(window) if isinstance(window, tuple) else None, None
        if state is not None:
            by_number = sum(count(r) for r in chosen if not isinstance(r, slice))
            data = key_of(window)
            size = len(array), array.nbytes
            if encoder.cache.whole(data, state, window, *size, by_number) is not None:
                return tuple(source)
            copy = self._keep_slices(window, state, array, chosen)
            if encoder.cache.is_whole(data):
                return tuple(source)
        sent = self._send(array, chosen, None if copy is None else key_of(window))
        if sent is None:
            return tuple(source)
        if sent[0] is not None and isinstance(window, tuple):
            check_whole(window)
        return InParts(sent[0], copy, source.state, span)

    def _keep_slices(
        self, window: Window, state: int, array: np.ndarray, chosen: Sequence[Selection]
    ) -> int | None:
        """Send nodes their rows of slices to keep; return the number of the copy."""
        encoder, width = self._encoder, array[:1].nbytes
        spans: dict[Span, int] = {}
        for rows, (_, block) in zip(chosen, self._totals, strict=True):
            if isinstance(rows, slice) and rows.start < rows.stop:
                most = encoder.most_rows([(rows.stop - rows.start, block)])
                spans[rows.start, rows.stop, block] = most * width
        data = key_of(window)
        number, new = encoder.cache.slices(data, state, window, array.nbytes, spans)
        if new and number is not None:
            check_whole(window)
            totals = tuple((stop - start, block) for start, stop, block in new)
            slices = [slice(*span[:2]) for span in new]
            kept = {"number": number, "spans": tuple(new)}
            self._send_rows(array, slices, totals, **kept)
        return number

    def _send(
        self, array: np.ndarray, chosen: Sequence[Selection], data: Any
    ) -> tuple[Sent | None] | None:
        """Send rows that nodes do not keep; return (Sent,), or (None,) without any.

        Return None if it is less to send all rows of the array.
        """
        cache, left, totals = self._encoder.cache, [], []
        seen: set[Span] = set()
        for rows, total in zip(chosen, self._totals, strict=True):
            if isinstance(rows, slice):
                span = rows.start, rows.stop, total[1]
                if span in seen or (data is not None and cache.has(data, span)):
                    continue
                seen.add(span)
            left.append(rows)
            totals.append(total)
        if not left:
            return (None,)
        # Several epochs select the same rows: all rows at once may be fewer.
        if self._encoder.most_rows(totals) > len(array):
            return None
        return (self._send_rows(array, left, tuple(totals)),)

    def _send_rows(
        self,
        array: np.ndarray,
        chosen: Sequence[Selection],
        totals: tuple[Total, ...],
        **kept: Any,
    ) -> Sent:
        def of_node(here: Here) -> list[np.ndarray]:
            pairs = zip(chosen, here.spans(totals), strict=True)
            return [array[part(rows, *span)] for rows, span in pairs]

        kind = OfEach(array.dtype, array.shape[1:], totals, **kept)
        return self._encoder.send(kind, of_node)


# -- on another node


def decode(args: tuple, here: Here, copies: Mapping[int, Copy]) -> tuple:
    """Return the message of a call, or of a run, for the ranks of this node."""
    (job, rows, *others), *rest = args
    if isinstance(rows, list):
        rows = _decoded(rows, here, copies, job)
    else:
        (rows,) = _decoded([rows], here, copies, job)
    return (job, rows, *others), *rest


def _decoded(
    calls: Sequence[tuple], here: Here, copies: Mapping[int, Copy], job: tuple
) -> list[tuple]:
    """Return the `CallRows` of calls, with windows of this node's memory."""
    sources = calls[0][2]
    inputs = [
        _ArrivedInput(each, copies) if type(each) is InParts else None
        for each in sources
    ]
    found, numbers = [], 0
    for selection, bounds, _, batch_s in calls:
        total, block = bounds[-1], _block_of(bounds, job)
        start, stop = here.rows((total, block))
        span = None
        if type(selection) is not SentNumbers:
            span = selection
        elif selection.sent is None:
            selection = 0, total
        else:
            selection = selection.sent, start - numbers
            numbers += stop - start
        own = sources
        if any(inputs):
            own = [
                tuple(each) if mine is None else mine.source(span, start, stop, block)
                for each, mine in zip(sources, inputs, strict=True)
            ]
        found.append((selection, bounds, own, batch_s))
    return found


class _ArrivedInput:
    """An input of which this node has parts; goes through the calls in order."""

    def __init__(self, parts: InParts, copies: Mapping[int, Copy]) -> None:
        self._parts = parts
        copy = None if parts.copy is None else copies.get(parts.copy)
        self._window = None if copy is None else copy.window
        self._starts = {} if copy is None else copy.starts
        self._seen: dict[Span, int] = {}
        self._next = 0

    def source(
        self, chosen: tuple[int, int] | None, start: int, stop: int, block: int
    ) -> tuple:
        """Return the `InputSource` of the next call, as a tuple.

        `chosen` is the slice that the call selects, None if it selects by row numbers.
        This node has rows `start` to `stop` of the batch.
        """
        parts = self._parts
        chosen = chosen if parts.span is None else parts.span
        span: Span | None = None if chosen is None else (*chosen, block)
        if span in self._starts:
            first = start - self._starts[span]
            # With the copy's number, as a later copy may have other slices.
            state = None if parts.state is None else (parts.state, parts.copy)
            return tuple(InputSource(self._window, first, True, state))
        if span in self._seen:
            return tuple(InputSource(parts.sent, start - self._seen[span], True))
        if span is not None:
            self._seen[span] = self._next
        first = start - self._next
        self._next += stop - start
        return tuple(InputSource(parts.sent, first, True))


# -- outputs


def combined_here(
    context: RankContext, args: tuple, replies: list[tuple | None]
) -> list[tuple | None]:
    """Return the replies to `worker_call` for node 0, with large outputs combined."""
    present = [reply for reply in replies if reply is not None]
    weights = [rows for _, rows in present]
    if len(present) < 2 or not sum(weights):  # no rows: each rank must count by itself
        return replies
    number, subset, *_ = args[0][0]
    ops = context.functions[number].spec.wire_ops
    made: dict[int, np.ndarray] = {}
    for i in subset:
        op = ops[i]
        if op is None or op == "gather" or i not in present[0][0]:
            continue  # outputs in trees are not in the replies by their position
        values = [context.array(outputs[i]) for outputs, _ in present]
        first = values[0]
        are_alike = all(v.shape == first.shape for v in values)  # if not, node 0 raises
        if are_alike and not goes_by_rank(op, first.dtype, first.nbytes):
            made[i] = np.asarray(combine(op, values, weights))
    if not made:
        return replies
    found: list[tuple | None] = []
    of_node: dict[int, Any] = made
    for reply in replies:
        if reply is not None:
            reply = {**reply[0], **of_node}, reply[1]
            of_node = dict.fromkeys(made, IN_FIRST)
        found.append(reply)
    return found


CODECS |= {
    worker_call: Codec(encode, decode, combined_here),
    worker_run: Codec(encode, decode),
}
