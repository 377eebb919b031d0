"""Ops with inner graphs, such as scans; `IfElse`; and collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Variable
from pytensor.scan.op import Scan

from ...ops import COLLECTIVES, AllReduce
from ...user_frames import made_in
from .. import table
from ..cloning import inlined, inner_graph_of, scan_of
from ..domain import (
    Layout,
    OwnStream,
    Position,
    Refused,
    Replicated,
    Sharded,
    Unknown,
    Value,
    align,
    describe,
    is_n,
    is_replicated,
    selected,
    unlisted,
    without_block,
)
from ..lengths import ONE, Length, Symbol, size, value_of
from ..padded import Made, Padder, is_padded, plain
from ..walk import NodeRule, infer
from .base import name, op_name, takes_streams

try:
    from pytensor.conditional.op import IfElse
except ImportError:  # PyTensor before 3.3
    from pytensor.ifelse import IfElse  # type: ignore[no-redef]


@table.placement(*COLLECTIVES, takes_unknown=True)
def all_reduce(node: Apply, values: list[Value]) -> Value:
    """Every rank gets the same result."""
    return Replicated()


@table.padded(AllReduce)
def all_reduce_of_real(padder: Padder, node: Apply, values: list[Value]) -> Made:
    """The operand must not be padded, as its shape is the same on all ranks."""
    if any(map(is_padded, values)):
        raise Refused("reduces what has a value for each row")
    return padder.exact(node)


@table.placement(OpFromGraph, takes_unknown=True)
def op_from_graph(node: Apply, values: list[Value]) -> list[Value]:
    """The values of the inner graph's outputs."""
    outputs = node.op.inner_outputs
    known = dict(zip(node.op.inner_inputs, values, strict=True))
    return seen_outside(outputs, infer(outputs, known), known)


@table.padded(OpFromGraph)
def within_graph(padder: Padder, node: Apply, values: list[Value]) -> Made:
    """The inner graph in place of the Op, padded."""
    if takes_streams(node):
        raise Refused("draws at random")
    return padder.instead(node, inlined)


def seen_outside(
    outputs: Sequence[Variable], found: dict[Variable, Value], known: dict
) -> list[Value]:
    """Return the values of an inner graph's outputs, unknown if they use its symbols.

    The length of an inner variable may differ wherever the graph is used, and in each
    step of a scan. `found` has the values in the graph, `known` those of its inputs.
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
    """The same branch on all ranks."""
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


@table.placement(Scan, takes_unknown=True)
def scan(node: Apply, values: list[Value]) -> list[Value]:
    """A loop over another axis than the rows', or one row in each step."""
    op = node.op
    if isinstance(values[0], Unknown):
        return [values[0]] * len(node.outputs)
    _check_stacked(node, values)
    if not is_replicated(values[0]):
        return _over_rows(node, values)
    inner, outputs = op.inner_inputs, op.inner_outputs
    found, results = values_within(node, inner, outputs, values, step_of(outputs))
    if op.info.as_while:
        stops = found[op.inner_outputs[-1]]
        if isinstance(stops, Unknown) or not is_replicated(unlisted(stops)):
            raise Refused("stops by a condition that may differ between ranks")
    return results


def _over_rows(node: Apply, values: list[Value]) -> list[Value]:
    """Return the values of a scan with one step for each row and no state.

    A step sees one row. Its results from that row and from replicated values do not
    depend on how rows are split. So inside the step the row counts as replicated, and
    a replicated result is, stacked, a value for each row.
    """
    op, steps = node.op, values[0]
    if not is_n(steps):
        raise Refused("takes a number of steps that depends on the rows")
    others = len(node.outputs) > op.info.n_nit_sot
    if others or op.info.as_while or takes_streams(node):
        raise Refused("goes along the rows, from one to the next")
    inner, known = op.inner_inputs, {}
    for var, value in zip(
        op.inner_non_seqs(inner), op.outer_non_seqs(values), strict=True
    ):
        is_alike = isinstance(value, Replicated)
        known[var] = Replicated(value.power) if is_alike else value
    rows: list[Value] = []
    for var, value in zip(op.inner_seqs(inner), op.outer_seqs(values), strict=True):
        if isinstance(value, Unknown):
            known[var] = value
            continue
        if not isinstance(value, Sharded) or value.axis or value.length != "n":
            raise Refused("takes more along the rows than one row for each step")
        rows.append(value)
        known[var] = Replicated(value.power)
    aligned = align(rows)
    layout = None if aligned is None else aligned.layout
    if layout is not None and layout.blocks != ONE:
        raise Refused("takes more along the rows than one row for each step")
    found = infer(op.inner_outputs, known)
    return [_for_each(found[var], layout) for var in op.inner_outputs]


def _for_each(value: Value, layout: Layout | None) -> Value:
    """Return the value of a step's result stacked over steps, one for each row."""
    if isinstance(value, Unknown):
        return value
    value = unlisted(value)
    if not isinstance(value, Replicated):
        return Unknown("Scan", "a step", f"gives {describe(value)}")
    return Sharded(0, value.power, "n", layout)


def _check_stacked(node: Apply, values: list[Value]) -> None:
    """Raise unless the number of stacked results equals the number of steps.

    A scan has operands for both numbers. In a gradient, the number of results is the
    length of a cotangent. With steps for all rows and results for a rank's own, buffers
    would be too short, and compiled code would write past their end.
    """
    steps, op = values[0], node.op
    for var, value in zip(
        op.outer_nitsot(node.inputs), op.outer_nitsot(values), strict=True
    ):
        if is_replicated(value) and is_replicated(steps):
            continue
        of_rows = is_n(value) and is_n(steps)
        if not of_rows and value_of(var) != value_of(node.inputs[0]):
            raise Refused("makes more or fewer steps than it stacks results of")


class _State(NamedTuple):
    """A state that a scan carries from step to step."""

    buffer: Value
    taps: list[Variable]  # inputs of the step
    news: list[Variable]  # outputs of the step


def _states(
    op: Scan, inner: list[Variable], outputs: list[Variable], values: list[Value]
) -> list[_State]:
    """Return the states of a scan, given its step and the values of its inputs.

    In PyTensor's order: mit-mot states come first, untraced ones last.
    """
    maps = op.get_oinp_iinp_iout_oout_mappings()
    found = []
    for out, taken in sorted(maps["inner_inp_from_outer_out"].items()):
        if taken:
            value = values[maps["outer_inp_from_outer_out"][out]]
            news = [outputs[i] for i in maps["inner_out_from_outer_out"][out]]
            found.append(_State(value, [inner[i] for i in taken], news))
    return found


Values = dict[Variable, Value]


def step_of(
    outputs: list[Variable], rule: NodeRule | None = None
) -> Callable[[Values], Values]:
    """Return the function from values of a step's inputs to those of all variables."""

    def infer_step(known: Values) -> Values:
        found = infer(outputs, known, rule=rule)
        seen = seen_outside(outputs, found, known)
        return found | dict(zip(outputs, seen, strict=True))

    return infer_step


def values_within(
    node: Apply,
    inner: list[Variable],
    outputs: list[Variable],
    values: list[Value],
    infer_step: Callable[[Values], Values],
) -> tuple[Values, list[Value]]:
    """Return the values of a step's variables, which hold at every step; and results'.

    `inner` and `outputs` are the step's graph, `values` those of the scan's inputs.
    Repeats `infer_step` until the values of the states no longer change; raises
    `Refused` if they always do.
    """
    op: Any = node.op
    sequences = map(_inside, op.outer_seqs(values))
    known: Values = dict(zip(op.inner_seqs(inner), sequences, strict=True))
    known.update(zip(op.inner_non_seqs(inner), op.outer_non_seqs(values), strict=True))
    states = _states(op, inner, outputs, values)
    n_traced = len(states) - op.info.n_untraced_sit_sot  # those stacked over the steps
    now = [state.buffer for state in states]
    now[:n_traced] = map(_inside, now[:n_traced])
    for _ in range(2 + 2 * len(states)):
        for state, value in zip(states, now, strict=True):
            known.update(dict.fromkeys(state.taps, value))
        found, before = infer_step(known), now
        now = [
            _either([value, *(found[var] for var in state.news)])
            for state, value in zip(states, before, strict=True)
        ]
        if now == before:
            break
    else:
        raise Refused("carries a value that is something else at every step")
    stacked = [found[var] for var in op.inner_nitsot_outs(outputs)]
    return found, [*map(_outside, now[:n_traced] + stacked), *now[n_traced:]]


@table.padded(Scan)
def scan_of_real(padder: Padder, node: Apply, values: list[Value]) -> Made:
    """A loop over another axis than the rows', with a padded step."""
    op = node.op
    padder.check_no_sizes(node.inputs)
    if op.info.as_while:
        raise Refused("stops by a condition")
    inner, outputs = inner_graph_of(node)
    inside = padder

    def infer_step(known: Values) -> Values:
        nonlocal inside  # that of the last try
        inside = Padder([], pt.lscalar("real_rows"), padder)
        inside.new.update((var, var.type(name=var.name)) for var in inner)
        inside.values.update(known)
        inside.walk(outputs)
        return {var: plain(inside.values[var]) for var in outputs}

    exact = [plain(value) for value in values]
    _, results = values_within(node, inner, outputs, exact, infer_step)
    inputs = [*(inside.new[var] for var in inner), inside.real]
    info = replace(op.info, n_non_seqs=op.info.n_non_seqs + 1)  # how many are real
    again = scan_of(op, inputs, [inside.new[var] for var in outputs], info)
    given = [padder.new[var] for var in node.inputs]
    return Made(again.make_node(*given, padder.real).outputs, results)


@table.length(Scan)
def scan_length(node: Apply, var: Variable, axis: int) -> Length | None:
    """Traced states have the lengths of their buffers; other results, of the steps.

    A scan that may stop early has an unknown number of steps.
    """
    op = node.op
    if op.info.as_while and not axis:
        return None
    buffers = [*op.outer_mitmot(node.inputs), *op.outer_mitsot(node.inputs)]
    buffers += op.outer_sitsot(node.inputs)
    place = node.outputs.index(var)
    if place < len(buffers):
        return size(buffers[place], axis)
    is_stacked = place < len(buffers) + op.info.n_nit_sot
    return value_of(node.inputs[0]) if is_stacked and not axis else None


def _either(values: list[Value]) -> Value:
    for value in values:
        if isinstance(value, Unknown):
            return value
    if all(isinstance(value, OwnStream) for value in values):
        return OwnStream()
    rows = [isinstance(value, Sharded) for value in values]
    if any(rows) and not all(rows):
        raise Refused("carries rows, and starts with something of fixed length")
    value = selected(values)
    return Replicated(value.power) if isinstance(value, Replicated) else value


def _inside(value: Value) -> Value:
    """Return the value of one step's entry of a value stacked along axis 0."""
    if isinstance(value, Unknown):
        return value
    value = unlisted(value)
    if isinstance(value, Position) or (isinstance(value, Sharded) and not value.axis):
        raise Refused("goes along the rows")
    if isinstance(value, Sharded):
        return replace(value, axis=value.axis - 1)
    return Replicated(value.power) if isinstance(value, Replicated) else value


def _outside(value: Value) -> Value:
    """Return the value of steps' results stacked along axis 0."""
    if isinstance(value, Unknown):
        return value
    value = unlisted(value)
    if isinstance(value, Position):
        raise Refused(f"stacks {describe(value)}")
    if isinstance(value, Sharded):
        return replace(value, axis=value.axis + 1)
    return Replicated(value.power) if isinstance(value, Replicated) else value
