"""An index, with an entry for each axis of what is indexed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.subtensor import indices_from_subtensor
from pytensor.tensor.type_other import MakeSlice, SliceType

from ..domain import (
    Position,
    Refused,
    Replicated,
    Sharded,
    Value,
    align,
    constant,
    describe,
    is_replicated,
    unlisted,
)
from ..lengths import Length, length_of, size
from .base import check_spread

Bounds = int | tuple[int | None, ...]
"""A number, or start, stop and step of a slice."""


def entries_of_index(node: Apply, first: int) -> list[Any]:
    """Return the entries of an index whose inputs begin at a position."""
    inputs = node.inputs[first:]
    idx_list = getattr(node.op, "idx_list", None)
    if idx_list is not None:
        return list(indices_from_subtensor(inputs, idx_list))
    return [_as_slice(var) for var in inputs]


def _as_slice(var: Variable) -> Any:
    """Return an index of PyTensor 2, where slices are inputs as well."""
    if not isinstance(var.type, SliceType):
        return var
    if isinstance(var, Constant):
        return var.data
    if var.owner is not None and isinstance(var.owner.op, MakeSlice):
        parts = var.owner.inputs
        return slice(*(part if hasattr(part.type, "dtype") else None for part in parts))
    raise Refused("takes a slice that is not understood")


class Index:
    """An index with an entry for each axis of what is indexed.

    The inputs of a node from the `first` on belong to it. Its arrays are broadcast
    against one another: `ndim` is how many axes they have then, and `rows` tells where
    rows are among these, with the axis counted from the last one.
    """

    def __init__(self, node: Apply, first: int, values: list[Value]) -> None:
        self._known = dict(zip(node.inputs, values, strict=True))
        self.array = node.inputs[0]
        given = entries_of_index(node, first)
        missing = node.inputs[0].type.ndim - len(given)
        self.entries: list[Any] = [*given, *[slice(None)] * missing]
        for entry in self.arrays:
            if getattr(entry.type, "dtype", "bool") == "bool":
                raise Refused("selects by a mask")
        self.ndim = max((var.type.ndim for var in self.arrays), default=0)

    def value(self, entry: Any) -> Value:
        """Return what a part of the index is."""
        if isinstance(entry, int):
            return constant(float(entry))
        return unlisted(self._known.get(entry, Replicated()))

    @property
    def arrays(self) -> list[Variable]:
        """The entries that are arrays or numbers, in place of slices."""
        return [entry for entry in self.entries if isinstance(entry, Variable)]

    @property
    def numbers(self) -> int:
        """How many of the arrays hold numbers of rows."""
        return sum(isinstance(self.value(var), Position) for var in self.arrays)

    def rows(self) -> Sharded | None:
        """Return where the arrays have rows; raise for what is no index of each row."""
        rows: Sharded | None = None
        for var in self.arrays:
            value = self.value(var)
            if isinstance(value, (Sharded, Position)):
                if isinstance(value, Position):
                    value = Sharded(value.axis, 0, value.length, None)
                if value.power or value.length == "?":
                    raise Refused(f"takes as an index {describe(value)}")
                value = replace(value, axis=value.axis - var.type.ndim, power=0)
                if rows is not None and rows.length != value.length:
                    raise Refused("pairs every row with every other row")
                rows = value if rows is None else align([rows, value])
            elif not is_replicated(value):
                raise Refused(f"takes as an index {describe(value)}")
        if rows is not None:
            # numpy would stretch what has length 1 on one rank alone
            values = [self.value(var) for var in self.arrays]
            check_spread(self.arrays, values, rows.axis)
        return rows

    def layout(self) -> tuple[int, Sequence[int]]:
        """Return where the arrays' axes lie in the result, and which axis is which.

        As in numpy: in the place of the first array if all stand together, else in
        front. The axes of the arrays are -1 in the second list.
        """
        places = [
            i for i, part in enumerate(self.entries) if isinstance(part, Variable)
        ]
        kept = [i for i, part in enumerate(self.entries) if isinstance(part, slice)]
        if not places:
            return 0, kept
        together = places[-1] - places[0] + 1 == len(places)
        place = places[0] if together else 0
        return place, [*kept[:place], *[-1] * self.ndim, *kept[place:]]

    # -- slices

    def is_all(self, axis: int, length: str) -> bool:
        """Tell whether an axis is taken whole."""
        entry = self.entries[axis]
        if not isinstance(entry, slice):
            return False
        start, stop, step = (
            None if part is None else self.value(part)
            for part in (entry.start, entry.stop, entry.step)
        )
        return (
            (start is None or (isinstance(start, Replicated) and start.number == 0))
            and (step is None or (isinstance(step, Replicated) and step.number == 1))
            and (stop is None or self._is_length(axis, entry.stop, length))
        )

    def _is_length(self, axis: int, stop: Any, length: str) -> bool:
        """Tell whether a bound is how long an axis is."""
        value = self.value(stop)
        is_n = isinstance(value, Replicated) and value.exact and length == "n"
        return is_n or length_of(stop) == size(self.array, axis)

    def is_reversed(self, axis: int) -> bool:
        """Tell whether an axis is taken whole, from its last element to the first."""
        entry = self.entries[axis]
        if not isinstance(entry, slice) or (entry.start, entry.stop) != (None, None):
            return False
        step = None if entry.step is None else self.value(entry.step)
        return isinstance(step, Replicated) and step.number == -1

    def is_first(self, axis: int) -> bool:
        """Tell whether the first element is taken along an axis."""
        entry = self.entries[axis]
        place = None if isinstance(entry, slice) else self.value(entry)
        return isinstance(place, Replicated) and place.number == 0

    def bounds(self, axis: int, of: str) -> Bounds:
        """Return the constants that an axis is indexed by, of rows or a shape."""

        def number(part: Any) -> int | None:
            found = None if part is None else self.value(part)
            if found is None:
                return None
            if not isinstance(found, Replicated) or found.number is None:
                raise Refused(f"takes some of {of}")
            return int(found.number)

        entry = self.entries[axis]
        if isinstance(entry, slice):
            return tuple(map(number, (entry.start, entry.stop, entry.step)))
        found = number(entry)
        assert found is not None
        return found

    def check_fixed(self, but: int | None = None, slices_only: bool = False) -> None:
        """Raise unless the entries, of all other axes, are the same on every rank."""
        for part in self._parts(but, slices_only):
            if part is not None and not is_replicated(self.value(part)):
                raise Refused(f"takes as an index {describe(self.value(part))}")

    def _parts(self, but: int | None, slices_only: bool) -> Iterator[Any]:
        for axis, entry in enumerate(self.entries):
            if isinstance(entry, slice) and axis != but:
                yield from (entry.start, entry.stop, entry.step)
            elif axis != but and not slices_only:
                yield entry

    # -- rows

    def taken(self, rows: Sharded) -> Sharded:
        """Return the rows as they are taken; raise unless it is all of them."""
        self.check_fixed(but=rows.axis)
        if self.is_all(rows.axis, rows.length):
            return rows
        if self.is_reversed(rows.axis):
            return reversed_rows(rows)
        raise Refused("takes some of the rows, or another order of them")

    def paired(self, rows: Sharded) -> Sharded:
        """Check that row i of what is indexed is taken by entry i of the arrays.

        Returns the rows along their axis in the arrays' shape, counted from the last.
        """
        value = self.value(self.entries[rows.axis])
        if not isinstance(value, Position):
            raise Refused("takes some of the rows, or another order of them")
        if not _takes_all(value, rows, size(self.array, rows.axis)):
            raise Refused(
                "may take some of the rows only; p[arange(p.shape[0]), y] takes all of"
                " p"
            )
        of_arrays = self.rows()
        assert of_arrays is not None
        self.check_fixed(slices_only=True)
        if self.numbers > 1:
            raise Refused("takes the numbers of rows as another index")
        paired = align([replace(rows, axis=of_arrays.axis), of_arrays])
        assert paired is not None
        return paired

    def refuse_numbers(self) -> None:
        """Raise where row numbers choose from what is the same for all rows."""
        if self.numbers:
            raise Refused(f"takes as an index {describe(Position())}")


def _takes_all(numbers: Position, rows: Sharded, whole: Length) -> bool:
    """Tell whether there are as many numbers as entries along the rows' axis."""
    if rows.length == numbers.length == "n":
        return True
    return rows.length != "?" and numbers.count == whole


def reversed_rows(rows: Sharded) -> Sharded:
    """Return rows from the last to the first."""
    if rows.layout is None:
        return rows
    return replace(rows, layout=replace(rows.layout, reverse=not rows.layout.reverse))
