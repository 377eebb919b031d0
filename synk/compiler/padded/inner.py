"""Graphs used as an Op, choices, and reductions over ranks."""

from __future__ import annotations

from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply
from pytensor.tensor.random.type import RandomType

from ...ops import AllReduce
from ..domain import Refused
from ..inlining import inlined
from ..rules.inner import IfElse
from .walk import Padder, aligned, rule


@rule(AllReduce)
def all_reduce(padder: Padder, node: Apply) -> None:
    """What the ranks give has the same shape on all, so it has no rows."""
    (var,) = node.inputs
    if var in padder.found:
        raise Refused("reduces what has a value for each row")
    padder.row_by_row(node, None)


@rule(OpFromGraph)
def op_from_graph(padder: Padder, node: Apply) -> None:
    """The graph inside, in the place of the Op."""
    if any(isinstance(var.type, RandomType) for var in node.inputs):
        raise Refused("draws at random")
    outputs = padder.inlined.get(node)
    if outputs is None:
        outputs = padder.inlined[node] = inlined(node)
    padder.walk(outputs)
    for var, inside in zip(node.outputs, outputs, strict=True):
        padder.new[var] = padder.new[inside]
        if inside in padder.found:
            padder.found[var] = padder.found[inside]
        if inside in padder.long:
            padder.long[var] = padder.long[inside]


@rule(IfElse)
def if_else(padder: Padder, node: Apply) -> None:
    """One branch or the other."""
    condition, *branches = node.inputs
    if condition in padder.found:
        raise Refused("chooses by the rows")
    padder.check_no_sizes(branches)
    n = len(node.outputs)
    made = padder.made(node, padder.given(node))
    for i, var in enumerate(node.outputs):
        pair = [padder.state(branches[i]), padder.state(branches[n + i])]
        if (pair[0] is None) is not (pair[1] is None):
            raise Refused("chooses between rows and something of fixed length")
        padder.become([var], [made[i]], aligned(pair))
