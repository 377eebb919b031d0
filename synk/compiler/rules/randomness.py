"""Random draws from the rank's own stream: one for each row."""

from __future__ import annotations

from dataclasses import replace

from pytensor.graph.basic import Apply
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.type_other import NoneTypeT

from .. import table
from ..domain import (
    OwnStream,
    Refused,
    Sharded,
    Value,
    align,
    describe,
    is_replicated,
    unlisted,
)
from .base import check_spread
from .shapes import entries, row_axis, row_length


@table.placement(RandomVariable)
def draw(node: Apply, values: list[Value]) -> list[Value]:
    """Draws for each row are row-wise; other draws differ between ranks.

    The numbers are not those of the serial run, but as good: the proof takes what is
    drawn for a row to be that row's own.
    """
    params, cores = node.inputs[2:], node.op.ndims_params
    drawn = node.outputs[1].type.ndim - node.op.ndim_supp
    found: Sharded | None = None
    if not isinstance(node.inputs[1].type, NoneTypeT):
        lengths = entries(node, 1, values)
        axis = row_axis(lengths)
        if axis is not None:
            # Any order of the rows is as good as another.
            found = Sharded(axis, 0, row_length(lengths[axis]), None)
    for var, core, value in zip(params, cores, values[2:], strict=True):
        value = unlisted(value)
        if isinstance(value, Sharded):
            rows = replace(value, axis=value.axis + drawn - (var.type.ndim - core))
            if value.power or value.length == "?" or rows.axis >= drawn:
                raise Refused(f"draws with a parameter that is {describe(value)}")
            found = rows if found is None else align([found, rows])
        elif not is_replicated(value):
            raise Refused(f"draws with a parameter that is {describe(value)}")
    if found is None:
        raise Refused("draws, on each rank from its own stream, what is not for a row")
    for var, core, value in zip(params, cores, values[2:], strict=True):
        back = found.axis - drawn - core
        check_spread([var], [unlisted(value)], back)
    return [OwnStream(), found]
