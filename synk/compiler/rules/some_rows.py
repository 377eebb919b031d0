"""Rows that a mask selects: of a number of their own on each rank, which add up.

What is done for each of them, or adds them up, is done as for all rows. Other rules do
not know of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytensor.graph.basic import Apply, Variable

from ..domain import Refused, Sharded, Value, unlisted
from ..lengths import selected_by, size


def is_some(value: Value) -> bool:
    """Tell whether a value is one for each of some rows."""
    return isinstance(value, Sharded) and value.length == "some"


def check_some_rows(node: Apply, values: Sequence[Value], are_taken: bool) -> None:
    """Raise unless a rule takes its inputs' rows, and they are selected alike."""
    if not any(map(is_some, values)):
        return
    if not are_taken:
        raise Refused("takes rows that a mask selects")
    if len(values) > 2 and selecting_mask(node, 2, values) is not None:
        return  # their rule sees to it
    pairs = list(zip(node.inputs, values, strict=True))
    lengths = {size(var, value.axis) for var, value in pairs if is_some(value)}  # type: ignore[union-attr]
    if len(lengths) > 1 or any(
        isinstance(value, Sharded) and not is_some(value) for value in values
    ):
        raise Refused("pairs rows that are selected in different ways")


def selecting_mask(node: Apply, first: int, values: Sequence[Value]) -> Variable | None:
    """Return the mask of rows that a node indexes by, and by nothing else."""
    mask = node.inputs[first] if len(node.inputs) == first + 1 else None
    idx_list = getattr(node.op, "idx_list", (0,))
    if mask is None or mask.type.dtype != "bool" or idx_list != (0,):
        return None
    rows, chosen = values[0], unlisted(values[first])
    of_rows = isinstance(rows, Sharded) and isinstance(chosen, Sharded)
    if not of_rows or mask.type.ndim != 1:
        return None
    alike = rows.axis == 0 and rows.length == chosen.length == "n"  # type: ignore[union-attr]
    if not alike or (rows.layout and rows.layout != chosen.layout):  # type: ignore[union-attr]
        return None
    return mask


def is_selected_by(mask: Variable, var: Variable, value: Value) -> bool:
    """Tell whether rows, along axis 0, are those that a mask selects."""
    return (
        isinstance(value, Sharded)
        and is_some(value)
        and not value.axis
        and size(var, 0) == selected_by(mask)
    )
