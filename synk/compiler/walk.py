"""Applying the rules to a graph: from the values of the inputs to all others.

`apply_rule` does it for one node. `padded.Padder` also rewrites each node on the way.
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
    """Return the `Value` of every variable of a graph, in the order of computation.

    `known` has the values of inputs; other roots are the same on every rank. `asserted`
    overrides what the rules say. `rule` is called instead of `apply_rule`.
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
    """Add the values of the nodes' variables to `values`; see `infer`.

    `nodes` are in the order of computation; those with known outputs are skipped.
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
    """Return the values of a node's outputs, given those of its inputs."""
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
        # Equal inputs give equal outputs, whatever the Op is.
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
    """Return whether a rule has overlooked that an input is of a rank's own rows.

    Results that are replicated have to follow from replicated inputs. Rules that may
    say otherwise look at values, as arithmetic does, or at shapes alone; all of these
    take unknown inputs. Any other rule has mixed an array of all rows with a rank's own
    number of rows.
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
    """Return a value, or `Unknown` if the variable's type cannot hold it.

    As where the type fixes the number of rows, or where a sum may wrap around.
    """
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
