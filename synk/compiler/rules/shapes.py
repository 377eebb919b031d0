"""Shapes, arrays that are made of a given shape, and Ops that hand on their input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytensor.tensor as pt
from pytensor.compile.ops import DeepCopyOp, ViewOp
from pytensor.graph.basic import Apply
from pytensor.printing import Print
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor import basic as ptb
from pytensor.tensor.extra_ops import CpuContiguous
from pytensor.tensor.shape import Shape, Shape_i, SpecifyShape
from pytensor.tensor.type_other import NoneTypeT

from ...ops import OwnRows
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
    constant,
    describe,
    is_replicated,
    selected,
    unlisted,
)
from ..lengths import of_input, of_numbers, size, value_of
from ..padded import Made, Padder, plain
from .base import is_short


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
    return None if found.symbols else constant(found.number)


@table.placement(Shape, takes_unknown=True, takes_some_rows=True)
def shape(node: Apply, values: list[Value]) -> Value:
    """The lengths of all axes."""
    axes = range(node.inputs[0].type.ndim)
    return Listed(tuple(_fixed(node, i) or length(values[0], i) for i in axes))


@table.placement(Shape_i, takes_unknown=True, takes_some_rows=True)
def shape_i(node: Apply, values: list[Value]) -> Value:
    """The length of one axis."""
    return _fixed(node, node.op.i) or length(values[0], node.op.i)


table.known(Shape, Shape_i, same_in_jax=True, by_elements=True, cost="view")


@table.padded(Shape, Shape_i)
def real_shape(padder: Padder, node: Apply, values: list[Value]) -> Made:
    """Of what is padded, along the rows' axis, a size."""
    (var,), (out,) = node.inputs, node.outputs
    new, rows = padder.new[var], plain(values[0])
    made = padder.made(node, [new])
    is_whole = isinstance(node.op, Shape)
    if isinstance(rows, Sharded) and (is_whole or rows.axis == node.op.i):
        padder.long[out] = made[0]
        lengths = list(new.shape)
        lengths[rows.axis] = _real_length(padder, new, rows.axis)
        made = [pt.stack(lengths) if is_whole else lengths[rows.axis]]
    return Made(made, [(shape if is_whole else shape_i)(node, values)])


def _real_length(padder: Padder, new: Any, axis: int) -> Any:
    """Return how long an axis is without the copies."""
    return padder.real * (new.shape[axis] // padder.padded_rows)


@table.placement(ptb.MakeVector, takes_unknown=True, **table.VIEW)
def make_vector(node: Apply, values: list[Value]) -> Value:
    """A vector of scalars."""
    if all(isinstance(value, (Replicated, Unknown)) for value in values):
        return Listed(tuple(values))
    for value in values:
        if isinstance(value, Unknown):
            return value
    return selected(values)


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
    return [constant(float(size)) for size in data]


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


# -- arrays of a given shape


@table.placement(ptb.Alloc, length=of_numbers(1), lengths_from=1, **table.VIEW)
def alloc(node: Apply, values: list[Value]) -> Value:
    """A value repeated."""
    if len(values) > 1 and isinstance(values[1], Count):
        return _trail(unlisted(values[0]), values[1:])
    value, lengths = unlisted(values[0]), values[1:]
    inner = node.inputs[0].type
    axis = row_axis(lengths)
    added = len(lengths) - inner.ndim
    if isinstance(value, Sharded):
        if axis != value.axis + added:
            raise Refused("repeats rows along another axis")
        return replace(value, axis=value.axis + added)
    if axis is None:
        if isinstance(value, (Replicated, Partial)):
            return value
        raise Refused(f"repeats {describe(value)}")
    if not isinstance(value, Replicated):
        raise Refused(f"repeats {describe(value)} for each row")
    if axis >= added and inner.shape[axis - added] != 1:
        raise Refused("stretches something of fixed length to the rows")
    return Sharded(axis, value.power, row_length(lengths[axis]), None)


@table.placement(
    ptb.AllocEmpty, length=of_numbers(0), lengths_from=0, same_in_jax=True, cost="move"
)
def alloc_empty(node: Apply, values: list[Value]) -> Value:
    """What is to be overwritten goes with everything."""
    if values and isinstance(values[0], Count):
        return _trail(None, values)
    axis = row_axis(values)
    if axis is None:
        return Replicated(None)
    return Sharded(axis, None, row_length(values[axis]), None)


def _trail(value: Value | None, lengths: Sequence[Value]) -> Value:
    """Return a value, repeated for the steps of a scan along the rows."""
    first, *others = lengths
    if not all(map(is_replicated, others)) or not isinstance(
        value, (Replicated, type(None))
    ):
        raise Refused(f"takes as a length what is {describe(first)}")
    assert isinstance(first, Count)
    return Trail(value, value, first.offset, "all")


@table.placement(ptb.ARange, lengths_from=0, same_in_jax=True, cost="move")
def arange(node: Apply, values: list[Value]) -> Value:
    """From 0 to n the numbers of the rows; or of entries of rows in merged axes."""
    start, stop, step = values
    if all(map(is_replicated, values)):
        return Replicated()
    numbers = (
        isinstance(start, Replicated)
        and start.number == 0
        and isinstance(step, Replicated)
        and step.number == 1
    )
    if is_short(node.outputs[0]):
        raise Refused("counts rows in short integers, which wrap around")
    if numbers and isinstance(stop, Replicated) and stop.exact:
        return Position()
    is_integer = node.inputs[1].type.numpy_dtype.kind in "iu"
    if numbers and is_integer and isinstance(stop, Replicated) and stop.power == 1:
        return Position(0, "kn", value_of(node.inputs[1]))
    raise Refused("counts rows, and starts again on every rank")


# -- Ops that hand on what they are given


_CONVERTING = (ptb.TensorFromScalar, ptb.ScalarFromTensor)
_VIEWS = (ViewOp, DeepCopyOp, CpuContiguous, Print, OwnRows)


@table.placement(*_VIEWS, *_CONVERTING, makes_sizes=True)
def identity(node: Apply, values: list[Value]) -> Value:
    """The first input, as it is."""
    return values[0]


table.known(*_VIEWS, CheckAndRaise, length=of_input(0))
table.known(ViewOp, cost="view")
table.known(*_CONVERTING, same_in_jax=True, by_elements=True, cost="view")


@table.placement(CheckAndRaise, takes_unknown=True, takes_some_rows=True)
def checked(node: Apply, values: list[Value]) -> Value:
    """The first input, or an error, whatever is checked."""
    return values[0]


@table.padded(CheckAndRaise)
def unchecked(padder: Padder, node: Apply, values: list[Value]) -> Made:
    """The first input: JAX checks nothing."""
    var, (out,) = node.inputs[0], node.outputs
    if var in padder.long:
        padder.long[out] = padder.long[var]
    return Made([padder.new[var]], [values[0]])


@table.placement(SpecifyShape, length=of_input(0), lengths_from=1, **table.VIEW)
def specify_shape(node: Apply, values: list[Value]) -> Value:
    """The first input; its rows must not be fixed in number."""
    value, *lengths = values
    for axis, (var, given) in enumerate(zip(node.inputs[1:], lengths, strict=True)):
        if isinstance(var.type, NoneTypeT) or _is_as_long(value, axis, given):
            continue
        if value_of(var) != size(node.inputs[0], axis):
            raise Refused("fixes the number of rows")
    return value


def _is_as_long(value: Value, axis: int, length: Value) -> bool:
    """Tell whether a length is of the same rows as the axis of a value."""
    if isinstance(value, (Sharded, Position)) and value.axis == axis:
        is_n = isinstance(length, Replicated) and length.exact
        return is_n and value.length == "n"
    if isinstance(value, Trail) and not axis:
        return isinstance(length, Count) and length.offset == value.offset
    return is_replicated(length)
