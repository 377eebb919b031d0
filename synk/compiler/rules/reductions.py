"""Reductions: over the rows, or beside them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from pytensor import scalar as ps
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor import math as ptm
from pytensor.tensor.elemwise import CAReduce

from ...reduce_ops import ReduceOp, identity
from .. import table
from ..domain import (
    Listed,
    Partial,
    Refused,
    Replicated,
    Sharded,
    Value,
    describe,
    independent,
    product,
    total,
    unlisted,
)
from ..lengths import Length, known_entries, size
from ..lengths import product as product_of
from ..padded.padder import Made, Padder
from ..padded.states import plain

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


@table.placement(CAReduce, takes_some_rows=True)
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
    summed = np.dtype(getattr(node.op, "acc_dtype", None) or target)
    if summed.kind in "iu" and summed.itemsize < target.itemsize:
        truncates = True  # it may have wrapped before it is converted
    return None if op in ("sum", "prod") and truncates else op


def axes_of(node: Apply) -> tuple[int, ...]:
    """Return the axes that a node works along, counted from the first."""
    ndim = node.inputs[0].type.ndim
    axis: Any = node.op.axis
    if axis is None:
        return tuple(range(ndim))
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    return tuple(int(i) % ndim for i in axes)


table.known(CAReduce, makes_sizes=True)


@table.padded(CAReduce)
def reduction_of_real(padder: Padder, node: Apply, values: list[Value]) -> Made | None:
    """Over the rows, without the copies; whatever it is that combines them."""
    (var,) = node.inputs
    rows = plain(values[0])
    if not isinstance(rows, Sharded) or rows.axis not in axes_of(node):
        return None
    nothing = _nothing(type(node.op.scalar_op), var.type.numpy_dtype)
    return padder.exact(node, [padder.masked(var, nothing)])


def _nothing(kind: type, dtype: np.dtype) -> Any:
    """Return what changes nothing when it is combined with other values."""
    if kind in (ps.Add, ps.OR, ps.XOR):
        return 0
    if kind is ps.Mul:
        return 1
    if kind is ps.AND:
        return 1 if dtype.kind == "b" else np.array(-1).astype(dtype)
    if kind in (ps.ScalarMaximum, ps.ScalarMinimum):
        return _extreme("max" if kind is ps.ScalarMaximum else "min", dtype)
    raise Refused("is not known to have a value that changes nothing")


def _extreme(op: ReduceOp, dtype: np.dtype) -> Any:
    if dtype.kind == "b":
        return op == "min"
    if dtype.kind == "c":
        raise Refused("compares complex numbers")
    return identity(op, dtype)


@table.length(CAReduce)
def reduction_length(node: Apply, var: Variable, axis: int) -> Length | None:
    """Of an axis that is left."""
    gone = node.op.axis
    if gone is None:
        return None
    source = node.inputs[0]
    gone = {int(i) % source.type.ndim for i in np.atleast_1d(gone)}
    kept = [i for i in range(source.type.ndim) if i not in gone]
    return size(source, kept[axis])


@table.value(CAReduce)
def reduction_value(node: Apply, var: Variable, which: str) -> Length | None:
    """``x.size`` is the product of the shape."""
    if not isinstance(node.op.scalar_op, ps.Mul) or node.inputs[0].type.ndim != 1:
        return None
    entries = known_entries(node.inputs[0])
    return None if entries is None else product_of(entries)


@table.placement(ptm.Argmax)
def argmax(node: Apply, values: list[Value]) -> Value:
    """Beside the rows, an index for each row."""
    value = unlisted(values[0])
    axes = axes_of(node)
    if isinstance(value, Sharded) and value.axis not in axes:
        return shifted(replace(value, power=0), axes)
    return unless_rows(value)


@table.padded(ptm.Argmax)
def argmax_of_real(padder: Padder, node: Apply, values: list[Value]) -> Made | None:
    """Along the rows, the copies come last and are the least: they are not found."""
    (var,) = node.inputs
    rows, axes = plain(values[0]), axes_of(node)
    if not isinstance(rows, Sharded) or rows.axis not in axes:
        return None
    if axes != (rows.axis,) or not rows.in_order:
        raise Refused("numbers what lies along the rows and beside them")
    least = _extreme("max", var.type.numpy_dtype)
    return padder.exact(node, [padder.masked(var, least)])


def unless_rows(value: Value) -> Value:
    """Return what any function of all elements of a value is; raise for rows."""
    if isinstance(value, Sharded):
        raise Refused("goes along the rows")
    return independent([value])
