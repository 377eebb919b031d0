"""Arrays of a given shape: of one value, of anything, of numbers in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytensor.graph.basic import Apply, Variable
from pytensor.tensor import basic as ptb

from .. import table
from ..domain import (
    Count,
    Partial,
    Position,
    Refused,
    Replicated,
    Sharded,
    Trail,
    Value,
    describe,
    is_replicated,
    unlisted,
)
from ..lengths import Length, value_of
from .base import is_short
from .shapes import row_axis, row_length


@table.placement(ptb.Alloc)
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


table.known(ptb.Alloc, lengths_from=1, makes_sizes=True)


@table.length(ptb.Alloc)
def alloc_length(node: Apply, var: Variable, axis: int) -> Length:
    """As it is told."""
    return value_of(node.inputs[axis + 1])


@table.placement(ptb.AllocEmpty)
def alloc_empty(node: Apply, values: list[Value]) -> Value:
    """What is to be overwritten goes with everything."""
    if values and isinstance(values[0], Count):
        return _trail(None, values)
    axis = row_axis(values)
    if axis is None:
        return Replicated(None)
    return Sharded(axis, None, row_length(values[axis]), None)


table.known(ptb.AllocEmpty, lengths_from=0)


@table.length(ptb.AllocEmpty)
def alloc_empty_length(node: Apply, var: Variable, axis: int) -> Length:
    """As it is told."""
    return value_of(node.inputs[axis])


def _trail(value: Value | None, lengths: Sequence[Value]) -> Value:
    """Return a value, repeated for the steps of a scan along the rows."""
    first, *others = lengths
    if not all(map(is_replicated, others)) or not isinstance(
        value, (Replicated, type(None))
    ):
        raise Refused(f"takes as a length what is {describe(first)}")
    assert isinstance(first, Count)
    return Trail(value, value, first.offset, "all")


@table.placement(ptb.ARange)
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


table.known(ptb.ARange, lengths_from=0)
