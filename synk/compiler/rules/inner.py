"""Reductions over ranks, graphs used as an Op, and choices."""

from __future__ import annotations

from collections.abc import Sequence

from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.random.type import RandomType

try:
    from pytensor.conditional.op import IfElse
except ImportError:  # PyTensor before 3.3
    from pytensor.ifelse import IfElse  # type: ignore[no-redef]

from ...ops import COLLECTIVES, AllReduce
from ...user_frames import made_in
from .. import table
from ..domain import (
    Position,
    Refused,
    Replicated,
    Sharded,
    Unknown,
    Value,
    describe,
    is_replicated,
    selected,
    unlisted,
    without_block,
)
from ..inlining import inlined
from ..lengths import Symbol
from ..padded.padder import Made, Padder
from ..padded.states import is_padded, plain
from ..walk import infer
from .base import name, op_name


@table.placement(*COLLECTIVES, takes_unknown=True)
def all_reduce(node: Apply, values: list[Value]) -> Value:
    """Every rank gets the same, whatever was combined."""
    return Replicated()


@table.padded(AllReduce)
def all_reduce_of_real(padder: Padder, node: Apply, values: list[Value]) -> Made:
    """What the ranks give has the same shape on all, so it has no rows."""
    if any(map(is_padded, values)):
        raise Refused("reduces what has a value for each row")
    return padder.exact(node)


@table.placement(OpFromGraph, takes_unknown=True)
def op_from_graph(node: Apply, values: list[Value]) -> list[Value]:
    """What the inner graph makes of the inputs."""
    outputs = node.op.inner_outputs
    known = dict(zip(node.op.inner_inputs, values, strict=True))
    return seen_outside(outputs, infer(outputs, known), known)


@table.padded(OpFromGraph)
def within_graph(padder: Padder, node: Apply, values: list[Value]) -> Made:
    """The graph inside, in the place of the Op."""
    if any(isinstance(var.type, RandomType) for var in node.inputs):
        raise Refused("draws at random")
    return padder.instead(node, inlined)


def seen_outside(
    outputs: Sequence[Variable], found: dict[Variable, Value], known: dict
) -> list[Value]:
    """Return what outputs of an inner graph are, without its own symbols.

    The length of an inner variable is another one wherever the graph is used, and in
    each step of a scan.
    """
    symbols = set[Symbol]().union(*(_symbols(value) for value in known.values()))
    return [
        without_block(found[var])
        if _symbols(found[var]) <= symbols
        else Unknown(
            op_name(var.owner.op) if var.owner else "a graph",
            name(var),
            "has rows, or blocks of them, whose number is known inside of a graph only",
            made_in(var),
        )
        for var in outputs
    ]


def _symbols(value: Value) -> set[Symbol]:
    if isinstance(value, Position) and value.count is not None:
        return value.count.symbols_only()
    if not isinstance(value, Sharded) or value.layout is None:
        return set()
    return value.layout.blocks.symbols_only()


@table.placement(IfElse)
def if_else(node: Apply, values: list[Value]) -> list[Value]:
    """One branch or the other, on all ranks."""
    condition, *branches = values
    if not is_replicated(unlisted(condition)):
        raise Refused(f"chooses by {describe(condition)}")
    n = len(node.outputs)
    pairs = [[unlisted(branches[i]), unlisted(branches[n + i])] for i in range(n)]
    for pair in pairs:
        if len({isinstance(value, Sharded) for value in pair}) > 1:
            raise Refused("chooses between rows and something of fixed length")
        if len({value.length for value in pair if isinstance(value, Sharded)}) > 1:
            raise Refused("chooses between rows and more entries of them")
    return [selected([without_block(value) for value in pair]) for pair in pairs]


@table.padded(IfElse)
def choice_of_real(padder: Padder, node: Apply, values: list[Value]) -> Made:
    """One branch or the other, by anything that is exact."""
    condition, *branches = values
    if is_padded(condition):
        raise Refused("chooses by the rows")
    padder.check_no_sizes(node.inputs[1:])
    given = [Replicated(), *map(plain, branches)]
    made = padder.made(node, [padder.new[var] for var in node.inputs])
    return Made(made, if_else(node, given))
