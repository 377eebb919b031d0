"""Random draws from a stream that is at the rank's rows, or its own: one for each.

Of more rows than are real, JAX's draws begin with those for fewer. By default it
computes each number from a key and its place in the array, in the order of C (its
option ``jax_threefry_partitionable``, since 0.5). What is drawn for n rows is so the
beginning of what is drawn for N, if the rows' axis is the first, and if a number takes
one such computation: those that are drawn by trial, gamma for one, may take more.
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
    """Draws for each row are row-wise; other draws differ between ranks.

    The proof takes what is drawn for a row to be that row's own. It is, where a rank
    has passed over the others' draws; from a stream of its own it is as good.
    """
    found = rows_drawn(node, values)
    if found is None:
        raise Refused("draws, on each rank from its own stream, what is not for a row")
    return [OwnStream(), found]


def rows_drawn(node: Apply, values: list[Value]) -> Sharded | None:
    """Return what is drawn for each row; None if nothing has to do with rows."""
    params, cores = node.inputs[2:], node.op.ndims_params
    drawn = node.outputs[1].type.ndim - node.op.ndim_supp
    found: Sharded | None = None
    if not isinstance(node.inputs[1].type, NoneTypeT):
        lengths = entries(node, 1, values)
        axis = row_axis(lengths)
        if axis is not None:
            # From a rank's own stream any order of the rows is as good as another.
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
    """Along the first axis; what is drawn for no row, as it is."""
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
    """Tell whether JAX can draw each number from a key and its place alone."""
    return isinstance(node.op, _BY_PLACE) or is_one_coin(node.op, node.inputs[2:])


def is_by_place(node: Apply) -> bool:
    """Tell whether JAX draws each number from a key and its place alone."""
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
    """Streams that all ranks have alike, from such and from what is the same on all."""
    if not all(is_replicated(unlisted(value)) for value in values):
        raise Refused("passes as many draws as a rank has rows")
    return REPLICATED


@table.padded(Passed)
def passed_of_all(padder: Padder, node: Apply, values: list[Value]) -> Made:
    """What is before the rows of a rank, and all of them, are as they are."""
    return padder.exact(node)
