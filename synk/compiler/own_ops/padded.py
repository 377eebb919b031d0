"""Users' Ops for more rows than are real: the rule that their shardings give."""

from __future__ import annotations

from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable

from ..domain import REPLICATED, Partial, Refused, Sharded, Value
from ..padded.lying import is_padded, plain
from ..padded.padder import Made, Padder
from ..rules.base import name
from .registry import shardings_of
from .rule import of_rows
from .sharding import Sharding


def own_padded(padder: Padder, node: Apply, values: list[Value]) -> Made | None:
    """Keep copies where there is a result for each row, and out of what combines."""
    ways = shardings_of(node)
    if ways is None or not any(map(is_padded, values)):
        return None
    padder.check_no_sizes(node.inputs)
    values = [plain(value) for value in values]
    why = "takes all rows at once, as it is registered"
    for way in ways:
        try:
            return _by(way, padder, node, values)
        except Refused as refused:
            why = str(refused)
    raise Refused(why)


def _by(way: Sharding, padder: Padder, node: Apply, values: list[Value]) -> Made:
    for var, axis, value in zip(node.inputs, way.inputs, values, strict=True):
        if (value.axis if isinstance(value, Sharded) else None) != axis:
            raise Refused(f"is not registered for {name(var)} as it is here")
    found = of_rows(way, node.inputs, values)
    inputs = [padder.new[var] for var in node.inputs]
    if any(isinstance(value, Partial) for value in found):
        inputs = _without_copies(way, padder, node, values)
    exact: list[Value] = [REPLICATED if isinstance(v, Partial) else v for v in found]
    return Made(padder.made(node, inputs), exact)


def _without_copies(
    way: Sharding, padder: Padder, node: Apply, values: list[Value]
) -> list[Variable]:
    """Return operands whose copies change nothing in what combines the rows.

    All are made copies of the last real row, which may be anything that a real one may
    be, so that nothing overflows. They change no maximum and no minimum. A sum must be
    linear in an operand, which is zero then; of others it is not known what to add.
    """
    for value in values:
        if isinstance(value, Sharded) and not (value.length == "n" and value.in_order):
            raise Refused("combines rows of several entries each")
    ops = {output for output in way.outputs if isinstance(output, str)}
    zeroed = [i for i in way.linear if i in way.rows]
    if not ops <= {"min", "max"} and not (ops == {"sum"} and zeroed):
        raise Refused(
            f"combines rows by {sorted(ops)}, and is not registered as linear in any"
        )
    inputs = [padder.new[var] for var in node.inputs]
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
