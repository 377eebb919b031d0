"""Indexing: what takes elements out, and what puts them in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.subtensor import IncSubtensor, Subtensor

from .. import table
from ..domain import (
    IN_ORDER,
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
    selected,
    total,
    unlisted,
)
from ..lengths import (
    ONE,
    Length,
    length_of,
    of_input,
    selected_by,
    size,
)
from ..padded import Made, Padder, is_padded, plain
from .base import PUTTING, TAKING, is_selected_by, selecting_mask
from .index import Index, entries_of_index, reversed_rows
from .rowscans import changed_trail, taken_of_trail

# -- what is taken


@table.placement(*TAKING, Subtensor, lengths_from=1, by_elements=True, cost="move")
def subtensor(node: Apply, values: list[Value]) -> Value:
    """All rows, and some elements of each; or for each row some of what all have."""
    if selecting_mask(node, 1, values) is not None:
        assert isinstance(values[0], Sharded)
        return replace(values[0], length="some")
    index, value = Index(node, 1, values), values[0]
    if isinstance(value, Listed) and isinstance(node.op, Subtensor):
        bounds = index.bounds(0, "a shape, by an index that is not constant")
        if isinstance(bounds, tuple):
            return Listed(value.entries[slice(*bounds)])
        return value.entries[bounds]
    if isinstance(value, Trail) and isinstance(node.op, Subtensor):
        index.check_fixed()
        return taken_of_trail(value, index.bounds(0, "the rows"))
    value = unlisted(value)
    if isinstance(value, Position):
        raise Refused(f"takes some of {describe(value)}")
    place, kept = index.layout()
    if isinstance(value, Sharded):
        if isinstance(index.entries[value.axis], slice):
            taken = index.taken(value)
            return replace(taken, axis=kept.index(value.axis))
        paired = index.paired(value)
        return replace(paired, axis=place + index.ndim + paired.axis)
    rows = index.rows()
    index.check_fixed(slices_only=True)
    if rows is None:
        return value
    index.refuse_numbers()
    if not isinstance(value, Replicated):
        raise Refused(f"takes for each row some of {describe(value)}")
    return replace(rows, axis=place + index.ndim + rows.axis, power=value.power)


table.known(Subtensor, makes_sizes=True, cost="view")


@table.padded(Subtensor)
def first_of_real(padder: Padder, node: Apply, values: list[Value]) -> Made | None:
    """The first row, which is no copy; it is the first of the first block."""
    return padder.exact(node) if _is_of_first_row(node, 1, values) else None


def _is_of_first_row(node: Apply, first: int, values: list[Value]) -> bool:
    rows = plain(values[0])
    if not isinstance(rows, Sharded):
        return False
    index = Index(node, first, values)
    if not index.is_first(rows.axis):
        return False
    index.check_fixed(but=rows.axis)
    return True


@table.length(Subtensor)
def subtensor_length(node: Apply, var: Variable, axis: int) -> Length | None:
    """Of an axis that is taken whole."""
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
    """Elements that one array chooses, along the first axis."""
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


# -- what is put


@table.placement(IncSubtensor)
def inc_subtensor(node: Apply, values: list[Value]) -> Value:
    """Elements set or increased, in all rows or where there are none."""
    if isinstance(values[0], Trail):
        return _put_into_trail(node, Index(node, 2, values), values)
    return _put(node, Index(node, 2, values), values)


@table.placement(*PUTTING, takes_some_rows=True)
def advanced_inc_subtensor(node: Apply, values: list[Value]) -> Value:
    """As for reading; where every row adds to places of its own choice, a sum."""
    mask = selecting_mask(node, 2, values)
    if mask is None:
        return _put(node, Index(node, 2, values), values)
    given = values[1]
    if is_selected_by(mask, node.inputs[1], given):
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


def _put_into_trail(node: Apply, index: Index, values: list[Value]) -> Value:
    """Put something into an entry of a trail, or into all but the first."""
    trail, other = values[:2]
    assert isinstance(trail, Trail)
    index.check_fixed()
    if node.inputs[1].type.ndim < len(index.layout()[1]) or len(index.arrays) > 1:
        raise Refused(f"changes some of {describe(trail)}")
    put = selected if node.op.set_instead_of_inc else total
    return changed_trail(trail, index.bounds(0, "the rows"), other, put)


def _put(node: Apply, index: Index, values: list[Value]) -> Value:
    value, other = map(unlisted, values[:2])
    if isinstance(value, Position):
        raise Refused(f"changes {describe(value)}")
    place, kept = index.layout()
    ndim = len(kept)
    if isinstance(value, Sharded):
        if isinstance(index.entries[value.axis], slice):
            taken = index.taken(value)
            axis = kept.index(value.axis)
        else:
            paired = index.paired(value)
            taken = value = replace(value, layout=paired.layout)
            axis = place + index.ndim + paired.axis
        other = _put_at(node.inputs[1], other, axis - ndim, taken)
        if isinstance(other, Sharded) and index.is_reversed(value.axis):
            other = reversed_rows(other)
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
    back = place + index.ndim + rows.axis - ndim
    other = _put_at(node.inputs[1], other, back, rows)
    if isinstance(other, Partial) or rows.length == "?":
        raise Refused(f"adds for each row {describe(other)}")
    assert isinstance(other, (Sharded, Replicated))
    return total([value, Partial("sum", other.power)])


def _combined(node: Apply, value: Value, other: Value) -> Value:
    """Return what an array is of which some elements are set or increased."""
    return (selected if node.op.set_instead_of_inc else total)([value, other])


def _put_at(var: Variable, other: Value, back: int, rows: Sharded) -> Value:
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


@table.padded(IncSubtensor)
def put_into_first(padder: Padder, node: Apply, values: list[Value]) -> Made | None:
    """The first row, which is no copy, set or increased."""
    if not _is_of_first_row(node, 2, values):
        return None
    if is_padded(values[1]):
        raise Refused("changes some of the rows")
    rows = plain(values[0])
    assert isinstance(rows, Sharded)
    made = padder.made(node, [padder.new[var] for var in node.inputs])
    return Made(made, [replace(rows, power=0, layout=rows.layout or IN_ORDER)])


@table.padded(*PUTTING)
def add_of_real(padder: Padder, node: Apply, values: list[Value]) -> Made | None:
    """Where every row adds to places of its own choice, the copies add zero."""
    if is_padded(values[0]):
        return None
    values = [plain(value) for value in values]
    index = Index(node, 2, values)
    if index.rows() is None:
        return None
    padder.check_no_sizes(node.inputs[:1])
    # Raises if it is no sum over the rows. That is exact, and what it is added to, too.
    advanced_inc_subtensor(node, [Replicated(None), *values[1:]])
    inputs = [padder.new[var] for var in node.inputs]
    inputs[1] = _zero_in_copies(padder, node, index, values[1])
    return padder.exact(node, inputs)


def _zero_in_copies(padder: Padder, node: Apply, index: Index, other: Value) -> Any:
    """Return what rows add, with nothing where copies are.

    What is the same for all rows is repeated for it.
    """
    rows: Any = index.rows()
    if isinstance(other, Sharded):
        return padder.masked(node.inputs[1], 0, rows.layout or IN_ORDER)
    new = padder.new[node.inputs[1]]
    like = next(var for var in index.arrays if is_padded(index.value(var)))
    length = padder.new[like].shape[rows.axis + like.type.ndim]
    place, kept = index.layout()
    back = place + index.ndim + rows.axis - len(kept)
    order: list[Any] = ["x"] * max(new.type.ndim, -back)
    order[back] = 0
    real = padder.real_places(length, rows).dimshuffle(order)
    return pt.switch(real, new, np.zeros((), new.type.dtype))
