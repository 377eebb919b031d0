"""Axes in another order, arrays side by side, cut, or seen along a diagonal."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from pytensor.graph.basic import Apply, Variable
from pytensor.tensor import basic as ptb
from pytensor.tensor.elemwise import DimShuffle

from .. import table
from ..axes import apart
from ..domain import (
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
from ..lengths import Length, known_entries, size, value_of
from .shapes import entries


@table.placement(DimShuffle, takes_some_rows=True)
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


table.known(DimShuffle, makes_sizes=True)


@table.length(DimShuffle)
def dimshuffle_length(node: Apply, var: Variable, axis: int) -> Length:
    """That of the axis which comes to lie there."""
    return size(node.inputs[0], node.op.new_order[axis])


@table.value(DimShuffle)
def dimshuffle_value(node: Apply, var: Variable, which: str) -> Length | None:
    """Return the entry of a shape, as PyTensor rewrites a vector's ``x.shape[0]``."""
    (given,) = node.inputs
    entries = known_entries(given) if given.type.ndim else [value_of(given)]
    return None if entries is None else entries[0]


@table.entries(DimShuffle)
def dimshuffle_entries(node: Apply) -> list[Length] | None:
    """A scalar, as a vector."""
    (given,) = node.inputs
    return None if given.type.ndim else [value_of(given)]


@table.placement(ptb.Join)
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


table.known(ptb.Join, makes_sizes=True)


@table.length(ptb.Join)
def join_length(node: Apply, var: Variable, axis: int) -> Length | None:
    """Beside the axis that it is along."""
    where, parts = apart(node, node.inputs)
    return size(parts[0], axis) if isinstance(where, int) and where != axis else None


@table.entries(ptb.Join)
def join_entries(node: Apply) -> list[Length] | None:
    """Those of all parts."""
    joined: list[Length] = []
    for part in apart(node, node.inputs)[1]:
        found = known_entries(part)
        if found is None:
            return None
        joined += found
    return joined


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


@table.length(ptb.ExtractDiag)
def diagonal_length(node: Apply, var: Variable, axis: int) -> Length | None:
    """Beside the diagonal."""
    source, gone = node.inputs[0], (node.op.axis1, node.op.axis2)
    kept = [i for i in range(source.type.ndim) if i not in gone]
    return size(source, kept[axis]) if axis < len(kept) else None


@table.placement(ptb.Split)
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
