"""Ops that are made of others: where one stands in the way, these are placed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.basic import Alloc
from pytensor.tensor.special import LogSoftmax, Softmax
from pytensor.tensor.subtensor import AdvancedIncSubtensor

from ..inlining import inlined
from ..rules.base import before_3_1

_ADDS: tuple[Any, ...] = AdvancedIncSubtensor, *before_3_1("AdvancedIncSubtensor1")


def lowered(
    node: Apply, inputs: Sequence[Variable] | None = None
) -> list[Variable] | None:
    """Return the outputs of a node as a graph of simpler Ops; None if it has none.

    Parameters
    ----------
    node : Apply
    inputs : sequence of Variable, optional
        In place of the node's, be they of other types: an Op with a graph of its own
        would have them converted, to a length that all rows have and a rank's have not.
    """
    op: Any = node.op
    inputs = node.inputs if inputs is None else inputs
    if isinstance(op, OpFromGraph):
        return inlined(node, inputs)
    if isinstance(op, (Softmax, LogSoftmax)):
        x: Any = inputs[0]
        shifted = x - x.max(axis=op.axis, keepdims=True)
        odds = pt.exp(shifted)
        total = odds.sum(axis=op.axis, keepdims=True)
        is_log = isinstance(op, LogSoftmax)
        return [shifted - pt.log(total) if is_log else odds / total]
    if isinstance(op, _ADDS) and not (op.set_instead_of_inc or _is_zero(inputs[0])):
        # As PyTensor makes one of a prior's gradient and that of rows by group.
        base: Any = inputs[0]
        zeros = pt.alloc(np.zeros((), base.dtype), *base.shape)
        return [base + op.make_node(zeros, *inputs[1:]).outputs[0]]
    return None


def _is_zero(var: Variable) -> bool:
    if var.owner is not None and isinstance(var.owner.op, Alloc):
        var = var.owner.inputs[0]
    return isinstance(var, Constant) and not np.any(var.data)
