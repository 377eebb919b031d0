"""Ops that work along axes: reductions, products of matrices, softmax, sorting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from pytensor import scalar as ps
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor import math as ptm
from pytensor.tensor import special
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce
from pytensor.tensor.extra_ops import CumOp, SearchsortedOp
from pytensor.tensor.math import Dot
from pytensor.tensor.sort import ArgSortOp, SortOp

from ...reduce_ops import ReduceOp, identity
from .. import table
from ..cloning import lowered
from ..domain import (
    Listed,
    Partial,
    Position,
    Refused,
    Replicated,
    Sharded,
    Value,
    describe,
    independent,
    is_replicated,
    is_sum,
    product,
    total,
    unlisted,
)
from ..lengths import Length, of_input, size
from ..padded import Made, Padder, plain
from .base import check_spread, split_axis

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
    """Return the value of sharded values that are reduced over the rows by `op`."""
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


def axes_of(node: Apply) -> tuple[int, ...]:
    """Return the axes of a node's Op as nonnegative numbers; all axes for None."""
    ndim = node.inputs[0].type.ndim
    axis: Any = node.op.axis
    if axis is None:
        return tuple(range(ndim))
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    return tuple(int(i) % ndim for i in axes)


def _shifted(rows: Value, axes: Iterable[int]) -> Value:
    """Return a sharded value after other axes have been removed."""
    assert isinstance(rows, Sharded)
    return replace(rows, axis=rows.axis - sum(axis < rows.axis for axis in axes))


def _beside_rows(axes: Iterable[int] | None, value: Value) -> Value:
    """Return the value of any function along `axes`, which must not be the rows'.

    None stands for a function of all axes together.
    """
    value = unlisted(value)
    if isinstance(value, Sharded) and (axes is None or value.axis in axes):
        raise Refused("goes along the rows")
    return independent([value])


# -- reductions


@table.placement(CAReduce, takes_some_rows=True, makes_sizes=True, by_elements=True)
def reduction(node: Apply, values: list[Value]) -> Value:
    """Over the rows' axis, a partial value; over other axes, a value for each row."""
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
            value = independent([value])
        return _shifted(value, axes)
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
        truncates = True  # it may wrap before it is converted
    return None if op in ("sum", "prod") and truncates else op


@table.padded(CAReduce)
def reduction_of_real(padder: Padder, node: Apply, values: list[Value]) -> Made | None:
    """Over the rows, reduce with the operation's identity in place of copies."""
    (var,) = node.inputs
    rows = plain(values[0])
    if not isinstance(rows, Sharded) or rows.axis not in axes_of(node):
        return None
    neutral = _neutral(type(node.op.scalar_op), var.type.numpy_dtype)
    return padder.exact(node, [padder.masked(var, neutral)])


def _neutral(kind: type, dtype: np.dtype) -> Any:
    """Return the identity of a scalar operation: it changes no value."""
    if kind in (ps.Add, ps.OR, ps.XOR):
        return 0
    if kind is ps.Mul:
        return 1
    if kind is ps.AND:
        return 1 if dtype.kind == "b" else np.array(-1).astype(dtype)
    if kind in (ps.ScalarMaximum, ps.ScalarMinimum):
        op: ReduceOp = "max" if kind is ps.ScalarMaximum else "min"
        return op == "min" if dtype.kind == "b" else identity(op, dtype)
    raise Refused("is not known to have a value that changes nothing")


@table.length(CAReduce)
def reduction_length(node: Apply, var: Variable, axis: int) -> Length:
    """The length of the same axis of the operand."""
    source, gone = node.inputs[0], axes_of(node)
    return size(source, [i for i in range(source.type.ndim) if i not in gone][axis])


@table.placement(ptm.Argmax, same_in_jax=True, cost="move")
def argmax(node: Apply, values: list[Value]) -> Value:
    """Along other axes than the rows', an index for each row."""
    value = unlisted(values[0])
    axes = axes_of(node)
    if isinstance(value, Sharded) and value.axis not in axes:
        return _shifted(replace(value, power=0), axes)
    return _beside_rows(None, value)


# -- Ops that keep the axis


@table.placement(
    *(special.Softmax, special.LogSoftmax),
    takes_some_rows=True,
    length=of_input(0),
    same_in_jax=True,
    by_elements=True,
)
def softmax(node: Apply, values: list[Value]) -> Value:
    """Along other axes than the rows', a function of each row."""
    return _beside_rows(axes_of(node), values[0])


@table.padded(special.Softmax, special.LogSoftmax)
def softmax_of_real(padder: Padder, node: Apply, values: list[Value]) -> Made | None:
    """Along the rows, the softmax as simpler Ops, which are padded each."""
    rows = plain(values[0])
    if not isinstance(rows, Sharded) or rows.axis not in axes_of(node):
        return None
    return padder.instead(node, lowered)


if hasattr(special, "SoftmaxGrad"):  # before PyTensor 3

    @table.placement(special.SoftmaxGrad)
    def softmax_gradient(node: Apply, values: list[Value]) -> Value:
        """Linear in the first input, the gradient of the softmax."""
        cotangent, output = map(unlisted, values)
        if isinstance(cotangent, Sharded) and isinstance(output, Sharded):
            _beside_rows(axes_of(node), output)
            return product([cotangent, output])
        # Both have the shape of the output: so the replicated one has all rows.
        if is_replicated(cotangent) and isinstance(output, Sharded):
            raise Refused("takes a gradient that has no rows")
        if isinstance(cotangent, Sharded) and is_replicated(output):
            raise Refused("takes a gradient of rows beside all rows")
        return independent([cotangent, output])


@table.placement(SortOp, ArgSortOp)
def sort(node: Apply, values: list[Value]) -> Value:
    """Along other axes than the rows', each row is sorted by itself."""
    axis, (value,) = split_axis(node, values)
    if isinstance(axis, int):
        return _beside_rows({axis}, value)
    return independent([_beside_rows(None, value), axis])


@table.placement(SearchsortedOp)
def search_sorted(node: Apply, values: list[Value]) -> Value:
    """For each row, its place among sorted values that are the same for all."""
    others = [unlisted(value) for i, value in enumerate(values) if i != 1]
    if not all(map(is_replicated, others)):
        raise Refused("looks for places among the rows")
    return independent([values[1]])


@table.placement(CumOp)
def cumulative(node: Apply, values: list[Value]) -> Value:
    """Along other axes than the rows', for each row; it is linear in sums."""
    value = unlisted(values[0])
    axis = node.op.axis
    if is_sum(value) and node.op.mode == "add":
        return value
    axes = None if axis is None else {axis}
    if axes and node.op.mode == "add" and isinstance(value, Sharded):
        _beside_rows(axes, replace(value, power=0))
        return value
    return _beside_rows(axes, value)


# -- products


Labels = Sequence[str]


def labels_of(node: Apply) -> tuple[Sequence[Labels], Labels]:
    """Return labels of the axes of a product's inputs and result, as for ``einsum``."""
    op = node.op
    ndims = [var.type.ndim for var in node.inputs]
    if isinstance(op, BatchedDot):
        return ["bij", "bjk"], "bik"
    if isinstance(op, Dot):
        first, second = "ij"[2 - ndims[0] :], "jk"[: ndims[1]]
        return [first, second], first[:-1] + second[1:]
    batches = [
        ndim - len(core) for ndim, core in zip(ndims, op.inputs_sig, strict=True)
    ]
    stack = [f"{i}" for i in range(max(batches))]
    labels = [
        [*stack[len(stack) - batch :], *core]
        for batch, core in zip(batches, op.inputs_sig, strict=True)
    ]
    return labels, [*stack, *op.outputs_sig[0]]


@table.placement(Dot, BatchedDot, takes_some_rows=True, makes_sizes=True)
def dot(node: Apply, values: list[Value]) -> Value:
    """A product of vectors and matrices, or of stacks of matrices.

    The rows' axis must have the same label in all operands. If the result has the
    label, it is sharded; if not, it is a sum over the rows.
    """
    labels, result = labels_of(node)
    if all(var.type.dtype == "bool" for var in node.inputs):
        raise Refused("multiplies bools as matrices")
    values = [unlisted(value) for value in values]
    found = {
        names[value.axis]
        for names, value in zip(labels, values, strict=True)
        if isinstance(value, Sharded)
    }
    if not found:
        for value in values:
            if isinstance(value, Partial) and value.op != "sum":
                raise Refused(f"multiplies {describe(value)} as a matrix")
        return product(values)
    if len(found) > 1:
        raise Refused("pairs every row with every other row")
    label = found.pop()
    moved: list[Value] = []
    for var, names, value in zip(node.inputs, labels, values, strict=True):
        if isinstance(value, Sharded):
            value = replace(value, axis=0)
        elif label in names and var.type.shape[names.index(label)] != 1:
            raise Refused("multiplies the rows with something of fixed length")
        moved.append(value)
    rows = product(moved)
    assert isinstance(rows, Sharded)
    if label in result:
        return replace(rows, axis=result.index(label))
    return fold("sum", rows)


@table.placement(Blockwise, takes_some_rows=True)
def blockwise(node: Apply, values: list[Value]) -> list[Value]:
    """An Op of the last axes, repeated along the others; rows may lie along these."""
    op = node.op
    if isinstance(op.core_op, Dot):
        return [dot(node, values)]
    batch = len(labels_of(node)[1]) - len(op.outputs_sig[0])
    values = [unlisted(value) for value in values]
    back = None
    moved = []
    for var, core, value in zip(node.inputs, op.inputs_sig, values, strict=True):
        if isinstance(value, (Partial, Position)):
            raise Refused(f"works on {describe(value)}")
        if isinstance(value, Sharded):
            axis = value.axis + batch - (var.type.ndim - len(core))
            if axis >= batch:
                raise Refused("works on all rows together")
            value = replace(value, axis=axis)
            back = axis - batch
        moved.append(value)
    result = independent(moved)
    if back is not None:
        for var, core, value in zip(node.inputs, op.inputs_sig, values, strict=True):
            check_spread([var], [value], back - len(core))
    return [result] * len(node.outputs)


table.known(Dot, same_in_jax=True)


@table.padded(Dot, BatchedDot, Blockwise)
def product_of_real(padder: Padder, node: Apply, values: list[Value]) -> Made | None:
    """For a sum over the rows, zeros in place of copies, in all operands.

    Zeros in one operand are not enough, as the other may be infinite.
    """
    return padder.folded(node, values, 0)


@table.length(Dot, BatchedDot, Blockwise)
def product_length(node: Apply, var: Variable, axis: int) -> Length | None:
    """The length of the operands' axis with the same label."""
    labels, result = labels_of(node)
    if var is node.outputs[0]:
        for given, names in zip(node.inputs, labels, strict=True):
            place = names.index(result[axis]) if result[axis] in names else None
            if place is not None and given.type.shape[place] != 1:
                return size(given, place)
    return None
