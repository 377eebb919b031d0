"""Indexing: Ops that take elements, and Ops that set or increase them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.subtensor import (
    IncSubtensor,
    Subtensor,
    indices_from_subtensor,
)
from pytensor.tensor.type_other import MakeSlice, SliceType

from .. import table
from ..domain import (
    IN_ORDER,
    Listed,
    Partial,
    Position,
    Refused,
    Replicated,
    Sharded,
    Value,
    align,
    constant,
    describe,
    is_n,
    is_replicated,
    number_of,
    selected,
    total,
    unlisted,
)
from ..lengths import ONE, Length, length_of, of_input, selected_by, size
from ..padded import Made, Padder, is_padded, plain
from .base import PUTTING, TAKING, check_spread, is_some, selecting_mask


def entries_of_index(node: Apply, first: int) -> list[Any]:
    """Return the entries of a node's index, whose inputs begin at index `first`."""
    inputs = node.inputs[first:]
    idx_list = getattr(node.op, "idx_list", None)
    if idx_list is not None:
        return list(indices_from_subtensor(inputs, idx_list))
    return [_as_slice(var) for var in inputs]


def _as_slice(var: Variable) -> Any:
    """Return an entry of an index in PyTensor 2, where slices are inputs."""
    if not isinstance(var.type, SliceType):
        return var
    if isinstance(var, Constant):
        return var.data
    if var.owner is not None and isinstance(var.owner.op, MakeSlice):
        parts = var.owner.inputs
        return slice(*(part if hasattr(part.type, "dtype") else None for part in parts))
    raise Refused("takes a slice that is not understood")


def layout(entries: Sequence[Any], ndim: int) -> tuple[int, Sequence[int]]:
    """Return where the axes of an index's arrays begin in the result, and its axes.

    As in numpy, they are in the place of the first array if all arrays are adjacent,
    else in front. The second list has, for each axis of the result, the axis of the
    indexed array, or -1 for the `ndim` axes of the broadcast arrays.
    """
    kept = [i for i, part in enumerate(entries) if isinstance(part, slice)]
    places = [i for i in range(len(entries)) if i not in kept]
    if not places:
        return 0, kept
    together = places[-1] - places[0] + 1 == len(places)
    place = places[0] if together else 0
    return place, [*kept[:place], *[-1] * ndim, *kept[place:]]


class Index:
    """The index of a node, with an entry for each axis of the indexed array.

    Its inputs are those of the node from index `first` on. `ndim` is the number of axes
    that its arrays have when they are broadcast.
    """

    def __init__(self, node: Apply, first: int, values: list[Value]) -> None:
        self._known = dict(zip(node.inputs, values, strict=True))
        self.array = node.inputs[0]
        given = entries_of_index(node, first)
        missing = node.inputs[0].type.ndim - len(given)
        self.entries: list[Any] = [*given, *[slice(None)] * missing]
        self.arrays = [entry for entry in self.entries if isinstance(entry, Variable)]
        if any(getattr(var.type, "dtype", "bool") == "bool" for var in self.arrays):
            raise Refused("selects by a mask")
        self.ndim = max((var.type.ndim for var in self.arrays), default=0)
        self.place, self.kept = layout(self.entries, self.ndim)

    def value(self, entry: Any) -> Value:
        """Return the `Value` of a part of the index."""
        if isinstance(entry, int):
            return constant(float(entry))
        return unlisted(self._known.get(entry, Replicated()))

    def rows(self) -> Sharded | None:
        """Return the value of the arrays that have rows, with a negative axis, or None.

        Raises `Refused` if they do not have an index for each row.
        """
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
            # A rank with one row would broadcast another array's length.
            values = [self.value(var) for var in self.arrays]
            check_spread(self.arrays, values, rows.axis)
        return rows

    def axis_of(self, rows: Sharded) -> int:
        """Return the axis, in the result, of the arrays' rows."""
        return self.place + self.ndim + rows.axis

    # -- questions about entries

    def _is(self, entry: Any, number: int) -> bool:
        return number_of(self.value(entry)) == number

    def is_all(self, axis: int, length: str) -> bool:
        """Return whether an axis, of this kind of `length`, is taken whole."""
        entry = self.entries[axis]
        if not isinstance(entry, slice):
            return False
        if not (entry.start is None or self._is(entry.start, 0)):
            return False
        if not (entry.step is None or self._is(entry.step, 1)):
            return False
        if entry.stop is None:
            return True
        is_rows = length == "n" and is_n(self.value(entry.stop))
        return is_rows or length_of(entry.stop) == size(self.array, axis)

    def is_reversed(self, axis: int) -> bool:
        """Return whether an axis is taken whole, from its last element to the first."""
        entry = self.entries[axis]
        if not isinstance(entry, slice) or (entry.start, entry.stop) != (None, None):
            return False
        return entry.step is not None and self._is(entry.step, -1)

    def of_listed(self, value: Listed) -> Value:
        """Return the value of the entries that are taken of a `Listed` vector."""

        def number(part: Any) -> Any:
            if part is None:
                return None
            found = number_of(self.value(part))
            if found is None:
                raise Refused("takes some of a shape, by an index that is not constant")
            return int(found)

        entry = self.entries[0]
        if not isinstance(entry, slice):
            return value.entries[number(entry)]
        bounds = map(number, (entry.start, entry.stop, entry.step))
        return Listed(value.entries[slice(*bounds)])

    def check_fixed(self, but: int | None = None, slices_only: bool = False) -> None:
        """Raise unless all entries, or all slices, but that of axis `but` are fixed."""
        for axis, entry in enumerate(self.entries):
            is_slice = isinstance(entry, slice)
            if axis == but or (slices_only and not is_slice):
                continue
            parts = (entry.start, entry.stop, entry.step) if is_slice else (entry,)
            for part in parts:
                if part is not None and not is_replicated(self.value(part)):
                    raise Refused(f"takes as an index {describe(self.value(part))}")

    # -- rows

    def taken(self, rows: Sharded) -> Sharded:
        """Return the value of the taken rows; raise unless all rows are taken."""
        self.check_fixed(but=rows.axis)
        if self.is_all(rows.axis, rows.length):
            return rows
        if self.is_reversed(rows.axis):
            return _reversed(rows)
        raise Refused("takes some of the rows, or another order of them")

    def paired(self, rows: Sharded) -> Sharded:
        """Check that entry i of the arrays takes from row i of the indexed array.

        Returns the value of the rows along the arrays' axis, which is negative.
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
        if self._numbers() > 1:
            raise Refused("takes the numbers of rows as another index")
        paired = align([replace(rows, axis=of_arrays.axis), of_arrays])
        assert paired is not None
        return paired

    def _numbers(self) -> int:
        """Return how many of the arrays are row numbers (`Position`)."""
        return sum(isinstance(self.value(var), Position) for var in self.arrays)

    def refuse_numbers(self) -> None:
        """Raise if row numbers index an array without rows."""
        if self._numbers():
            raise Refused(f"takes as an index {describe(Position())}")


def _takes_all(numbers: Position, rows: Sharded, whole: Length) -> bool:
    """Return whether there are as many numbers as entries along the rows' axis."""
    if rows.length == numbers.length == "n":
        return True
    return rows.length != "?" and numbers.count == whole


def _reversed(rows: Sharded) -> Sharded:
    """Return the value of rows in reverse order."""
    if rows.layout is None:
        return rows
    return replace(rows, layout=replace(rows.layout, reverse=not rows.layout.reverse))


# -- taking elements


@table.placement(*TAKING, Subtensor, lengths_from=1, by_elements=True, cost="move")
def subtensor(node: Apply, values: list[Value]) -> Value:
    """Elements of every row; or for each row, elements of an array without rows."""
    if selecting_mask(node, 1, values) is not None:
        assert isinstance(values[0], Sharded)
        return replace(values[0], length="some")
    index, value = Index(node, 1, values), values[0]
    if isinstance(value, Listed) and isinstance(node.op, Subtensor):
        return index.of_listed(value)
    value = unlisted(value)
    if isinstance(value, Position):
        raise Refused(f"takes some of {describe(value)}")
    if isinstance(value, Sharded):
        if isinstance(index.entries[value.axis], slice):
            return replace(index.taken(value), axis=index.kept.index(value.axis))
        paired = index.paired(value)
        return replace(paired, axis=index.axis_of(paired))
    rows = index.rows()
    index.check_fixed(slices_only=True)
    if rows is None:
        return value
    index.refuse_numbers()
    if not isinstance(value, Replicated):
        raise Refused(f"takes for each row some of {describe(value)}")
    return replace(rows, axis=index.axis_of(rows), power=value.power)


table.known(Subtensor, makes_sizes=True, cost="view")


@table.length(Subtensor)
def subtensor_length(node: Apply, var: Variable, axis: int) -> Length | None:
    """The length of an axis that is taken whole."""
    source = node.inputs[0]
    entries = entries_of_index(node, 1)
    kept = [i for i, entry in enumerate(entries) if isinstance(entry, slice)]
    kept += range(len(entries), source.type.ndim)
    place = kept[axis]
    whole = size(source, place)
    if place >= len(entries):
        return whole
    taken: Any = entries[place]
    start, stop, step = (
        None if part is None else length_of(part)
        for part in (taken.start, taken.stop, taken.step)
    )
    if start is None and stop is None and step == Length(-1):
        return whole
    if start in (None, Length(0)) and stop in (None, whole) and step in (None, ONE):
        return whole
    return None


@table.length(*TAKING)
def advanced_subtensor_length(node: Apply, var: Variable, axis: int) -> Length | None:
    """For one index array along the first axis: its lengths, then the other axes'."""
    source, *given = node.inputs
    if len(given) != 1 or getattr(node.op, "idx_list", (0,)) != (0,):
        return None
    (index,) = given
    if getattr(index.type, "dtype", "bool") == "bool":
        if getattr(index.type, "ndim", 0) != 1:
            return None
        return size(source, axis) if axis else selected_by(index)
    if axis < index.type.ndim:
        return size(index, axis)
    return size(source, axis - index.type.ndim + 1)


# -- setting and increasing elements


@table.placement(IncSubtensor)
@table.placement(*PUTTING, takes_some_rows=True)
def put(node: Apply, values: list[Value]) -> Value:
    """Elements set or increased in every row, or in an array without rows.

    If each row adds to places of its own, a sum over rows.
    """
    mask = selecting_mask(node, 2, values)
    if mask is None:
        return _put(node, Index(node, 2, values), values)
    given = values[1]
    is_rows = isinstance(given, Sharded) and is_some(given) and not given.axis
    if is_rows and size(node.inputs[1], 0) == selected_by(mask):
        assert isinstance(given, Sharded)
        return _combined(node, values[0], replace(given, length="n"))
    if not isinstance(given, Replicated) or node.inputs[1].type.ndim:
        raise Refused("puts something else to rows that a mask selects")
    return _combined(node, values[0], given)


table.known(
    *(*PUTTING, IncSubtensor),
    length=of_input(0),
    lengths_from=2,
    makes_sizes=True,
    by_elements=True,
    cost="move",
)


def _put(node: Apply, index: Index, values: list[Value]) -> Value:
    value, other = map(unlisted, values[:2])
    if isinstance(value, Position):
        raise Refused(f"changes {describe(value)}")
    ndim = len(index.kept)
    if isinstance(value, Sharded):
        if isinstance(index.entries[value.axis], slice):
            taken = index.taken(value)
            axis = index.kept.index(value.axis)
        else:
            paired = index.paired(value)
            taken = value = replace(value, layout=paired.layout)
            axis = index.axis_of(paired)
        other = _put_at(node.inputs[1], other, axis - ndim, taken)
        if isinstance(other, Sharded) and index.is_reversed(value.axis):
            other = _reversed(other)
        return _combined(node, value, other)
    rows = index.rows()
    index.check_fixed(slices_only=True)
    if rows is None:
        if isinstance(other, Sharded):
            raise Refused("puts rows into something of fixed length")
        if index.ndim and isinstance(other, Partial) and other.op != "sum":
            raise Refused(f"adds up {describe(other)}, where indices are repeated")
        return _combined(node, value, other)
    index.refuse_numbers()
    if node.op.set_instead_of_inc or getattr(node.op, "ignore_duplicates", False):
        raise Refused("lets the last of the rows win that write to one place")
    back = index.axis_of(rows) - ndim
    other = _put_at(node.inputs[1], other, back, rows)
    if isinstance(other, Partial) or rows.length == "?":
        raise Refused(f"adds for each row {describe(other)}")
    assert isinstance(other, (Sharded, Replicated))
    return total([value, Partial("sum", other.power)])


def _combined(node: Apply, value: Value, other: Value) -> Value:
    """Return the value of an array after elements have been set or increased."""
    return (selected if node.op.set_instead_of_inc else total)([value, other])


def _put_at(var: Variable, other: Value, back: int, rows: Sharded) -> Value:
    """Check that `other` has matching rows or is broadcast; return it at their axis.

    `other` is the value of `var`, which is put in; `back` is the rows' axis in the
    indexed shape, counted from the last.
    """
    ndim = var.type.ndim
    if isinstance(other, Sharded):
        if other.axis - ndim != back:
            raise Refused("pairs every row with every other row")
        if "?" in (other.length, rows.length):
            # A rank with one row would broadcast the other's rows.
            raise Refused("meets the rows with those of a sliceable shared variable")
        align([replace(other, axis=rows.axis), rows])
        return replace(other, axis=rows.axis)
    if ndim >= -back and var.type.shape[back] != 1:
        raise Refused("meets the rows with something of fixed length")
    return other


@table.padded(*PUTTING)
def add_of_real(padder: Padder, node: Apply, values: list[Value]) -> Made | None:
    """If each row adds to places of its own, copies add zero."""
    if is_padded(values[0]):
        return None
    values = [plain(value) for value in values]
    index = Index(node, 2, values)
    if index.rows() is None:
        return None
    padder.check_no_sizes(node.inputs[:1])
    # Raises unless it is a sum over the rows; then the result is exact.
    put(node, [Replicated(None), *values[1:]])
    inputs = [padder.new[var] for var in node.inputs]
    inputs[1] = _zero_in_copies(padder, node, index, values[1])
    return padder.exact(node, inputs)


def _zero_in_copies(padder: Padder, node: Apply, index: Index, other: Value) -> Any:
    """Return the values that rows add, with zero for copies.

    A value without rows is repeated for each row.
    """
    rows: Any = index.rows()
    if isinstance(other, Sharded):
        return padder.masked(node.inputs[1], 0, rows.layout or IN_ORDER)
    new = padder.new[node.inputs[1]]
    like = next(var for var in index.arrays if is_padded(index.value(var)))
    length = padder.new[like].shape[rows.axis + like.type.ndim]
    back = index.axis_of(rows) - len(index.kept)
    order: list[Any] = ["x"] * max(new.type.ndim, -back)
    order[back] = 0
    real = padder.real_places(length, rows).dimshuffle(order)
    return pt.switch(real, new, np.zeros((), new.type.dtype))
