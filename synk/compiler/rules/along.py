"""Ops that go along an axis and keep it: beside the rows, they are of each row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pytensor.graph.basic import Apply, Variable
from pytensor.tensor import special
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.sort import ArgSortOp, SortOp

from .. import table
from ..axes import apart
from ..domain import (
    IN_ORDER,
    Partial,
    Refused,
    Sharded,
    Value,
    independent,
    is_replicated,
    product,
    unlisted,
)
from ..lengths import Length, size
from ..padded.padder import Made, Padder
from ..padded.states import plain
from ..placement.lowering import lowered
from .reductions import axes_of, unless_rows


@table.placement(special.Softmax, special.LogSoftmax, takes_some_rows=True)
def softmax(node: Apply, values: list[Value]) -> Value:
    """Along other axes than the rows', a function of each row."""
    return _along(axes_of(node), values[0])


@table.padded(special.Softmax, special.LogSoftmax)
def softmax_of_real(padder: Padder, node: Apply, values: list[Value]) -> Made | None:
    """Along the rows what it is made of: maxima, and sums without the copies."""
    rows = plain(values[0])
    if not isinstance(rows, Sharded) or rows.axis not in axes_of(node):
        return None
    return padder.instead(node, lowered)


@table.length(special.Softmax, special.LogSoftmax)
def softmax_length(node: Apply, var: Variable, axis: int) -> Length:
    """That of the input."""
    return size(node.inputs[0], axis)


if hasattr(special, "SoftmaxGrad"):  # before PyTensor 3

    @table.placement(special.SoftmaxGrad)
    def softmax_gradient(node: Apply, values: list[Value]) -> Value:
        """Linear in the first input, the gradient of the softmax."""
        cotangent, output = map(unlisted, values)
        if isinstance(cotangent, Sharded) and isinstance(output, Sharded):
            _along(axes_of(node), output)
            return product([cotangent, output])
        # Both have the shape of the output: one has an entry for each of all rows.
        if is_replicated(cotangent) and isinstance(output, Sharded):
            raise Refused("takes a gradient that has no rows")
        if isinstance(cotangent, Sharded) and is_replicated(output):
            raise Refused("takes a gradient of rows beside all rows")
        return independent([cotangent, output])


@table.placement(SortOp, ArgSortOp)
def sort(node: Apply, values: list[Value]) -> Value:
    """Beside the rows, each row is sorted by itself."""
    axis, (value,) = apart(node, values)
    if isinstance(axis, int):
        return _along({axis}, value)
    return independent([unless_rows(unlisted(value)), axis])


@table.placement(CumOp)
def cumulative(node: Apply, values: list[Value]) -> Value:
    """Beside the rows for each row; of a sum, the sum of what the parts give."""
    value = unlisted(values[0])
    axis = node.op.axis
    if value == Partial("prod") and node.op.mode == "mul":
        return value
    if isinstance(value, Partial) and value.op == "sum" and node.op.mode == "add":
        return value
    if axis is None:
        return independent([unless_rows(value)])
    if node.op.mode == "add" and isinstance(value, Sharded):
        _along({axis}, replace(value, power=0))
        return value
    return _along({axis}, value)


@table.padded(CumOp)
def cumulative_of_real(padder: Padder, node: Apply, values: list[Value]) -> Made | None:
    """Along the rows as well: the copies come last."""
    (var,), value, axis = node.inputs, plain(values[0]), node.op.axis
    if not isinstance(value, Sharded):
        return None
    if axis is None and var.type.ndim == 1:
        axis = 0
    along = axis is None or axis % var.type.ndim == value.axis
    if not along:
        return None
    if axis is None or not value.in_order:
        raise Refused("goes along the rows and beside them")
    made = padder.made(node, [padder.new[var]])
    return Made(made, [replace(value, power=0, layout=IN_ORDER)])


def _along(axes: Iterable[int], value: Value) -> Value:
    value = unlisted(value)
    if isinstance(value, Sharded) and value.axis in axes:
        raise Refused("goes along the rows")
    return independent([value])
