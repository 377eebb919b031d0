"""Axes in another order or shape, arrays side by side, cut, or along a diagonal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from pytensor.graph.basic import Apply, Variable
from pytensor.tensor import basic as ptb
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.shape import Reshape

from .. import table
from ..domain import (
    IN_ORDER,
    Layout,
    Listed,
    Position,
    Refused,
    Replicated,
    Sharded,
    Value,
    describe,
    is_replicated,
    selected,
    unlisted,
)
from ..lengths import ONE, Length, entries_of, product, size
from ..sizes import are_filled
from .base import apart
from .shapes import entries, row_axis, row_length


@table.placement(DimShuffle, takes_some_rows=True, **table.VIEW)
def dimshuffle(node: Apply, values: list[Value]) -> Value:
    """Axes in another order, added or dropped; none is as long as there are rows."""
    (value,) = values
    order = list(node.op.new_order)
    if isinstance(value, (Sharded, Position)):
        if value.axis not in order:
            raise Refused("drops the rows' axis")
        return replace(value, axis=order.index(value.axis))
    if isinstance(value, Listed) and not order:
        (value,) = value.entries  # x.shape[0] of a vector, as PyTensor rewrites it
    return unlisted(value)


@table.length(DimShuffle)
def dimshuffle_length(node: Apply, var: Variable, axis: int) -> Length:
    """That of the axis which comes to lie there."""
    return size(node.inputs[0], node.op.new_order[axis])


@table.placement(
    ptb.Join, makes_sizes=True, same_in_jax=True, by_elements=True, cost="move"
)
def join(node: Apply, values: list[Value]) -> Value:
    """Side by side along another axis than the rows'."""
    axis, parts = apart(node, values)
    if not isinstance(axis, int):
        raise Refused("joins along an axis that is not constant")
    kinds = {type(part) for part in parts}
    if Listed in kinds and kinds <= {Listed, Replicated}:
        _, places = apart(node, range(len(values)))
        with suppress(Refused):  # what is as long as nobody knows is no shape
            joined = [entries(node, i, values) for i in places]
            return Listed(tuple(entry for part in joined for entry in part))
    parts = [unlisted(part) for part in parts]
    rows = [part for part in parts if isinstance(part, Sharded)]
    for part in rows:
        if part.axis == axis:
            raise Refused("joins along the rows: those of all parts would be mingled")
    if rows and len(rows) < len(parts):
        raise Refused("joins rows with something of fixed length")
    return selected(parts)


@table.length(ptb.Join)
def join_length(node: Apply, var: Variable, axis: int) -> Length | None:
    """Beside the axis that it is along."""
    where, parts = apart(node, node.inputs)
    return size(parts[0], axis) if isinstance(where, int) and where != axis else None


@table.placement(ptb.ExtractDiag)
def diagonal(node: Apply, values: list[Value]) -> Value:
    """Some elements of each row, or of what is combined over the rows."""
    value = unlisted(values[0])
    axes = node.op.axis1, node.op.axis2
    if isinstance(value, (Sharded, Position)):
        if value.axis in axes:
            raise Refused("takes a diagonal, along the rows")
        before = sum(axis < value.axis for axis in axes)
        return replace(value, axis=value.axis - before)
    return value


@table.placement(ptb.Split, by_elements=True, cost="view")
def split(node: Apply, values: list[Value]) -> list[Value]:
    """Cut along another axis than the rows'."""
    axis, (value, sizes) = apart(node, values)
    value = unlisted(value)
    if not is_replicated(unlisted(sizes)) or not isinstance(axis, (int, Replicated)):
        raise Refused("splits at places that depend on the rows")
    if isinstance(value, Sharded):
        if not isinstance(axis, int):
            raise Refused("splits along an axis that is not constant")
        if axis == value.axis:
            raise Refused("splits along the rows")
    elif isinstance(value, Position):
        raise Refused(f"splits {describe(value)}")
    return [value] * len(node.outputs)


@table.placement(Reshape, lengths_from=1, **table.VIEW)
def reshape(node: Apply, values: list[Value]) -> Value:
    """Rows stay rows, in as many blocks as before, or fewer with axes before them.

    In memory, there are ``L`` blocks with ``S`` elements of each of n rows, where ``L``
    is the product of the lengths before the rows' axis and of the blocks along it, and
    ``S`` that of the lengths after. A reshape keeps the order of elements, so the
    lengths before the new axis must divide ``L``: what is left are blocks.
    """
    value = unlisted(values[0])
    lengths = entries(node, 1, values)
    if isinstance(value, Position):
        return _reshaped_position(value, lengths)
    if not isinstance(value, Sharded):
        if not all(map(is_replicated, lengths)):
            raise Refused("gives something without rows a length that depends on them")
        return value
    axis = row_axis(lengths)
    if axis is None:
        axis = _inferred(lengths)
        if axis is None:
            raise Refused("gives the rows' axis a length that does not follow theirs")
        _check_divides(node, value, axis)
        kind = "kn" if value.length != "?" else "?"
    else:
        kind = row_length(lengths[axis])
    layout = _blocks(node, value, axis, kind)
    return Sharded(axis, value.power, kind, layout)


@table.length(Reshape)
def reshape_length(node: Apply, var: Variable, axis: int) -> Length | None:
    """What it is told, or what is left of all elements."""
    length = reshaped(node)[axis]
    return length if length.number >= 0 else None


def reshaped(node: Apply) -> list[Length]:
    """Return the lengths that a reshape gives; -1 in place of one that is not found."""
    lengths = entries_of(node.inputs[1])
    for axis, length in enumerate(lengths):
        if length.number < 0:  # what is left of all elements
            source = node.inputs[0]
            sizes = [size(source, i) for i in range(source.type.ndim)]
            others = product([*lengths[:axis], *lengths[axis + 1 :]])
            lengths[axis] = product(sizes) / others or length
    return lengths


def _check_divides(node: Apply, rows: Sharded, axis: int) -> None:
    """Raise if the elements of a number of rows may not fill the axis of length -1.

    Two columns need an even number of rows that have one element each, which all rows
    may have, and a rank's not. Where it is not known here how many a row has, calls are
    asked.
    """
    new = reshaped(node)
    if new[axis].number >= 0:
        return
    source = node.inputs[0]
    others = [i for i in range(source.type.ndim) if i != rows.axis]
    of_row = product(size(source, i) for i in others)
    needed = product([*new[:axis], *new[axis + 1 :]])
    are_known = not (of_row.symbols_only() - needed.symbols_only())
    if (rows.length == "n" and are_known) or not are_filled(node, axis):
        raise Refused("needs a number of rows that ranks may not have")


def _blocks(node: Apply, rows: Sharded, axis: int, kind: str) -> Layout | None:
    """Return how rows lie along an axis of a new shape."""
    source = node.inputs[0]
    old = [size(source, i) for i in range(source.type.ndim)]
    new = reshaped(node)
    before, after = product(old[: rows.axis]), product(old[rows.axis + 1 :])
    new_before, new_after = product(new[:axis]), product(new[axis + 1 :])
    if rows.layout is None and new_after == after and new_before / before:
        return None  # nothing differs along the axis, or along what it is split into
    layout = rows.layout or IN_ORDER
    # With a length of n before and after, L is what else there is.
    if rows.length == kind == "n" and layout.blocks == ONE and new_after == after:
        return layout
    # By what lies before the rows, or else by what is left of all elements.
    blocks = product([before, layout.blocks]) / new_before
    if blocks is None:
        blocks = product([*new[axis:], layout.blocks]) / product(old[rows.axis :])
    if blocks is None or (blocks != ONE and kind == "n"):
        raise Refused("reshapes rows to lie elsewhere than they did")
    # More blocks than one must end where an entry along the new axis does.
    if blocks != ONE and after / new_after is None and new[axis] / blocks is None:
        raise Refused("reshapes rows to lie elsewhere than they did")
    return replace(layout, blocks=blocks, block=new[axis] / blocks)


def _reshaped_position(value: Position, lengths: Sequence[Value]) -> Value:
    """Numbers of rows, along another axis: as many, as the others have length 1."""
    axis = row_axis(lengths)
    axis = _inferred(lengths) if axis is None else axis
    others = [_number(size) for i, size in enumerate(lengths) if i != axis]
    if axis is None or any(size != 1 for size in others):
        raise Refused(f"gives another shape to {describe(Position())}")
    return replace(value, axis=axis)


def _number(value: Value) -> int | None:
    if not isinstance(value, Replicated) or value.number is None:
        return None
    return int(value.number)


def _inferred(lengths: Iterable[Value]) -> int | None:
    """Return the axis whose length is given as -1."""
    for axis, value in enumerate(lengths):
        if isinstance(value, Replicated) and value.number == -1:
            return axis
    return None
