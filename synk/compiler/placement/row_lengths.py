"""Shapes that follow from those of a function's inputs: no reduction changes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.shape import Shape, Shape_i

from ..domain import Listed, Replicated, Sharded, Value, is_replicated
from ..lengths import Length, Symbol, size
from ..origins import origins
from ..sizes import sizes_from_inputs


class RowLengths:
    """Tells lengths that are numbers of rows from others.

    Parameters
    ----------
    known : mapping of Variable to Value
        The inputs that are cut into rows, along axis 0.
    """

    def __init__(self, known: Mapping[Variable, Value]) -> None:
        self._lengths = {
            var: value.length
            for var, value in known.items()
            if isinstance(value, Sharded)
        }
        self._row_lengths = {(var, 0) for var in self._lengths}
        self._without_rows: dict[Symbol, bool] = {}

    def shape(self, node: Apply) -> Value | None:
        """Return what a shape with rows is, if it follows from the shapes of inputs."""
        if not isinstance(node.op, (Shape, Shape_i)):
            return None
        (of,) = node.inputs
        entries = [self._length(of, axis) for axis in _axes(node)]
        known = [entry for entry in entries if entry is not None]
        if len(known) < len(entries) or all(map(is_replicated, known)):
            return None
        return Listed(tuple(known)) if isinstance(node.op, Shape) else known[0]

    def written(self, node: Apply) -> Variable | None:
        """Return a shape as computed from those that it follows from, and no value.

        The variable itself may have no shape on a rank: ``x - cumsum(e)``, with rows
        of x and all of e, is computed there of the rank's rows of both. And what a mean
        of all rows makes as long as it is has another length there.

        Returns
        -------
        Variable, or None
            None if values decide upon it, as in ``x[x > x.mean()]``.
        """
        (of,), (shape,) = node.inputs, node.outputs
        lengths = [size(of, axis) for axis in _axes(node)]
        if not all(map(_is_of_inputs, lengths)):
            found = sizes_from_inputs([shape]).get(shape)
            if found is not None or self.shape(node) is None:
                return found
        made = list(map(_graph, lengths))
        return pt.stack(made) if isinstance(node.op, Shape) else made[0]

    def _length(self, var: Variable, axis: int) -> Value | None:
        """Return what the length of an axis is, if it follows from those of inputs."""
        length, rows = size(var, axis), 0
        for (root, which), many in length.symbols:
            if not isinstance(which, int):
                return None
            if root.owner is not None:
                if not self._is_without_rows((root, which)):
                    return None
            elif (root, which) in self._row_lengths:
                if self._lengths[root] == "?":
                    return None
                rows += many
        if not length.symbols:
            return Replicated(0 if length.number else None, number=length.number)
        if rows > 1:
            return None
        return Replicated(rows, exact=rows == length.number == len(length.symbols))

    def _is_without_rows(self, symbol: Symbol) -> bool:
        """Tell whether a length is known to follow from others than the rows' alone."""
        if symbol not in self._without_rows:
            found = origins(symbol)
            known = found is not None and self._row_lengths.isdisjoint(found)
            self._without_rows[symbol] = known
        return self._without_rows[symbol]


def _axes(node: Apply) -> Sequence[int]:
    of = node.inputs[0]
    return range(of.type.ndim) if isinstance(node.op, Shape) else [node.op.i]


def _is_of_inputs(length: Length) -> bool:
    """Tell whether a length is a product of lengths of inputs."""
    return all(
        root.owner is None and isinstance(axis, int)
        for root, axis in length.symbols_only()
    )


def _graph(length: Length) -> Variable:
    """Return a length as a graph of the shapes that it is a product of."""
    found: Any = pt.constant(length.number, dtype="int64")
    for (root, axis), many in length.symbols:
        for _ in range(many):
            factor: Any = pt.shape(root)[axis]
            is_one = length.number == 1 and found.owner is None
            found = factor if is_one else found * factor
    return found
