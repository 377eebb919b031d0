"""Calls that repeat the rows of the last one: when terms of these are to be kept.

An optimizer or a sampler calls a likelihood with the same data over and over. What the
function computes of the data alone, ranks keep then. To compute it by itself takes
another compilation: so they begin when to compute it again and again has taken as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..programs.programs import CallKind, Programs, Subset, kind_of_call
from ..ranks.session import SESSION
from ..variables.data import Data
from .rows import Rows

WORTH = 0.2
"""Seconds, as estimated, that each rank has then spent on computing again."""

FEW = 10_000
"""Rows that are computed again in less time than it takes to ask for them."""

NUMBER = 1e-8
"""Seconds that a number of what is computed again takes: ``gammaln`` as C has it."""


def are_few(rows: int) -> bool:
    """Tell whether nothing of so many rows is to be kept."""
    return rows < FEW


class Repeats:
    """The last rows that a function was called with, and how often.

    Attributes
    ----------
    states : list or None
        What ranks were told of the last call's sources, None for each of which nothing
        is kept, if as many calls of the same rows as come will tell them the same.
    """

    def __init__(self) -> None:
        self.states: list[int | None] | None = None
        self._last: tuple = ()
        self._wasted = 0.0
        self._worth = WORTH
        self._nothing: set[tuple[int, CallKind, Subset]] = set()

    def begin_at_once(self) -> None:
        """Keep terms from the first call on that repeats the rows of the last one."""
        self._worth = 0.0

    def of(
        self,
        programs: Programs,
        kind: CallKind,
        subset: Subset,
        values: Sequence[Any],
        rows: Rows,
    ) -> tuple[CallKind, Rows]:
        """Return how a call is run, and its rows as ranks are told them.

        Parameters
        ----------
        programs : Programs
            Rank 0's, of the engine that makes the call.
        kind : str
            How it is run if nothing is kept.
        subset : tuple of int
        values : sequence of Data or array_like
            The scattered inputs, and others.
        rows : Rows
        """
        self.states = None
        if are_few(rows.total) or (programs.number, kind, subset) in self._nothing:
            self.states = [None] * len(rows.sources)
            return kind, rows
        if not any(isinstance(value, Data) for value in values):
            return kind, rows
        keeping = kind_of_call(1, SESSION.size, keeps=True)
        kept = None
        if kind != "slice" and not programs.is_padded:
            kept = programs.kept(keeping, subset)
        if kept is None or programs.kept_terms.are_too_large:
            self._nothing.add((programs.number, kind, subset))
            return kind, rows
        states = [_state(values[i]) for i in kept.inputs]
        selection = rows.selection
        if None in states or not isinstance(selection, slice):
            self._last = ()
            return kind, rows
        rows_used = *states, selection.start, selection.stop
        key = SESSION.generation, programs.number, subset, *rows_used
        if key != self._last:
            self._last, self._wasted = key, 0.0
            return kind, rows
        if self._wasted < self._worth:
            arrays = [rows.sources[i].array for i in kept.inputs]
            each = sum(array[:1].size for array in arrays)
            self._wasted += NUMBER * each * rows.total / SESSION.size
            return kind, rows
        sources = list(rows.sources)
        for i, state in zip(kept.inputs, states, strict=True):
            sources[i] = sources[i]._replace(state=state)
        self.states = [source.state for source in sources]
        return keeping, rows._replace(sources=sources)


def _state(value: Any) -> int | None:
    return value._state if isinstance(value, Data) else None
