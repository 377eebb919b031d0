"""Reductions and what else works along axes: over the rows, or beside them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pytensor import scalar as ps
from pytensor.graph.basic import Apply
from pytensor.tensor import math as ptm
from pytensor.tensor import special
from pytensor.tensor.elemwise import CAReduce
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.sort import ArgSortOp, SortOp

from ...reduce_ops import ReduceOp
from ..axes import apart
from ..domain import (
    Listed,
    Partial,
    Refused,
    Replicated,
    Sharded,
    Value,
    describe,
    independent,
    is_replicated,
    product,
    total,
    unlisted,
)
from .base import rule

_FOLDS: dict[type, ReduceOp] = {
    ps.Add: "sum",
    ps.Mul: "prod",
    ps.ScalarMaximum: "max",
    ps.ScalarMinimum: "min",
}
_BOOL_FOLDS: dict[type, ReduceOp] = {
    ps.OR: "max",
    ps.AND: "min",
    ps.ScalarMaximum: "max",
    ps.ScalarMinimum: "min",
}


def fold(op: ReduceOp, rows: Sharded) -> Partial:
    """Return what comes of row-wise values that are combined over the rows."""
    if rows.length == "?":
        raise Refused(
            "is over the rows of a sliceable shared variable, which are not the rows"
            " that the ranks are weighed by"
        )
    if rows.length == "some" and op not in ("sum", "prod"):
        raise Refused("is over rows of which a rank may have none")
    if op != "sum" and rows.power:
        raise Refused(f"is over values that are {describe(rows)}")
    return Partial(op, rows.power if op == "sum" else 0)


def shifted(rows: Value, axes: Iterable[int]) -> Value:
    """Return the rows after other axes are gone."""
    assert isinstance(rows, Sharded)
    return replace(rows, axis=rows.axis - sum(axis < rows.axis for axis in axes))


@rule(CAReduce, some_rows=True)
def reduction(node: Apply, values: list[Value]) -> Value:
    """A reduction over the rows is a fold; beside them, it is done for each row."""
    op = _fold_op(node)
    (value,) = values
    if isinstance(value, Listed) and op in ("sum", "prod"):
        return (total if op == "sum" else product)(value.entries)
    value = unlisted(value)
    axes = axes_of(node)
    if isinstance(value, Sharded):
        if value.axis in axes:
            if op is None:
                raise Refused("is not a sum, product, maximum or minimum")
            return fold(op, value)
        if op in (None, "prod"):
            return shifted(independent([value]), axes)
        return shifted(value, axes)
    if isinstance(value, Replicated) and op not in (None, "prod"):
        return Replicated(value.power)
    if isinstance(value, Partial) and value.op == op:
        return value
    return independent([value])


def _fold_op(node: Apply) -> ReduceOp | None:
    kind = type(node.op.scalar_op)
    source, target = (var.type.numpy_dtype for var in (node.inputs[0], node.outputs[0]))
    if target.kind == "b":
        return _BOOL_FOLDS.get(kind) if source.kind == "b" else None
    op = _FOLDS.get(kind)
    truncates = target.kind in "iu" and (source.kind in "fc" or target.itemsize < 4)
    return None if op in ("sum", "prod") and truncates else op


def axes_of(node: Apply) -> tuple[int, ...]:
    """Return the axes that a node works along, counted from the first."""
    ndim = node.inputs[0].type.ndim
    axis: Any = node.op.axis
    if axis is None:
        return tuple(range(ndim))
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    return tuple(int(i) % ndim for i in axes)


@rule(ptm.Argmax)
def argmax(node: Apply, values: list[Value]) -> Value:
    """Beside the rows, an index for each row."""
    value = unlisted(values[0])
    axes = axes_of(node)
    if isinstance(value, Sharded) and value.axis not in axes:
        return shifted(replace(value, power=0), axes)
    return _unless_rows(value)


@rule(special.Softmax, special.LogSoftmax, some_rows=True)
def softmax(node: Apply, values: list[Value]) -> Value:
    """Along other axes than the rows', a function of each row."""
    return _along(axes_of(node), values[0])


if hasattr(special, "SoftmaxGrad"):  # before PyTensor 3

    @rule(special.SoftmaxGrad)
    def softmax_gradient(node: Apply, values: list[Value]) -> Value:
        """Linear in the first input, the gradient of the softmax."""
        cotangent, output = map(unlisted, values)
        if isinstance(cotangent, Sharded) and isinstance(output, Sharded):
            _along(axes_of(node), output)
            return product([cotangent, output])
        if is_replicated(cotangent) and isinstance(output, Sharded):
            # Both have the shape of the output, so the cotangent has no rows.
            raise Refused("takes a gradient that has no rows")
        return independent([cotangent, output])


@rule(SortOp, ArgSortOp)
def sort(node: Apply, values: list[Value]) -> Value:
    """Beside the rows, each row is sorted by itself."""
    axis, (value,) = apart(node, values)
    if isinstance(axis, int):
        return _along({axis}, value)
    return independent([_unless_rows(unlisted(value)), axis])


@rule(CumOp)
def cumulative(node: Apply, values: list[Value]) -> Value:
    """Beside the rows for each row; of a sum, the sum of what the parts give."""
    value = unlisted(values[0])
    axis = node.op.axis
    if value == Partial("prod") and node.op.mode == "mul":
        return value
    if isinstance(value, Partial) and value.op == "sum" and node.op.mode == "add":
        return value
    if axis is None:
        return independent([_unless_rows(value)])
    if node.op.mode == "add" and isinstance(value, Sharded):
        _along({axis}, replace(value, power=0))
        return value
    return _along({axis}, value)


def _along(axes: Iterable[int], value: Value) -> Value:
    value = unlisted(value)
    if isinstance(value, Sharded) and value.axis in axes:
        raise Refused("goes along the rows")
    return independent([value])


def _unless_rows(value: Value) -> Value:
    if isinstance(value, Sharded):
        raise Refused("goes along the rows")
    return independent([value])
