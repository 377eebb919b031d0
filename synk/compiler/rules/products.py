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


def labels_of(node: Apply) -> tuple[Sequence[Labels], Labels]:
    """Return the names of the axes of a product's inputs, and of its first result."""
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


@table.placement(Dot, BatchedDot, takes_some_rows=True)
def dot(node: Apply, values: list[Value]) -> Value:
    """A product of vectors and matrices, or of stacks of matrices."""
    return contract(node.inputs, values, *labels_of(node))


@table.placement(Blockwise, takes_some_rows=True)
def blockwise(node: Apply, values: list[Value]) -> list[Value]:
    """An Op of the last axes, repeated along the others; rows may be among those."""
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


table.known(Dot, BatchedDot, makes_sizes=True)
table.known(Dot, same_in_jax=True)


@table.padded(Dot, BatchedDot, Blockwise)
def product_of_real(padder: Padder, node: Apply, values: list[Value]) -> Made | None:
    """Where it is a sum over the rows, the copies are zero, in all operands.

    Zero in one does not do, as the other may be infinite.
    """
    return padder.folded(node, values, 0)


@table.length(Dot, BatchedDot, Blockwise)
def product_length(node: Apply, var: Variable, axis: int) -> Length | None:
    """That of the operands' axis of the same name."""
    labels, result = labels_of(node)
    if var is node.outputs[0]:
        for given, names in zip(node.inputs, labels, strict=True):
            place = names.index(result[axis]) if result[axis] in names else None
            if place is not None and given.type.shape[place] != 1:
                return size(given, place)
    return None
