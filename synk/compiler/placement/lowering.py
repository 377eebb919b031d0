"""Ops that are made of others: where one stands in the way, these are placed."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.special import LogSoftmax, Softmax

from ..inlining import inlined


def lowered(node: Apply) -> list[Variable] | None:
    """Return the outputs of a node as a graph of simpler Ops; None if it has none."""
    op = node.op
    if isinstance(op, OpFromGraph):
        return inlined(node)
    if isinstance(op, (Softmax, LogSoftmax)):
        x: Any = node.inputs[0]
        shifted = x - x.max(axis=op.axis, keepdims=True)
        odds = pt.exp(shifted)
        total = odds.sum(axis=op.axis, keepdims=True)
        is_log = isinstance(op, LogSoftmax)
        return [shifted - pt.log(total) if is_log else odds / total]
    return None
