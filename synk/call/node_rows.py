"""The rows of calls for other nodes: each gets its own ranks', and no others.

A command that computes names arrays, and which of their rows the call has. For another
node these rows are taken from the arrays, one after the other, and sent to it alone.
Its ranks take theirs from that as they would from the arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..cluster.translate import NodeRows, Parted
from ..memory.partition import part
from ..programs.programs import kind_of_call
from ..ranks.context import RankContext
from ..ranks.to_nodes import PARTED
from .runs import Call, worker_run
from .share import worker_call


def parted_call(
    args: tuple, context: RankContext, ranks: Sequence[int]
) -> Parted | None:
    """Return a call with the rows that each node gets; see `ranks.to_nodes`."""
    ((number, subset, rows, *others),) = args
    selection, bounds, sources = rows
    if not sources or _reads_all(context, number, subset, others[2]):
        return None
    found = _parts(context, [Call(selection, bounds, None)], sources, ranks)
    made = []
    for (called,), given in found:
        of_node = called.selection, bounds, _sources(given)
        made.append(((number, subset, of_node, *others),))
    return Parted(made, [given for _, given in found])


def parted_run(
    args: tuple, context: RankContext, ranks: Sequence[int]
) -> Parted | None:
    """Return many calls with the rows that each node gets; see `ranks.to_nodes`."""
    launch, number, subset, calls, sources, constants, slices, *others = args
    if not sources or _reads_all(context, number, subset, slices):
        return None
    found = _parts(context, calls, sources, ranks)
    before, after = (launch, number, subset), (constants, slices, *others)
    made = [(*before, some, _sources(given), *after) for some, given in found]
    return Parted(made, [given for _, given in found])


PARTED |= {worker_call: parted_call, worker_run: parted_run}


def _reads_all(context: RankContext, number: int, subset: tuple, slices: int) -> bool:
    """Tell whether ranks read rows of other ranks, too."""
    programs = context.registry.functions[number]
    return bool(programs.cut(kind_of_call(slices, context.size), subset).inputs_read)


def _sources(given: Sequence[np.ndarray]) -> list[tuple]:
    return [(NodeRows(i), 0, False, None) for i in range(len(given))]


def _parts(
    context: RankContext,
    calls: Sequence[Call],
    sources: Sequence[tuple],
    ranks: Sequence[int],
) -> list[tuple[list[Call], list[np.ndarray]]]:
    """Return for each node the calls, as they select from its rows, and these rows."""
    arrays = [context.array(array) for array, *_ in sources]
    selections = [_located(context, call.selection) for call in calls]
    found, rank = [], 0
    for node, count in enumerate(ranks):
        first, rank = rank, rank + count
        mine: list[Call] = []
        rows: list[list[np.ndarray]] = [[] for _ in sources]
        base = 0
        for call, selection in zip(calls, selections, strict=True):
            start, stop = call.bounds[first], call.bounds[rank]
            # Row i of the call is row `base + i - start` of what the node gets.
            mine.append(call._replace(selection=(base - start, base - start + stop)))
            base += stop - start
            if not node:
                continue
            for (_, offset, is_batch, *_), array, of_input in zip(
                sources, arrays, rows, strict=True
            ):
                chosen = part(selection, start, stop)
                if is_batch:
                    chosen = slice(start - offset, stop - offset)
                of_input.append(array[chosen])
        found.append((mine, [_joined(of_input) for of_input in rows if node]))
    return found


def _located(context: RankContext, selection: Any) -> Any:
    """Return a selection that may be described as it travels."""
    if not isinstance(selection, tuple):
        return selection
    return slice(*selection) if len(selection) == 2 else context.array(selection)


def _joined(pieces: Sequence[np.ndarray]) -> np.ndarray:
    """Return rows as one contiguous array; those of one slice are not copied."""
    if len(pieces) == 1:
        return np.asarray(pieces[0], order="C")
    return np.concatenate(pieces)
