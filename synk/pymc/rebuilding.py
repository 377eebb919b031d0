"""Graphs made anew, node by node, with other inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Variable

from ..compiler.cloning import with_inputs
from ..compiler.inlining import inlined

Visit = Callable[[Apply, list[Variable]], list[Variable] | None]
"""Makes the outputs of a node from other inputs, or leaves it to `remade`."""


def rebuilt(
    nodes: Sequence[Apply],
    made: dict[Variable, Variable],
    inputs_of: Callable[[Apply], list[Variable]],
    visit: Visit,
) -> None:
    """Make nodes anew, and enter in `made` what stands for what.

    Parameters
    ----------
    nodes : sequence of Apply
        In the order of computation.
    made : dict of Variable to Variable
    inputs_of : callable
        The inputs that take the place of a node's.
    visit : callable
    """
    for node in nodes:
        inputs = inputs_of(node)
        outputs = visit(node, inputs)
        if outputs is None:
            same = all(a is b for a, b in zip(inputs, node.inputs, strict=True))
            outputs = node.outputs if same else remade(node, inputs)
        made.update(zip(node.outputs, outputs, strict=True))


def remade(node: Apply, inputs: list[Variable]) -> list[Variable]:
    """Return what a node's Op makes of other inputs, which may be of other types."""
    op: Any = node.op
    if [var.type for var in inputs] == [var.type for var in node.inputs]:
        return with_inputs(node, inputs).outputs
    if isinstance(op, OpFromGraph):
        if type(op) is OpFromGraph:
            return inlined(node, inputs)
        made = op(*inputs)  # of PyTensor 3.3: it builds its graph for these types
        return made if isinstance(made, list) else [made]
    outputs = op.make_node(*inputs).outputs
    for new, old in zip(outputs, node.outputs, strict=True):
        new.name = old.name
    return outputs
