"""Going through a graph with the rules: from what the inputs are to the rest.

`apply_rule` tells what a node's outputs are. `padded.Padder` goes the same way, and
rewrites every node as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.type import DenseTensorType

from ..user_frames import made_in
from .domain import (
    REPLICATED,
    Partial,
    Position,
    Refused,
    Replicated,
    Sharded,
    Unknown,
    Value,
    describe,
    is_replicated,
)
from .lengths import cached_lengths
from .rules.base import (
    any_function,
    by_streams,
    check_some_rows,
    is_short,
    literal,
    name,
    op_name,
    takes_streams,
)
from .rules.wrapping import wrapped
from .table import OpEntry, ask, entry_of

NodeRule = Callable[[Apply, list[Value]], list[Value]]


def infer(
    graph: Sequence[Variable],
    known: Mapping[Variable, Value],
    asserted: Mapping[Variable, Value] = MappingProxyType({}),
    rule: NodeRule | None = None,
) -> dict[Variable, Value]:
    """Return what every variable of a graph is, in the order of computation.

    Of variables that are not `known`, those that nothing computes are the same on every
    rank. What is `asserted` is taken for true, whatever the rules say, and `rule` asked
    in place of `apply_rule`.
    """
    values = dict(known)
    nodes = io_toposort([var for var in known if var.owner], list(graph))
    with cached_lengths():
        infer_nodes(nodes, values, asserted, rule)
    for var in graph:
        if var not in values:
            values[var] = literal(var)
    return values


def infer_nodes(
    nodes: Iterable[Apply],
    values: dict[Variable, Value],
    asserted: Mapping[Variable, Value] = MappingProxyType({}),
    rule: NodeRule | None = None,
) -> None:
    """Add what the variables of nodes, in their order, are to what is known.

    See `infer`. Of nodes whose outputs are known no rule is asked.
    """
    rule = rule or apply_rule
    for node in nodes:
        if all(map(values.__contains__, node.outputs)):
            continue
        for var in node.inputs:
            if var not in values:
                values[var] = asserted.get(var) or literal(var)
        found = rule(node, [values[var] for var in node.inputs])
        for var, value in zip(node.outputs, found, strict=True):
            if var not in values:
                values[var] = asserted.get(var, value)


def apply_rule(node: Apply, values: list[Value]) -> list[Value]:
    """Return what the outputs of a node are, by what its inputs are."""
    pairs = zip(node.outputs, _apply(node, values), strict=True)
    return [_check(var, value, node, values) for var, value in pairs]


def _apply(node: Apply, values: list[Value]) -> list[Value]:
    entry, kinds = entry_of(node.op), set(map(type, values))
    function = entry.placement or any_function
    if Unknown in kinds and not entry.takes_unknown:
        unknown = next(value for value in values if isinstance(value, Unknown))
        return [unknown] * len(node.outputs)
    found: Any
    draws = takes_streams(node)
    try:
        if Sharded in kinds:
            check_some_rows(node, values, bool(entry.takes_some_rows))
        args = function, node, values
        found = ask(by_streams, *args) if draws else ask(*args)
    except Refused as refused:
        # The same computes the same, whatever the Op is.
        is_alike = not draws and not isinstance(node.op, RandomVariable)
        if is_alike and all(map(is_replicated, values)):
            return [Replicated()] * len(node.outputs)
        found = _unknown(node.outputs[0], str(refused))
    if not isinstance(found, list):
        found = [found] * len(node.outputs)
    if _mixes_rows(entry, values, found):
        why = (
            "takes rows of the rank's own, or their number, beside what all ranks have"
        )
        return [_unknown(var, why) for var in node.outputs]
    return found


def _mixes_rows(entry: OpEntry, values: list[Value], found: list[Value]) -> bool:
    """Tell whether a rule has left out of sight that an input is of a rank's own rows.

    What is the same on every rank follows from what is. A rule that says so of more
    must have looked at values, as those of arithmetic do, or at shapes alone: their
    Ops are those that may take what is unknown. Any other has mixed an array of all
    rows with a rank's own number of them, whatever Op it is of.
    """
    if entry.takes_unknown or not all(map(is_replicated, found)):
        return False
    return any(
        value.exact
        if isinstance(value, Replicated)
        else isinstance(value, (Sharded, Position))
        for value in values
    )


def _check(var: Variable, value: Value, node: Apply, values: list[Value]) -> Value:
    """Give up where a type fixes the number of rows, or cannot hold a sum of them."""
    if value is REPLICATED or isinstance(value, Unknown):
        return value
    why = None
    if isinstance(value, Sharded) and var.type.shape[value.axis] is not None:
        why = "fixes the number of rows"
    elif isinstance(value, Partial) and value.op in ("sum", "prod"):
        if not isinstance(var.type, DenseTensorType):
            why = f"has {describe(value)} as an index"
        elif is_short(var):
            why = f"has {describe(value)} in short integers, which wrap around"
    why = why or wrapped(var, value, node, values)
    return _unknown(var, why) if why else value


def _unknown(var: Variable, why: str) -> Unknown:
    assert var.owner is not None
    return Unknown(op_name(var.owner.op), name(var), why, made_in(var))
