"""The rows of calls for other nodes: each gets its own ranks', and no others.

A command that computes names arrays, and which of their rows the call has. For another
node these rows are taken from the arrays, one after the other, and sent to it alone.
Its ranks take theirs from that as they would from the arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..cluster.keeping import Keeping
from ..cluster.keeping import Rows as Kept
from ..cluster.translate import ForNode, NodeRows, Parted
from ..memory.partition import part
from ..memory.segment import key_of
from ..programs.programs import kind_of_call
from ..ranks.context import RankContext
from ..ranks.to_nodes import PARTED
from ..variables.data import state_of
from .rows import located
from .runs import Call, worker_run
from .share import worker_call


def parted_call(
    args: tuple, context: RankContext, ranks: Sequence[int], keeping: Keeping
) -> Parted | None:
    """Return a call with the rows that each node gets; see `ranks.to_nodes`."""
    ((number, subset, rows, *others),) = args
    selection, bounds, sources = rows
    if not sources or _reads_all(context, number, subset, others[2]):
        return None
    found = _parts(context, [Call(selection, bounds, None)], sources, ranks, keeping)
    made = []
    for (called,), told, _ in found:
        of_node = called.selection, bounds, told
        made.append(((number, subset, of_node, *others),))
    return Parted(made, [given for *_, given in found])


def parted_run(
    args: tuple, context: RankContext, ranks: Sequence[int], keeping: Keeping
) -> Parted | None:
    """Return many calls with the rows that each node gets; see `ranks.to_nodes`."""
    launch, number, subset, calls, sources, constants, slices, *others = args
    if not sources or _reads_all(context, number, subset, slices):
        return None
    found = _parts(context, calls, sources, ranks, keeping)
    before, after = (launch, number, subset), (constants, slices, *others)
    made = [(*before, some, told, *after) for some, told, _ in found]
    return Parted(made, [given for *_, given in found])


PARTED |= {worker_call: parted_call, worker_run: parted_run}


def _reads_all(context: RankContext, number: int, subset: tuple, slices: int) -> bool:
    """Tell whether ranks read rows of other ranks, too."""
    programs = context.registry.functions[number]
    return bool(programs.cut(kind_of_call(slices, context.size), subset).inputs_read)


def _parts(
    context: RankContext,
    calls: Sequence[Call],
    sources: Sequence[tuple],
    ranks: Sequence[int],
    keeping: Keeping,
) -> list[tuple[list[Call], list[tuple], ForNode]]:
    """Return for each node the calls and sources as it is told, and what it is sent."""
    arrays = [context.array(array) for array, *_ in sources]
    selections = [located(context.array, call.selection) for call in calls]
    found, rank = [], 0
    for node, count in enumerate(ranks):
        first, rank = rank, rank + count
        spans = [(call.bounds[first], call.bounds[rank]) for call in calls]
        mine: list[Call] = []
        base = 0
        for call, (start, stop) in zip(calls, spans, strict=True):
            # Row i of the call is row `base + i - start` of what the node gets.
            mine.append(call._replace(selection=(base - start, base - start + stop)))
            base += stop - start
        told, given = [], ForNode([], [])
        for (window, offset, is_batch, *_), array in zip(sources, arrays, strict=True):
            chosen: list[Any] = [
                slice(start - offset, stop - offset)
                if is_batch
                else part(selection, start, stop)
                for selection, (start, stop) in zip(selections, spans, strict=True)
            ]
            rows = None
            if node and not is_batch and len(chosen) == 1:
                rows = _kept(keeping, node, window, array, chosen[0])
            number = None if rows is None else rows.number
            if rows is not None and rows.are_there:
                stands = NodeRows(-1, number)
            else:
                stands = NodeRows(given.kept.count(None), number)
                if node:
                    given.arrays.append(_joined([array[some] for some in chosen]))
                    given.kept.append(number)
            told.append((stands, 0, False, None))
        found.append((mine, told, given))
    return found


def _kept(
    keeping: Keeping, node: int, window: Any, array: np.ndarray, chosen: Any
) -> Kept | None:
    """Return how a node keeps rows; None if it does not: their values may change."""
    if not isinstance(chosen, slice) or not isinstance(window, tuple):
        return None
    state = state_of(window)
    if state is None or chosen.start == chosen.stop:
        return None
    nbytes = array[chosen].nbytes
    what = key_of(window), state, (chosen.start, chosen.stop)
    return keeping.of(node, *what, nbytes, array.nbytes)


def _joined(pieces: Sequence[np.ndarray]) -> np.ndarray:
    """Return rows as one contiguous array; those of one slice are not copied."""
    if len(pieces) == 1:
        return np.asarray(pieces[0], order="C")
    return np.concatenate(pieces)
