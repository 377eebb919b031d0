"""What a variable of a padded graph is, and how its rows lie, to be cut out."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..domain import REPLICATED, Position, Sharded, Value, is_replicated


class Padded(NamedTuple):
    """Where the entries of N rows are along an axis.

    They lie in blocks, with so many entries of each row in every block; those of the
    real rows are the first of each block.

    Attributes
    ----------
    axis : int
    blocks : int or None
        How many blocks there are; None if only `each` is known.
    each : int or None
        How many entries each row has in a block; None if only `blocks` is known.
    """

    axis: int
    blocks: int | None
    each: int | None

    def each_of(self, length: Any, rows: Any) -> Any:
        """Return how many entries each of so many rows has in a block.

        Parameters
        ----------
        length, rows : int, or a variable
            Of the axis, and N.
        """
        if self.each is not None:
            return self.each
        return length // rows if self.blocks == 1 else length // (rows * self.blocks)


def is_padded(value: Value) -> bool:
    """Tell whether something has an entry for each of N rows."""
    return isinstance(value, (Sharded, Position))


def as_rows(value: Value) -> Value:
    """Return row numbers as numbers for each row, which is all that they need be."""
    if isinstance(value, Position):
        return Sharded(value.axis, 0, value.length)
    return value


def without_powers(value: Value) -> Value:
    """Forget by which power of the number of rows something is known.

    The real number of rows is given to the graph, as a parameter is. What follows from
    it is exact, whatever the function may be.
    """
    if isinstance(value, Sharded):
        if value.power is None:
            return value
        return Sharded(value.axis, 0, value.length, value.layout)
    if isinstance(value, Position) or is_replicated(value):
        return value
    return REPLICATED


def plain(value: Value) -> Value:
    """Return that something is padded, or exact, and no more."""
    return as_rows(without_powers(value))
