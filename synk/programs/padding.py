"""Calls of fewer rows than code was compiled for: padded with copies of a row.

JAX compiles a function anew for every shape of its arguments. Asked to pad, a rank
takes for n rows the smallest number N of rows that it has compiled the function for, if
that is not more than twice n, and fills up with copies of the last row. The graph is
rewritten (see `padded`) so that the copies count for nothing, whatever n is: it is an
argument. So code for N rows serves all calls of N / 2 to N rows.

Which N it is stays so for each n: code is made for more rows only if there is none that
serves them, and what would serve n from below N would be served by N itself. So a call
that is repeated gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from ..compiler.domain import Refused
from ..compiler.own_ops.register import take_all
from ..compiler.padded import CannotPad, Padded, Padder
from ..compiler.spec import FunctionSpec
from ..compiler.stages import Part
from ..memory.partition import Selection, count


class PaddedSize(NamedTuple):
    """For how many rows a call computes, and how many of them are real."""

    rows: int
    real: int

    def __bool__(self) -> bool:
        return bool(self.rows)


UNPADDED = PaddedSize(0, 0)
"""Of a call that is not padded."""


def rows_computed(sizes: list[int], real: int) -> int:
    """Return for how many rows to compute where so many are real.

    A rank has code for some numbers of rows; it is one of these from now on.
    """
    rows = min((N for N in sizes if real <= N <= 2 * real), default=0)
    if not rows:
        sizes.append(real)
    return rows or real


class ShapesMet:
    """The numbers of rows that all ranks have met in calls of one function.

    Every rank keeps the same account, so that all leave the same calls out of their
    times: a rank that compiles keeps the others waiting.
    """

    def __init__(self) -> None:
        self._calls: set[tuple] = set()
        self._shares: set[tuple] = set()
        self._sizes: dict[tuple, list[list[int]]] = {}

    def are_new(self, kind: tuple, by_rank: Sequence[int], is_padded: bool) -> bool:
        """Tell whether some rank compiles for a call, by the rows of each rank.

        Its kind is what else tells it.
        """
        if is_padded:
            sizes = self._sizes.setdefault(kind, [[] for _ in by_rank])
            pairs = zip(sizes, by_rank, strict=True)
            by_rank = [rows_computed(of, rows) if rows else 0 for of, rows in pairs]
        call = kind, tuple(by_rank)
        if call in self._calls:
            return False
        self._calls.add(call)
        shares = {(kind, rank, rows) for rank, rows in enumerate(by_rank)}
        is_new = not shares <= self._shares
        self._shares |= shares
        return is_new


class Padding:
    """What a function becomes that is padded, and the numbers of rows for that."""

    def __init__(self, spec: FunctionSpec) -> None:
        self._spec = spec
        self._real = pt.lscalar("real_rows")
        self.reason: str | None = None  # why it cannot be padded
        self._sizes: list[int] = []
        take_all(spec.own_ops)
        if not spec.row_inputs:
            self.reason = "it has no rows"
            return
        self._facts = Padder(spec.row_inputs, self._real)
        try:
            graph = spec.graph
            self._facts.walk(graph)
            for var in graph:
                self._facts.padded(var)  # so that it can be cut
        except (CannotPad, Refused) as error:
            self.reason = str(error)

    def padded_size(self, selections: Sequence[Selection]) -> PaddedSize:
        """Return for how many rows to compute; none if it is not to be padded."""
        (real, *others) = map(count, selections)
        if not real or any(other != real for other in others):
            return UNPADDED
        return PaddedSize(rows_computed(self._sizes, real), real)

    def rewritten(
        self, piece: Part, known: dict[Variable, Variable], news: Sequence[Variable]
    ) -> tuple[list[Variable], list[Variable]]:
        """Return the graph of a part for any number of real rows: inputs and results.

        The first of these inputs, which come after those of the function, is that
        number. Of what the part receives, some is `known`, as what is computed from
        shapes; it leads random streams on to `news`. What the whole graph did not show
        raises CannotPad here.
        """
        facts = self._facts
        padder = Padder(self._spec.row_inputs, self._real, facts)
        stand_ins = []
        for var in piece.receives:
            stand_in = facts.new[var].type(name=var.name)
            stand_ins.append(stand_in)
            padder.new[var] = known.get(var, stand_in)
            padder.values[var] = facts.values[var]
            if var in facts.long:
                padder.new[var] = stand_in
                padder.long[var] = known.get(var, stand_in)
        graph = [*piece.computes, *news]
        padder.walk(graph)
        return [self._real, *stand_ins], [padder.new[var] for var in graph]

    def cut(self, var: Variable, value: Any, padded_size: PaddedSize) -> Any:
        """Return of a part's result what it is for the real rows."""
        state = self._padded(var)
        return value if state is None else cut(value, state, padded_size)

    def is_whole(self, var: Variable) -> bool:
        """Tell whether a value has no entries of rows, of which some are copies."""
        return self._padded(var) is None

    def _padded(self, var: Variable) -> Padded | None:
        if var not in self._facts.new:  # of the plain graph, which one rank runs
            self._facts.walk([var])
        return self._facts.padded(var)


def cut(value: Any, state: Padded, size: PaddedSize) -> Any:
    """Return the real rows' entries of an array."""
    if size.rows == size.real:
        return value
    length = value.shape[state.axis]
    each = state.each_of(length, size.rows)
    ahead = (slice(None),) * state.axis
    if each * size.rows == length:
        return value[(*ahead, slice(0, each * size.real))]
    shape = value.shape
    before, after = shape[: state.axis], shape[state.axis + 1 :]
    many = length // (size.rows * each)
    blocks = value.reshape(*before, many, size.rows, each, *after)
    taken = blocks[(*ahead, slice(None), slice(0, size.real))]
    return taken.reshape(*before, many * size.real * each, *after)


def widened(selections: list[Selection], size: PaddedSize) -> list[Selection]:
    """Return selections of as many rows as are computed: the last ones repeat."""
    if size.rows <= size.real:
        return selections
    places = np.minimum(np.arange(size.rows), size.real - 1)
    return [
        places + rows.start if isinstance(rows, slice) else rows[places]
        for rows in selections
    ]
