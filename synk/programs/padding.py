"""Padding: calls on n rows by code that was compiled for more, with copies of a row.

JAX compiles a function anew for every shape of its arguments. With ``pad=True`` a rank
with n rows takes the smallest N from n to 2 n for which it has code, and fills up with
copies of its last row. The graph is rewritten (`compiler.padded`) so that copies do not
count; n is an argument of it. So code for N rows serves calls on N / 2 to N rows.

The N of an n never changes: code for a new number of rows is made only if no N serves
it, and a number between n and N would be served by N. So a repeated call gives the same
bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Variable

from ..compiler.domain import Refused
from ..compiler.own_ops.register import register_all
from ..compiler.padded import Padded, Padder
from ..compiler.spec import FunctionSpec
from ..compiler.stages import Part
from ..memory.partition import Selection, count


class PaddedSize(NamedTuple):
    """The rows that padded code computes, and how many of them are no copies."""

    rows: int
    real: int

    def __bool__(self) -> bool:
        return bool(self.rows)


UNPADDED = PaddedSize(0, 0)
"""The size of a call without padding; false."""


def rows_computed(sizes: list[int], real: int) -> int:
    """Return the number of rows to compute for `real` rows.

    `sizes` are the numbers that a rank has code for; a new one is appended.
    """
    rows = min((N for N in sizes if real <= N <= 2 * real), default=0)
    if not rows:
        sizes.append(real)
    return rows or real


class Padding:
    """The padded form of a function's graph, and the numbers of rows with code."""

    def __init__(self, spec: FunctionSpec) -> None:
        self._spec = spec
        self._real = pt.lscalar("real_rows")
        self.reason: str | None = None  # why the function cannot be padded, or None
        self._sizes: list[int] = []
        register_all(spec.own_ops)
        if not spec.row_inputs:
            self.reason = "it has no rows"
            return
        self._facts = Padder(spec.row_inputs, self._real)
        try:
            graph = spec.graph
            self._facts.walk(graph)
            for var in graph:
                self._facts.padded(var)  # raises if `cut` would not know its rows
        except Refused as error:
            self.reason = str(error)

    def padded_size(self, selections: Sequence[Selection]) -> PaddedSize:
        """Return the padded size of a rank's selections, or `UNPADDED`."""
        (real, *others) = map(count, selections)
        if not real or any(other != real for other in others):
            return UNPADDED
        return PaddedSize(rows_computed(self._sizes, real), real)

    def rewritten(
        self, piece: Part, known: dict[Variable, Variable], news: Sequence[Variable]
    ) -> tuple[list[Variable], list[Variable]]:
        """Return the padded graph of a part: its further inputs, and its results.

        The first of these inputs, which follow the function's, is the number of real
        rows; the others stand for the values that the part receives. `known` has
        graphs for some of these, as of shapes; `news` are new states of random streams.
        Raise CannotPad for a part that cannot be padded though the whole graph can.
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
        """Return a part's result without the entries of copies."""
        state = self._padded(var)
        return value if state is None else cut(value, state, padded_size)

    def is_whole(self, var: Variable) -> bool:
        """Return whether a value has no entries for rows, so that `cut` keeps it."""
        return self._padded(var) is None

    def _padded(self, var: Variable) -> Padded | None:
        if var not in self._facts.new:  # a variable of the plain graph, for one rank
            self._facts.walk([var])
        return self._facts.padded(var)


def cut(value: Any, state: Padded, size: PaddedSize) -> Any:
    """Return an array without the entries of copies."""
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
    """Return selections of `size.rows` rows, by repeating the last row."""
    if size.rows <= size.real:
        return selections
    places = np.minimum(np.arange(size.rows), size.real - 1)
    return [
        places + rows.start if isinstance(rows, slice) else rows[places]
        for rows in selections
    ]
