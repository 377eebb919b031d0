"""Indexing by arrays: for each row elements of it, or of what is the same for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable

from .. import table
from ..domain import (
    IN_ORDER,
    Partial,
    Position,
    Refused,
    Replicated,
    Sharded,
    Value,
    align,
    describe,
    is_replicated,
    total,
    unlisted,
)
from ..lengths import Length, of_input, selected_by, size
from ..padded import Made, Padder, is_padded, plain
from .base import PUTTING, TAKING, check_spread, is_selected_by, selecting_mask
from .indexing import Index, put, put_at, reversed_rows


@table.placement(*TAKING)
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


table.known(*TAKING, lengths_from=1, by_elements=True, cost="move")


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


@table.placement(*PUTTING, takes_some_rows=True)
def advanced_inc_subtensor(node: Apply, values: list[Value]) -> Value:
    """As for reading; where every row adds to places of its own choice, a sum."""
    mask = selecting_mask(node, 2, values)
    if mask is not None:
        given = values[1]
        if is_selected_by(mask, node.inputs[1], given):
            assert isinstance(given, Sharded)
            return put(node, values[0], replace(given, length="n"))
        if not isinstance(given, Replicated) or node.inputs[1].type.ndim:
            raise Refused("puts something else to rows that a mask selects")
        return put(node, values[0], given)
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
        other = put_at(node.inputs[1], other, axis - ndim, taken)
        if isinstance(other, Sharded) and index.is_reversed(value.axis):
            other = reversed_rows(other)
        return put(node, value, other)
    _check_slices(index)
    if arrays.rows is None:
        if isinstance(other, Sharded):
            raise Refused("puts rows into something of fixed length")
        if isinstance(other, Partial) and other.op != "sum":
            raise Refused(f"adds up {describe(other)}, where indices are repeated")
        return put(node, value, other)
    _refuse_numbers(index)
    if node.op.set_instead_of_inc or getattr(node.op, "ignore_duplicates", False):
        raise Refused("lets the last of the rows win that write to one place")
    back = place + arrays.ndim + arrays.rows.axis - ndim
    other = put_at(node.inputs[1], other, back, arrays.rows)
    if isinstance(other, Partial) or arrays.rows.length == "?":
        raise Refused(f"adds for each row {describe(other)}")
    assert isinstance(other, (Sharded, Replicated))
    return total([value, Partial("sum", other.power)])


table.known(
    *PUTTING,
    length=of_input(0),
    lengths_from=2,
    makes_sizes=True,
    by_elements=True,
    cost="move",
)


@table.padded(*PUTTING)
def add_of_real(padder: Padder, node: Apply, values: list[Value]) -> Made | None:
    """Where every row adds to places of its own choice, the copies add zero."""
    if is_padded(values[0]):
        return None
    values = [plain(value) for value in values]
    index = Index(node, 2, values)
    rows = _broadcast(index).rows
    if rows is None:
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
    arrays = _broadcast(index)
    rows: Any = arrays.rows
    if isinstance(other, Sharded):
        return padder.masked(node.inputs[1], 0, rows.layout or IN_ORDER)
    new = padder.new[node.inputs[1]]
    like = next(var for var in index.arrays if is_padded(index.value(var)))
    length = padder.new[like].shape[rows.axis + like.type.ndim]
    place, kept = layout_of(index)
    back = place + arrays.ndim + rows.axis - len(kept)
    order: list[Any] = ["x"] * max(new.type.ndim, -back)
    order[back] = 0
    real = padder.real_places(length, rows).dimshuffle(order)
    return pt.switch(real, new, np.zeros((), new.type.dtype))


class _Arrays:
    """Index arrays, broadcast against one another."""

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
