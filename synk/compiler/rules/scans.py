"""Scans: a loop over another axis than the rows', or over the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pytensor.graph.basic import Apply, Variable
from pytensor.scan.op import Scan

from .. import table
from ..domain import (
    OwnStream,
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
)
from ..lengths import Length, size, value_of
from ..walk import infer
from .inner import seen_outside
from .rowscans import over_rows


@dataclass
class _State:
    """A value that a scan carries from step to step, in a buffer along axis 0."""

    value: Value
    taps: list[Variable]
    news: list[Variable]


@table.placement(Scan, takes_unknown=True)
def scan(node: Apply, values: list[Value]) -> list[Value]:
    """A loop over another axis than the rows'; or over the rows, one by one."""
    op = node.op
    if isinstance(values[0], Unknown):
        return [values[0]] * len(node.outputs)
    if not isinstance(values[0], Replicated) or values[0].power:
        return over_rows(node, values)
    known: dict[Variable, Value] = {}
    inner = op.inner_inputs
    for var, value in zip(op.inner_seqs(inner), op.outer_seqs(values), strict=True):
        known[var] = _inside(value)
    known.update(zip(op.inner_non_seqs(inner), op.outer_non_seqs(values), strict=True))
    states = _states(op, values)
    found = _fixpoint(op, known, states)
    if op.info.as_while and not _is_fixed(found[op.inner_outputs[-1]]):
        raise Refused("stops by a condition that may differ between ranks")
    stacked = [_outside(found[var]) for var in op.inner_nitsot_outs(op.inner_outputs)]
    n = op.info.n_untraced_sit_sot
    traced, untraced = states[: len(states) - n], states[len(states) - n :]
    return [
        *(_outside(state.value) for state in traced),
        *stacked,
        *(state.value for state in untraced),
    ]


@table.length(Scan)
def scan_length(node: Apply, var: Variable, axis: int) -> Length | None:
    """Traced states lie in the buffers that they were given."""
    op = node.op
    buffers = [*op.outer_mitmot(node.inputs), *op.outer_mitsot(node.inputs)]
    buffers += op.outer_sitsot(node.inputs)
    place = node.outputs.index(var)
    if place < len(buffers):
        return size(buffers[place], axis)
    is_stacked = place < len(buffers) + op.info.n_nit_sot
    return value_of(node.inputs[0]) if is_stacked and not axis else None


def _is_fixed(value: Value) -> bool:
    return not isinstance(value, Unknown) and is_replicated(unlisted(value))


def _states(op: Scan, values: Sequence[Value]) -> list[_State]:
    info, inner, outputs = op.info, op.inner_inputs, op.inner_outputs
    states = []

    def add(initials, taps, news, n_taps, n_news) -> None:
        taps, news = iter(taps), iter(news)
        for value, many, made in zip(initials, n_taps, n_news, strict=True):
            states.append(
                _State(
                    value,
                    [next(taps) for _ in range(many)],
                    [next(news) for _ in range(made)],
                )
            )

    add(
        map(_inside, op.outer_mitmot(values)),
        op.inner_mitmot(inner),
        op.inner_mitmot_outs(outputs),
        map(len, info.mit_mot_in_slices),
        map(len, info.mit_mot_out_slices),
    )
    add(
        map(_inside, op.outer_mitsot(values)),
        op.inner_mitsot(inner),
        op.inner_mitsot_outs(outputs),
        map(len, info.mit_sot_in_slices),
        [1] * info.n_mit_sot,
    )
    for initials, taps, news in (
        (
            map(_inside, op.outer_sitsot(values)),
            op.inner_sitsot(inner),
            op.inner_sitsot_outs(outputs),
        ),
        (
            op.outer_untraced_sit_sot(values),
            op.inner_untraced_sit_sot(inner),
            op.inner_untraced_sit_sot_outs(outputs),
        ),
    ):
        ones = [1] * len(taps)
        add(initials, taps, news, ones, ones)
    return states


def _fixpoint(op: Scan, known: dict, states: list[_State]) -> dict[Variable, Value]:
    """Find what the states are at every step: what they are first, and stay."""
    for _ in range(2 + 2 * len(states)):
        for state in states:
            known.update(dict.fromkeys(state.taps, state.value))
        found = infer(op.inner_outputs, known)
        outputs = seen_outside(op.inner_outputs, found, known)
        found.update(zip(op.inner_outputs, outputs, strict=True))
        stays = True
        for state in states:
            value = _either([state.value, *(found[var] for var in state.news)])
            stays = stays and value == state.value
            state.value = value
        if stays:
            return found
    raise Refused("carries a value that is something else at every step")


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
    """Return what one step sees of a value that is stacked along axis 0."""
    if isinstance(value, Unknown):
        return value
    value = unlisted(value)
    if isinstance(value, Position) or (isinstance(value, Sharded) and not value.axis):
        raise Refused("goes along the rows")
    if isinstance(value, Sharded):
        return replace(value, axis=value.axis - 1)
    return Replicated(value.power) if isinstance(value, Replicated) else value


def _outside(value: Value) -> Value:
    """Return what the steps' values are when they are stacked along axis 0."""
    if isinstance(value, Unknown):
        return value
    value = unlisted(value)
    if isinstance(value, Position):
        raise Refused(f"stacks {describe(value)}")
    if isinstance(value, Sharded):
        return replace(value, axis=value.axis + 1)
    return Replicated(value.power) if isinstance(value, Replicated) else value
