"""Products of arrays: what is summed over, and what is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.math import Dot

from .. import table
from ..domain import (
    Partial,
    Position,
    Refused,
    Sharded,
    Value,
    describe,
    independent,
    product,
    unlisted,
)
from ..lengths import Length, size
from ..padded import Made, Padder
from .base import check_spread
from .reductions import fold

Labels = Sequence[str]


def contract(
    operands: Sequence[Variable],
    values: Sequence[Value],
    labels: Sequence[Labels],
    result: Labels,
) -> Value:
    """Return what a sum of products is, written as for ``einsum``.

    Rows must have one label in all operands. If the result has it, it has rows; if
    not, it is the sum over the rows of each row's product.
    """
    if all(var.type.dtype == "bool" for var in operands):
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
    for var, names, value in zip(operands, labels, values, strict=True):
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


@table.placement(Dot, takes_some_rows=True)
def dot(node: Apply, values: list[Value]) -> Value:
    """A product of vectors and matrices."""
    return contract(node.inputs, values, *dot_labels(node))


def dot_labels(node: Apply) -> tuple[list[Labels], Labels]:
    """Return the names of the axes of a product's inputs, and of its result."""
    ndims = [var.type.ndim for var in node.inputs]
    first = ("i", "j")[2 - ndims[0] :]
    second = ("j", "k")[: ndims[1]]
    return [first, second], [*first[:-1], *second[1:]]


@table.length(Dot)
def dot_length(node: Apply, var: Variable, axis: int) -> Length:
    """Those of the axes that are not summed over."""
    first, second = node.inputs
    if axis < first.type.ndim - 1:
        return size(first, axis)
    return size(second, second.type.ndim - 1)


@table.placement(BatchedDot, takes_some_rows=True)
def batched_dot(node: Apply, values: list[Value]) -> Value:
    """A product of stacks of matrices."""
    return contract(node.inputs, values, ["bij", "bjk"], "bik")


@table.placement(Blockwise, takes_some_rows=True)
def blockwise(node: Apply, values: list[Value]) -> list[Value]:
    """An Op of the last axes, repeated along the others; rows may be among those."""
    op = node.op
    labels, result_labels = blockwise_labels(node)
    batch = len(result_labels) - len(op.outputs_sig[0])
    if isinstance(op.core_op, Dot):
        return [contract(node.inputs, values, labels, result_labels)]
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


table.known(Dot, BatchedDot, makes_sizes=True)


@table.padded(Dot, BatchedDot, Blockwise)
def product_of_real(padder: Padder, node: Apply, values: list[Value]) -> Made | None:
    """Where it is a sum over the rows, the copies are zero, in all operands.

    Zero in one does not do, as the other may be infinite.
    """
    return padder.folded(node, values, 0)


def blockwise_labels(node: Apply) -> tuple[Sequence[Labels], Labels]:
    """Return the names of the axes of the inputs, and of the first result."""
    op = node.op
    batch = max(
        var.type.ndim - len(core)
        for var, core in zip(node.inputs, op.inputs_sig, strict=True)
    )
    stack = [f"{i}" for i in range(batch)]
    labels = [
        [*stack[batch - (var.type.ndim - len(core)) :], *core]
        for var, core in zip(node.inputs, op.inputs_sig, strict=True)
    ]
    return labels, [*stack, *op.outputs_sig[0]]


@table.length(Blockwise)
def blockwise_length(node: Apply, var: Variable, axis: int) -> Length | None:
    """Of products, and of their stacks."""
    if not isinstance(node.op.core_op, Dot):
        return None
    back = axis - var.type.ndim
    first, second = node.inputs
    if back == -2:
        return size(first, first.type.ndim - 2)
    if back == -1:
        return size(second, second.type.ndim - 1)
    for given in (first, second):
        if given.type.ndim >= -back and given.type.shape[back] != 1:
            return size(given, given.type.ndim + back)
    return None
