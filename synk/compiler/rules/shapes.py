"""Shapes: the lengths of arrays as numbers, and vectors of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor import basic as ptb
from pytensor.tensor.shape import Shape, Shape_i

from .. import table
from ..domain import (
    Count,
    Listed,
    Partial,
    Position,
    Refused,
    Replicated,
    Sharded,
    Trail,
    Unknown,
    Value,
    describe,
    is_replicated,
    selected,
)
from ..lengths import Length, size, value_of
from ..padded.padder import Made, Padder
from ..padded.states import plain


def length(value: Value, axis: int) -> Value:
    """Return what the length of an axis is."""
    if isinstance(value, Unknown):
        return value
    if isinstance(value, (Sharded, Position)) and value.axis == axis:
        if value.length == "?":
            return Unknown(
                "Shape",
                f"axis {axis}",
                "counts the rows of a sliceable shared variable, which are not the"
                " rows that the ranks are weighed by",
            )
        if value.length == "some":
            return Partial("sum")
        return Replicated(1, exact=value.length == "n")
    if isinstance(value, Trail) and axis == 0:
        return Count(value.offset) if value.offset else Replicated(1, exact=True)
    return Replicated()


def _fixed(node: Apply, axis: int) -> Value | None:
    found = size(node.inputs[0], axis)
    if found.symbols:
        return None
    return Replicated(0 if found.number else None, number=found.number)


@table.placement(Shape, takes_unknown=True, takes_some_rows=True)
def shape(node: Apply, values: list[Value]) -> Value:
    """The lengths of all axes."""
    axes = range(node.inputs[0].type.ndim)
    return Listed(tuple(_fixed(node, i) or length(values[0], i) for i in axes))


@table.placement(Shape_i, takes_unknown=True, takes_some_rows=True)
def shape_i(node: Apply, values: list[Value]) -> Value:
    """The length of one axis."""
    return _fixed(node, node.op.i) or length(values[0], node.op.i)


@table.padded(Shape)
def real_shape(padder: Padder, node: Apply, values: list[Value]) -> Made:
    """Of what is padded a size."""
    (var,), (out,) = node.inputs, node.outputs
    new = padder.new[var]
    made = padder.made(node, [new])
    rows = plain(values[0])
    if isinstance(rows, Sharded):
        padder.long[out] = made[0]
        lengths = list(new.shape)
        lengths[rows.axis] = _real_length(padder, new, rows.axis)
        made = [pt.stack(lengths)]
    return Made(made, [shape(node, values)])


@table.padded(Shape_i)
def real_length(padder: Padder, node: Apply, values: list[Value]) -> Made:
    """Along the rows' axis a size."""
    (var,), (out,) = node.inputs, node.outputs
    new = padder.new[var]
    made = padder.made(node, [new])
    rows = plain(values[0])
    if isinstance(rows, Sharded) and rows.axis == node.op.i:
        padder.long[out] = made[0]
        made = [_real_length(padder, new, rows.axis)]
    return Made(made, [shape_i(node, values)])


def _real_length(padder: Padder, new: Any, axis: int) -> Any:
    """Return how long an axis is without the copies."""
    return padder.real * (new.shape[axis] // padder.padded_rows)


@table.entries(Shape)
def shape_entries(node: Apply) -> list[Length]:
    """The lengths of all axes."""
    (of,) = node.inputs
    return [size(of, axis) for axis in range(of.type.ndim)]


@table.value(Shape_i)
def shape_i_value(node: Apply, var: Variable, which: str) -> Length:
    """The length of one axis."""
    return size(node.inputs[0], node.op.i)


@table.placement(ptb.MakeVector, takes_unknown=True)
def make_vector(node: Apply, values: list[Value]) -> Value:
    """A vector of scalars."""
    if all(isinstance(value, (Replicated, Unknown)) for value in values):
        return Listed(tuple(values))
    for value in values:
        if isinstance(value, Unknown):
            return value
    return selected(values)


table.known(ptb.MakeVector, makes_sizes=True)


@table.entries(ptb.MakeVector)
def make_vector_entries(node: Apply) -> list[Length]:
    """The scalars."""
    return [value_of(given) for given in node.inputs]


# -- shapes that arrays are given


def entries(node: Apply, position: int, values: Sequence[Value]) -> list[Value]:
    """Return the entries of an input that holds a shape."""
    value = values[position]
    if isinstance(value, Listed):
        return list(value.entries)
    var = node.inputs[position]
    if isinstance(value, Replicated) and value.power and var.type.shape == (1,):
        return [value]
    if not is_replicated(value) or var.type.shape[0] is None:
        raise Refused("takes a shape that is not understood")
    data = getattr(var, "data", None)
    if data is None:
        return [Replicated()] * var.type.shape[0]
    return [Replicated(0 if size else None, number=float(size)) for size in data]


def row_axis(lengths: Sequence[Value]) -> int | None:
    """Return the axis whose length is a multiple of n; the others' must be fixed."""
    found = None
    for axis, value in enumerate(lengths):
        if isinstance(value, Unknown):
            raise Refused(f"takes a shape that is not understood: {value}")
        if is_replicated(value):
            continue
        if found is not None:
            raise Refused("makes an array whose size grows with the square of the rows")
        if not isinstance(value, Replicated) or value.power != 1:
            raise Refused(f"takes as a length what is {describe(value)}")
        found = axis
    return found


def row_length(value: Value) -> str:
    """Return the kind of length of rows along an axis that is so long."""
    return "n" if isinstance(value, Replicated) and value.exact else "kn"
