"""Nodes of a graph, copied with other inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.scan.op import Scan
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise

_TYPED_BY_INPUTS = (Elemwise, DimShuffle, CAReduce)
"""What types these make follows from the types of what they take; most nodes are such.
Of other Ops PyTensor knows whether more goes in."""


def with_inputs(node: Apply, inputs: Sequence[Variable]) -> Apply:
    """Return a node of the same Op that takes other inputs.

    Its outputs have the names and tags of the node's. With inputs of other types they
    are of other types, too, and inputs may be converted.
    """
    if not hasattr(node, "clone_with_new_inputs"):
        # In a graph within another, which PyTensor 3.3 freezes.
        return node.op.make_node(*inputs)
    if not isinstance(node.op, _TYPED_BY_INPUTS) or any(
        new.type != old.type for new, old in zip(inputs, node.inputs, strict=True)
    ):
        return node.clone_with_new_inputs(list(inputs), strict=False)
    # The same as that would return, in a third of the time.
    outputs = [var.type.make_variable(var.name) for var in node.outputs]
    for new, old in zip(outputs, node.outputs, strict=True):
        vars(new.tag).update(vars(old.tag))
    return Apply(node.op, list(inputs), outputs)


def step_of(node: Apply) -> tuple[list[Variable], list[Variable]]:
    """Return the inputs and outputs of a scan's step; copies, where they are frozen."""
    graph = node.op.fgraph  # type: ignore[attr-defined]
    if hasattr(graph, "unfreeze"):  # since PyTensor 3.3
        graph = graph.unfreeze()
    return list(graph.inputs), list(graph.outputs)


def scan_of(
    op: Any, inputs: Sequence[Variable], outputs: Sequence[Variable], info: Any
) -> Scan:
    """Return a scan that is made as another one, but for its step."""
    return Scan(
        list(inputs),
        list(outputs),
        info,
        mode=op.mode,
        truncate_gradient=op.truncate_gradient,
        name=op.name,
        profile=op.profile,
        allow_gc=op.allow_gc,
        strict=op.strict,
    )
