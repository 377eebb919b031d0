"""Users' Ops for more rows than are real: the rule that their shardings give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable

from ..domain import Refused
from ..lengths import ONE
from ..padded.walk import Padded, Padder, aligned, unknown
from ..rules.base import name
from .registry import shardings_of
from .sharding import Sharding


def own_padded(padder: Padder, node: Apply) -> None:
    """Keep copies where there is a result for each row, and out of what combines."""
    ways = shardings_of(node)
    padded = {i: padder.state(var) for i, var in enumerate(node.inputs)}
    if ways is None or not any(padded.values()):
        unknown(padder, node)
        return
    padder.check_no_sizes(node.inputs)
    why = "takes all rows at once, as it is registered"
    for way in ways:
        try:
            _by(way, padder, node)
            return
        except Refused as refused:
            why = str(refused)
    raise Refused(why)


def _by(way: Sharding, padder: Padder, node: Apply) -> None:
    states = []
    for var, axis in zip(node.inputs, way.inputs, strict=True):
        state = padder.state(var)
        if (None if state is None else state.axis) != axis:
            raise Refused(f"is not registered for {name(var)} as it is here")
        states.append(state and replace(state, axis=0))
    state = aligned(states)
    assert state is not None
    ops = {output for output in way.outputs if isinstance(output, str)}
    inputs = padder.given(node)
    if ops:
        inputs = _without_copies(way, ops, state, padder, node)
    made = padder.made(node, inputs)
    for var, new, output in zip(node.outputs, made, way.outputs, strict=True):
        of_rows = replace(state, axis=output) if isinstance(output, int) else None
        padder.become([var], [new], of_rows)


def _without_copies(
    way: Sharding, ops: set[Any], state: Padded, padder: Padder, node: Apply
) -> list[Variable]:
    """Return operands whose copies change nothing in what combines the rows.

    All are made copies of the last real row, which may be anything that a real one may
    be, so that nothing overflows. They change no maximum and no minimum. A sum must be
    linear in an operand, which is zero then; of others it is not known what to add.
    """
    if state.many != ONE or state.blocks not in (None, ONE):
        raise Refused("combines rows of several entries each")
    zeroed = [i for i in way.linear if i in way.rows]
    if not ops <= {"min", "max"} and not (ops == {"sum"} and zeroed):
        raise Refused(
            f"combines rows by {sorted(ops)}, and is not registered as linear in any"
        )
    inputs = padder.given(node)
    for i in way.rows:
        axis: Any = way.inputs[i]
        if i in zeroed:
            inputs[i] = padder.masked(node.inputs[i], 0)
        else:
            inputs[i] = _repeated(inputs[i], axis, padder.real)
    return inputs


def _repeated(rows: Any, axis: int, real: Any) -> Any:
    """Return rows whose copies are those of the last real one."""
    places = pt.minimum(pt.arange(rows.shape[axis]), real - 1)
    return pt.take(rows, places, axis=axis)
