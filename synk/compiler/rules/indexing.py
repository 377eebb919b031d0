"""Indexing: what takes elements out of arrays, and puts them in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor import subtensor as pts
from pytensor.tensor.extra_ops import SearchsortedOp
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
    indices_from_subtensor,
)
from pytensor.tensor.type_other import MakeSlice, SliceType

from ..domain import (
    Listed,
    Partial,
    Position,
    Refused,
    Replicated,
    Sharded,
    Trail,
    Value,
    align,
    describe,
    independent,
    is_replicated,
    selected,
    total,
    unlisted,
)
from ..lengths import Length, size
from . import trails
from .base import check_spread, rule
from .some_rows import is_selected_by, selecting_mask

Known = dict[Variable, Value]


def before_3_1(name: str) -> list[type]:
    """Return an Op of older versions of PyTensor, which had one for a single index."""
    return [getattr(pts, name)] if hasattr(pts, name) else []


class Index:
    """An index with an entry for each axis of what is indexed.

    Parameters
    ----------
    node : Apply
    first : int
        Position of the first input that belongs to the index.
    values : list of Value
    """

    def __init__(self, node: Apply, first: int, values: list[Value]) -> None:
        self._known: Known = dict(zip(node.inputs, values, strict=True))
        self.array = node.inputs[0]
        given = entries_of_index(node, first)
        missing = node.inputs[0].type.ndim - len(given)
        self.entries: list[Any] = [*given, *[slice(None)] * missing]
        for entry in self.arrays:
            if getattr(entry.type, "dtype", "bool") == "bool":
                raise Refused("selects by a mask")

    def value(self, entry: Any) -> Value:
        """Return what a part of the index is."""
        if isinstance(entry, int):
            return Replicated(0 if entry else None, number=float(entry))
        return unlisted(self._known.get(entry, Replicated()))

    @property
    def arrays(self) -> list[Variable]:
        """The entries that are arrays or numbers, in place of slices."""
        return [entry for entry in self.entries if isinstance(entry, Variable)]

    def is_all(self, axis: int, length: str) -> bool:
        """Tell whether an axis is taken whole."""
        entry = self.entries[axis]
        if not isinstance(entry, slice):
            return False
        start, stop, step = (
            None if part is None else self.value(part)
            for part in (entry.start, entry.stop, entry.step)
        )
        stops = isinstance(stop, Replicated) and stop.exact and length == "n"
        return (
            (start is None or (isinstance(start, Replicated) and start.number == 0))
            and (step is None or (isinstance(step, Replicated) and step.number == 1))
            and (stop is None or stops)
        )

    def bounds(self, axis: int) -> int | tuple[int | None, ...]:
        """Return the constants that an axis is indexed by: one, or a slice's."""

        def number(part: Any) -> int | None:
            found = None if part is None else self.value(part)
            if found is None:
                return None
            if not isinstance(found, Replicated) or found.number is None:
                raise Refused("takes some of the rows")
            return int(found.number)

        entry = self.entries[axis]
        if isinstance(entry, slice):
            return tuple(map(number, (entry.start, entry.stop, entry.step)))
        found = number(entry)
        assert found is not None
        return found

    def is_reversed(self, axis: int) -> bool:
        """Tell whether an axis is taken whole, from its last element to the first."""
        entry = self.entries[axis]
        if not isinstance(entry, slice) or (entry.start, entry.stop) != (None, None):
            return False
        step = None if entry.step is None else self.value(entry.step)
        return isinstance(step, Replicated) and step.number == -1

    def check_fixed(self, but: int | None = None) -> None:
        """Raise unless the entries, of all other axes, are the same on every rank."""
        for axis, entry in enumerate(self.entries):
            if axis == but:
                continue
            parts = (
                (entry.start, entry.stop, entry.step)
                if isinstance(entry, slice)
                else (entry,)
            )
            for part in parts:
                if part is not None and not is_replicated(self.value(part)):
                    raise Refused(f"takes as an index {describe(self.value(part))}")

    def taken(self, rows: Sharded) -> Sharded:
        """Return the rows as they are taken; raise unless it is all of them."""
        self.check_fixed(but=rows.axis)
        if self.is_all(rows.axis, rows.length):
            return rows
        if self.is_reversed(rows.axis):
            return reversed_rows(rows)
        raise Refused("takes some of the rows, or another order of them")

    def kept(self) -> list[int]:
        """Return the axes that slices keep."""
        return [i for i, entry in enumerate(self.entries) if isinstance(entry, slice)]


def reversed_rows(rows: Sharded) -> Sharded:
    """Return rows from the last to the first."""
    if rows.layout is None:
        return rows
    layout = replace(rows.layout, reverse=not rows.layout.reverse)
    return replace(rows, layout=layout)


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
        return slice(
            *(
                None if not hasattr(part.type, "dtype") else part
                for part in var.owner.inputs
            )
        )
    raise Refused("takes a slice that is not understood")


# -- slices and numbers


@rule(Subtensor)
def subtensor(node: Apply, values: list[Value]) -> Value:
    """All rows, and of each of them the same elements."""
    index = Index(node, 1, values)
    value = values[0]
    if isinstance(value, Listed):
        return _sublist(index, value)
    if isinstance(value, Position):
        raise Refused(f"takes some of {describe(value)}")
    if isinstance(value, Sharded):
        taken = index.taken(value)
        return replace(taken, axis=index.kept().index(value.axis))
    index.check_fixed()
    if isinstance(value, Trail):
        return trails.taken(value, index.bounds(0))
    return value


def _sublist(index: Index, value: Listed) -> Value:
    (entry,) = index.entries

    def number(part: Any) -> int | None:
        found = None if part is None else index.value(part)
        if found is None:
            return None
        if not isinstance(found, Replicated) or found.number is None:
            raise Refused("takes some of a shape, by an index that is not constant")
        return int(found.number)

    if isinstance(entry, slice):
        chosen = slice(number(entry.start), number(entry.stop), number(entry.step))
        return Listed(value.entries[chosen])
    place = number(entry)
    assert place is not None
    return value.entries[place]


@rule(IncSubtensor)
def inc_subtensor(node: Apply, values: list[Value]) -> Value:
    """Elements set or increased, in all rows or where there are none."""
    index = Index(node, 2, values)
    if isinstance(values[0], Trail):
        return _put_into_trail(node, index, values)
    value, other = map(unlisted, values[:2])
    if isinstance(value, Sharded):
        taken = index.taken(value)
        kept = index.kept()
        back = kept.index(value.axis) - len(kept)
        other = _at(node.inputs[1], other, back, taken)
        if isinstance(other, Sharded) and index.is_reversed(value.axis):
            other = reversed_rows(other)
        return _put(node, value, other)
    index.check_fixed()
    if isinstance(other, Sharded):
        raise Refused("puts rows into something of fixed length")
    return _put(node, value, other)


def _put_into_trail(node: Apply, index: Index, values: list[Value]) -> Value:
    """Put something into an entry of a trail, or into all but the first."""
    trail, other = values[:2]
    assert isinstance(trail, Trail)
    index.check_fixed()
    if node.inputs[1].type.ndim < len(index.kept()) or len(index.arrays) > 1:
        raise Refused(f"changes some of {describe(trail)}")
    sets = node.op.set_instead_of_inc
    return trails.changed(trail, index.bounds(0), other, selected if sets else total)


def _put(node: Apply, value: Value, other: Value) -> Value:
    return (selected if node.op.set_instead_of_inc else total)([value, other])


def _at(var: Variable, other: Value, back: int, rows: Sharded) -> Value:
    """Check that `other` meets the rows with its own; return it at their axis.

    `back` counts the axis from the last one, as broadcasting does.
    """
    ndim = var.type.ndim
    if isinstance(other, Sharded):
        if other.axis - ndim != back:
            raise Refused("pairs every row with every other row")
        if "?" in (other.length, rows.length):
            # numpy would stretch what has length 1 on one rank alone
            raise Refused("meets the rows with those of a sliceable shared variable")
        align([replace(other, axis=rows.axis), rows])
        return replace(other, axis=rows.axis)
    if ndim >= -back and var.type.shape[back] != 1:
        raise Refused("meets the rows with something of fixed length")
    return other


@rule(SearchsortedOp)
def search_sorted(node: Apply, values: list[Value]) -> Value:
    """For each row, its place among what is the same for all."""
    if not all(
        is_replicated(unlisted(value)) for i, value in enumerate(values) if i != 1
    ):
        raise Refused("looks for places among the rows")
    return independent([values[1]])


# -- arrays as indices


@rule(AdvancedSubtensor, *before_3_1("AdvancedSubtensor1"))
def advanced_subtensor(node: Apply, values: list[Value]) -> Value:
    """Elements of each row, or for each row elements of what is the same for all."""
    if selecting_mask(node, 1, values) is not None:
        assert isinstance(values[0], Sharded)
        return replace(values[0], length="some")
    index = Index(node, 1, values)
    value = unlisted(values[0])
    if isinstance(value, Position):
        raise Refused(f"takes some of {describe(value)}")
    place, kept = layout_of(index)
    arrays = _broadcast(index)
    if isinstance(value, Sharded):
        if isinstance(index.entries[value.axis], slice):
            taken = index.taken(value)
            return replace(taken, axis=kept.index(value.axis))
        paired = _paired(index, value)
        return replace(paired, axis=place + arrays.ndim + paired.axis)
    _check_slices(index)
    if arrays.rows is None:
        return value
    _refuse_numbers(index)
    if not isinstance(value, Replicated):
        raise Refused(f"takes for each row some of {describe(value)}")
    axis = place + arrays.ndim + arrays.rows.axis
    return replace(arrays.rows, axis=axis, power=value.power)


@rule(AdvancedIncSubtensor, *before_3_1("AdvancedIncSubtensor1"), some_rows=True)
def advanced_inc_subtensor(node: Apply, values: list[Value]) -> Value:
    """As for reading; where every row adds to places of its own choice, a sum."""
    mask = selecting_mask(node, 2, values)
    if mask is not None:
        given = values[1]
        if is_selected_by(mask, node.inputs[1], given):
            assert isinstance(given, Sharded)
            return _put(node, values[0], replace(given, length="n"))
        if not isinstance(given, Replicated) or node.inputs[1].type.ndim:
            raise Refused("puts something else to rows that a mask selects")
        return _put(node, values[0], given)
    index = Index(node, 2, values)
    value, other = map(unlisted, values[:2])
    if isinstance(value, Position):
        raise Refused(f"changes {describe(value)}")
    place, kept = layout_of(index)
    arrays = _broadcast(index)
    ndim = len(kept)
    if isinstance(value, Sharded):
        if isinstance(index.entries[value.axis], slice):
            taken = index.taken(value)
            axis = kept.index(value.axis)
        else:
            paired = _paired(index, value)
            taken = value = replace(value, layout=paired.layout)
            axis = place + arrays.ndim + paired.axis
        other = _at(node.inputs[1], other, axis - ndim, taken)
        if isinstance(other, Sharded) and index.is_reversed(value.axis):
            other = reversed_rows(other)
        return _put(node, value, other)
    _check_slices(index)
    if arrays.rows is None:
        if isinstance(other, Sharded):
            raise Refused("puts rows into something of fixed length")
        if isinstance(other, Partial) and other.op != "sum":
            raise Refused(f"adds up {describe(other)}, where indices are repeated")
        return _put(node, value, other)
    _refuse_numbers(index)
    if node.op.set_instead_of_inc or getattr(node.op, "ignore_duplicates", False):
        raise Refused("lets the last of the rows win that write to one place")
    back = place + arrays.ndim + arrays.rows.axis - ndim
    other = _at(node.inputs[1], other, back, arrays.rows)
    if isinstance(other, Partial) or arrays.rows.length == "?":
        raise Refused(f"adds for each row {describe(other)}")
    assert isinstance(other, (Sharded, Replicated))
    return total([value, Partial("sum", other.power)])


class _Arrays:
    """Index arrays, broadcast against one another.

    Attributes
    ----------
    ndim : int
    rows : Rows or None
        Where their rows are; the axis is counted from the last one.
    """

    def __init__(self, ndim: int, rows: Sharded | None) -> None:
        self.ndim, self.rows = ndim, rows


def _broadcast(index: Index) -> _Arrays:
    arrays = [(var, index.value(var)) for var in index.arrays]
    ndim = max((var.type.ndim for var, _ in arrays), default=0)
    rows: Sharded | None = None
    for var, value in arrays:
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
        check_spread([var for var, _ in arrays], [v for _, v in arrays], rows.axis)
    return _Arrays(ndim, rows)


def _paired(index: Index, rows: Sharded) -> Sharded:
    """Check that row i of what is indexed is taken by entry i of the index arrays.

    Returns the rows along their axis in the arrays' shape, counted from the last one.
    """
    var = index.entries[rows.axis]
    value = index.value(var)
    if not isinstance(value, Position):
        raise Refused("takes some of the rows, or another order of them")
    if not _takes_all(value, rows, size(index.array, rows.axis)):
        raise Refused(
            "may take some of the rows only; p[arange(p.shape[0]), y] takes all of p"
        )
    arrays = _broadcast(index)
    assert arrays.rows is not None
    _check_slices(index)
    if _numbers(index) > 1:
        raise Refused("takes the numbers of rows as another index")
    paired = align([replace(rows, axis=arrays.rows.axis), arrays.rows])
    assert paired is not None
    return paired


def _takes_all(numbers: Position, rows: Sharded, whole: Length) -> bool:
    """Tell whether there are as many numbers as entries along the rows' axis."""
    if rows.length == numbers.length == "n":
        return True
    return rows.length != "?" and numbers.count == whole


def _numbers(index: Index) -> int:
    return sum(isinstance(index.value(var), Position) for var in index.arrays)


def _refuse_numbers(index: Index) -> None:
    """Raise where row numbers choose from what is the same for all rows."""
    if _numbers(index):
        raise Refused(f"takes as an index {describe(Position())}")


def _check_slices(index: Index) -> None:
    for entry in index.entries:
        if isinstance(entry, slice):
            for part in (entry.start, entry.stop, entry.step):
                if part is not None and not is_replicated(index.value(part)):
                    raise Refused(f"takes as an index {describe(index.value(part))}")


def layout_of(index: Index) -> tuple[int, Sequence[int]]:
    """Return where the arrays' axes lie in the result, and which axis is which.

    As in numpy: in the place of the first array if all stand together, else in front.
    The axes of the arrays are -1 in the second list.
    """
    places = [i for i, entry in enumerate(index.entries) if isinstance(entry, Variable)]
    kept: list[int] = list(index.kept())
    if not places:
        return 0, kept
    together = places[-1] - places[0] + 1 == len(places)
    place = places[0] if together else 0
    ndim = max(index.entries[i].type.ndim for i in places)
    return place, [*kept[:place], *[-1] * ndim, *kept[place:]]
