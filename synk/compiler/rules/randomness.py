"""Random draws: for rows, from a stream at the rank's rows or of the rank's own.

In padded calls, draws for N rows have to begin with the draws for n. In JAX they do: by
default it computes each number from a key and the number's place in the array, in C
order (its option ``jax_threefry_partitionable``, since 0.5). The rows' axis has to be
the first, and a number has to take one such computation; distributions drawn by
rejection, such as gamma, may take more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytensor.tensor.random.basic as ptr
from pytensor.graph.basic import Apply
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.type_other import NoneTypeT

from ...draws import Passed, is_one_coin
from .. import table
from ..domain import (
    IN_ORDER,
    REPLICATED,
    OwnStream,
    Refused,
    Sharded,
    Value,
    align,
    describe,
    is_replicated,
    unlisted,
)
from ..padded import Made, Padder, plain
from .base import check_spread
from .shapes import entries, row_axis, row_length


@table.placement(RandomVariable)
def draw(node: Apply, values: list[Value]) -> list[Value]:
    """Draws for each row are sharded; other draws differ between ranks.

    The proof takes a draw for a row as a value of that row. It is the serial run's if
    the rank has passed over the others' draws; from an own stream it is as good.
    """
    found = rows_drawn(node, values)
    if found is None:
        raise Refused("draws, on each rank from its own stream, what is not for a row")
    return [OwnStream(), found]


def rows_drawn(node: Apply, values: list[Value]) -> Sharded | None:
    """Return the value of a draw with an entry for each row; None of other draws."""
    params, cores = node.inputs[2:], node.op.ndims_params
    drawn = node.outputs[1].type.ndim - node.op.ndim_supp
    found: Sharded | None = None
    if not isinstance(node.inputs[1].type, NoneTypeT):
        lengths = entries(node, 1, values)
        axis = row_axis(lengths)
        if axis is not None:
            # The rows of independent draws may be in any order.
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
        return None
    for var, core, value in zip(params, cores, values[2:], strict=True):
        back = found.axis - drawn - core
        check_spread([var], [unlisted(value)], back)
    return found


@table.padded(RandomVariable)
def draw_more(padder: Padder, node: Apply, values: list[Value]) -> Made:
    """Draw for padded rows along the first axis; other draws stay as they are."""
    params = [plain(value) for value in values[2:]]
    found = rows_drawn(node, [*values[:2], *params])
    inputs = [padder.new[var] for var in node.inputs]
    inputs[1] = padder.long_of(node.inputs[1])
    if found is None:
        return padder.exact(node, inputs)
    if not is_by_place(node):
        raise Refused("draws for each row, and for more rows may draw other numbers")
    if found.axis or not found.in_order:
        raise Refused("draws for each row along another axis than the first")
    rows = replace(found, layout=IN_ORDER)
    return Made(padder.made(node, inputs), [REPLICATED, rows])


_BY_PLACE = (
    *(ptr.NormalRV, ptr.UniformRV, ptr.BernoulliRV, ptr.CauchyRV, ptr.GumbelRV),
    *(ptr.LaplaceRV, ptr.LogisticRV, ptr.ExponentialRV),
)


def may_be_by_place(node: Apply) -> bool:
    """Return whether JAX can draw each number from a key and its place alone."""
    return isinstance(node.op, _BY_PLACE) or is_one_coin(node.op, node.inputs[2:])


def is_by_place(node: Apply) -> bool:
    """Return whether JAX, as configured, draws each number from key and place alone."""
    if not may_be_by_place(node):
        return False
    import jax

    config: Any = jax.config
    return (
        config.jax_threefry_partitionable
        and config.jax_default_prng_impl == "threefry2x32"
    )


@table.placement(Passed)
def passed(node: Apply, values: list[Value]) -> Value:
    """A common stream and replicated operands give a common stream."""
    if not all(is_replicated(unlisted(value)) for value in values):
        raise Refused("passes as many draws as a rank has rows")
    return REPLICATED


@table.padded(Passed)
def passed_of_all(padder: Padder, node: Apply, values: list[Value]) -> Made:
    """Padding changes neither the rows before a rank's nor the number of all rows."""
    return padder.exact(node)
