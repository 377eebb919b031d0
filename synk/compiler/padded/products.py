"""Products of arrays: what is summed over the rows, and what is for each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.blas import BatchedDot
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.math import Dot

from ..domain import Refused
from ..rules.products import blockwise_labels, dot_labels
from .sizes import of_sizes
from .walk import Padder, aligned, rule

Labels = Sequence[str]


def contract(
    padder: Padder,
    node: Apply,
    operands: Sequence[Variable],
    labels: Sequence[Labels],
    result: Labels,
) -> None:
    """Keep a node that is a sum of products, written as for ``einsum``.

    If the sum is over the rows, the copies are zero in all operands: zero in one does
    not do, as the other may be infinite.
    """
    states = []
    found = set()
    for var, names in zip(operands, labels, strict=True):
        state = padder.state(var)
        if state is not None:
            found.add(names[state.axis])
            state = replace(state, axis=0)
        states.append(state)
    if len(found) > 1:
        raise Refused("pairs every row with every other row")
    if not found:
        of_sizes(padder, node)
        return
    label = found.pop()
    for var, names in zip(operands, labels, strict=True):
        if var in padder.found or label not in names:
            continue
        if label not in result or var.type.shape[names.index(label)] != 1:
            raise Refused("multiplies the rows with something of fixed length")
    state = aligned(states)
    assert state is not None
    if label in result:
        padder.row_by_row(node, replace(state, axis=result.index(label)))
        return
    inputs = [
        padder.masked(var, 0, state) if var in operands else padder.new[var]
        for var in node.inputs
    ]
    padder.become(node.outputs, padder.made(node, inputs))


@rule(Dot)
def dot(padder: Padder, node: Apply) -> None:
    """A product of vectors and matrices."""
    contract(padder, node, node.inputs, *dot_labels(node))


@rule(BatchedDot)
def batched_dot(padder: Padder, node: Apply) -> None:
    """A product of stacks of matrices."""
    contract(padder, node, node.inputs, ["bij", "bjk"], "bik")


@rule(Blockwise)
def blockwise(padder: Padder, node: Apply) -> None:
    """An Op of the last axes, repeated along the others; rows may be among those."""
    op = node.op
    labels, result = blockwise_labels(node)
    if isinstance(op.core_op, Dot):
        contract(padder, node, node.inputs, labels, result)
        return
    padder.check_no_sizes(node.inputs)
    batch = len(result) - len(op.outputs_sig[0])
    states = []
    for var, core in zip(node.inputs, op.inputs_sig, strict=True):
        state = padder.state(var)
        if state is not None:
            axis = state.axis + batch - (var.type.ndim - len(core))
            if axis >= batch:
                raise Refused("works on all rows together")
            state = replace(state, axis=axis)
        states.append(state)
    state = aligned(states)
    if state is None:
        padder.row_by_row(node, None)
        return
    for var, core in zip(node.inputs, op.inputs_sig, strict=True):
        back = state.axis - batch - len(core)
        exact = var not in padder.found and var.type.ndim >= -back
        if exact and var.type.shape[back] != 1:
            raise Refused("meets the rows with something of fixed length")
    padder.row_by_row(node, state)
