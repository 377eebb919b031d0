"""Indexing by numbers and slices: what takes elements out, and what puts them in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.subtensor import IncSubtensor, Subtensor, indices_from_subtensor
from pytensor.tensor.type_other import MakeSlice, SliceType

from .. import table
from ..domain import (
    IN_ORDER,
    Listed,
    Position,
    Refused,
    Replicated,
    Sharded,
    Trail,
    Value,
    align,
    constant,
    describe,
    is_replicated,
    selected,
    total,
    unlisted,
)
from ..lengths import ONE, Length, known_entries, length_of, of_input, size
from ..padded import Made, Padder, is_padded, plain

Known = dict[Variable, Value]


class Index:
    """An index with an entry for each axis of what is indexed.

    The inputs of a node from the `first` on belong to it.
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
            return constant(float(entry))
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

    def is_first(self, axis: int) -> bool:
        """Tell whether the first element is taken along an axis."""
        entry = self.entries[axis]
        if isinstance(entry, slice):
            return False
        place = self.value(entry)
        return isinstance(place, Replicated) and place.number == 0

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


# -- what is taken


@table.placement(Subtensor)
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
        return _taken_of_trail(value, index.bounds(0))
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


table.known(Subtensor, lengths_from=1, makes_sizes=True, by_elements=True, cost="view")


@table.padded(Subtensor)
def first_of_real(padder: Padder, node: Apply, values: list[Value]) -> Made | None:
    """The first row, which is no copy; it is the first of the first block."""
    rows = plain(values[0])
    if not isinstance(rows, Sharded):
        return None
    index = Index(node, 1, values)
    if not index.is_first(rows.axis):
        return None
    index.check_fixed(but=rows.axis)
    return padder.exact(node)


@table.length(Subtensor)
def subtensor_length(node: Apply, var: Variable, axis: int) -> Length | None:
    """Of an axis that is taken whole."""
    source = node.inputs[0]
    entries = list(indices_from_subtensor(node.inputs[1:], node.op.idx_list))
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


@table.value(Subtensor)
def subtensor_value(node: Apply, var: Variable, which: str) -> Length | None:
    """An entry of a shape."""
    entry = _one_index(node)
    entries = known_entries(node.inputs[0]) if node.inputs[0].type.ndim == 1 else None
    if entry is None or entries is None or not -len(entries) <= entry < len(entries):
        return None
    return entries[entry]


def _one_index(node: Apply) -> int | None:
    (entry,) = indices_from_subtensor(node.inputs[1:], node.op.idx_list)
    if isinstance(entry, slice):
        return None
    found = length_of(entry)
    return None if found.symbols else found.number


@table.entries(Subtensor)
def subtensor_entries(node: Apply) -> list[Length] | None:
    """Some of a shape."""
    entries = known_entries(node.inputs[0])
    (entry,) = indices_from_subtensor(node.inputs[1:], node.op.idx_list)
    if entries is None or not isinstance(entry, slice):
        return None
    parts = []
    for part in (entry.start, entry.stop, entry.step):
        found = None if part is None else length_of(part)
        if found is not None and found.symbols:
            return None
        parts.append(None if found is None else found.number)
    return entries[slice(*parts)]


# -- what is put


@table.placement(IncSubtensor)
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
        other = put_at(node.inputs[1], other, back, taken)
        if isinstance(other, Sharded) and index.is_reversed(value.axis):
            other = reversed_rows(other)
        return put(node, value, other)
    index.check_fixed()
    if isinstance(other, Sharded):
        raise Refused("puts rows into something of fixed length")
    return put(node, value, other)


table.known(
    IncSubtensor,
    length=of_input(0),
    lengths_from=2,
    makes_sizes=True,
    by_elements=True,
    cost="move",
)


@table.padded(IncSubtensor)
def put_into_first(padder: Padder, node: Apply, values: list[Value]) -> Made | None:
    """The first row, which is no copy, set or increased."""
    rows = plain(values[0])
    if not isinstance(rows, Sharded):
        return None
    index = Index(node, 2, values)
    if not index.is_first(rows.axis):
        return None
    index.check_fixed(but=rows.axis)
    if is_padded(values[1]):
        raise Refused("changes some of the rows")
    made = padder.made(node, [padder.new[var] for var in node.inputs])
    return Made(made, [replace(rows, power=0, layout=rows.layout or IN_ORDER)])


def _put_into_trail(node: Apply, index: Index, values: list[Value]) -> Value:
    """Put something into an entry of a trail, or into all but the first."""
    trail, other = values[:2]
    assert isinstance(trail, Trail)
    index.check_fixed()
    if node.inputs[1].type.ndim < len(index.kept()) or len(index.arrays) > 1:
        raise Refused(f"changes some of {describe(trail)}")
    sets = node.op.set_instead_of_inc
    return _changed_trail(trail, index.bounds(0), other, selected if sets else total)


def put(node: Apply, value: Value, other: Value) -> Value:
    """Return what an array is of which some elements are set or increased."""
    return (selected if node.op.set_instead_of_inc else total)([value, other])


def put_at(var: Variable, other: Value, back: int, rows: Sharded) -> Value:
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


Bounds = int | tuple[int | None, ...]
"""A number, or start, stop and step of a slice."""

_TURNED = {"first": "last", "last": "first", "all": "all"}


def _taken_of_trail(trail: Trail, bounds: Bounds) -> Value:
    """Return what comes of indexing the steps."""
    if isinstance(bounds, int):
        found = {0: _entry(trail, "first"), -1: _entry(trail, "last")}.get(bounds)
        if found is not None:
            return found
    elif _is_whole(bounds):
        return trail
    elif bounds == (None, None, -1):
        return replace(trail, place=_TURNED[trail.place])
    elif _skips_first(bounds) and trail.offset > 0 and trail.place != "first":
        # What is left has an entry for each row, so the last one is among it.
        return replace(trail, offset=trail.offset - 1)
    raise Refused(f"takes some of {describe(trail)}")


def _changed_trail(
    trail: Trail,
    bounds: Bounds,
    other: Value,
    put: Callable[[Sequence[Value]], Value],
) -> Value:
    """Return what comes of setting or increasing entries, where all were alike."""
    is_first = bounds in (0, (None, 1, None), (0, 1, None))
    if trail.place == "all" and (is_first or bounds == -1):
        other = unlisted(other)
        if isinstance(other, Sharded):
            raise Refused(f"puts rows into {describe(trail)}")
        # Where anything may be, it is not added to.
        one = other if trail.one is None else put([trail.one, other])
        return replace(trail, one=one, place="first" if is_first else "last")
    if (
        isinstance(bounds, tuple)
        and _skips_first(bounds)
        and isinstance(other, Trail)
        and 0 < trail.offset == other.offset + 1
        and trail.place == "all"
        and other.place != "first"
        and other.one is not None
        and _are_zeros(trail.rest)
        and _are_zeros(other.rest)
    ):
        assert trail.rest is not None
        return replace(trail, one=put([trail.rest, other.one]), place="last")
    raise Refused(f"changes some of {describe(trail)}")


def _entry(trail: Trail, place: str) -> Value | None:
    return trail.one if trail.place in (place, "all") else None


def _are_zeros(value: Value | None) -> bool:
    return isinstance(value, Replicated) and value.power is None


def _is_whole(bounds: Sequence[int | None]) -> bool:
    start, stop, step = bounds
    return start in (None, 0) and stop is None and step in (None, 1)


def _skips_first(bounds: Sequence[int | None]) -> bool:
    start, stop, step = bounds
    return start == 1 and stop is None and step in (None, 1)


def first_of(value: Value) -> Value:
    """Return what a scan along the rows starts with."""
    if isinstance(value, Trail) and value.offset == 1:
        found = _entry(value, "first")
        if found is not None:
            return found
    raise Refused("starts along the rows with what is not understood")


def others_of(value: Value) -> Replicated:
    """Return what is in the entries after the first."""
    if (
        isinstance(value, Trail)
        and value.place != "last"
        and isinstance(value.rest, Replicated)
    ):
        return value.rest
    raise Refused("takes along the rows what is not understood")
