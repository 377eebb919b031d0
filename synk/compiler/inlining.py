"""Graphs within Ops, put in the place of the Op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import io_toposort

from ..user_frames import hand_on_line
from .cloning import with_inputs


def remade(node: Apply, inputs: Sequence[Variable]) -> list[Variable]:
    """Return what a node's Op makes of other inputs, in a new node."""
    return with_inputs(node, inputs).outputs


def inlined(node: Apply, inputs: Sequence[Variable] | None = None) -> list[Variable]:
    """Return what computes the outputs of a node whose Op has a graph of its own.

    It says that it was made in the user's line that the node was made in.

    Parameters
    ----------
    node : Apply
    inputs : sequence of Variable, optional
        In place of the node's. They may be of other lengths than its graph was made
        for: what is computed from them has lengths of its own.
    """
    op: Any = node.op
    inputs = node.inputs if inputs is None else inputs
    inside = dict(zip(op.inner_inputs, inputs, strict=True))
    for inner in io_toposort(list(inside), op.inner_outputs):
        made = remade(inner, [inside.get(var, var) for var in inner.inputs])
        inside.update(zip(inner.outputs, made, strict=True))
        hand_on_line(node.outputs[0], made)
    return [inside.get(var, var) for var in op.inner_outputs]
