"""Random numbers for each row: of more rows, JAX's begin with those of fewer.

By default JAX computes each number from a key and its place in the array, in the order
of C (its option ``jax_threefry_partitionable``, since 0.5). What is drawn for n rows is
so the beginning of what is drawn for N, if the rows' axis is the first, and if a number
takes one such computation: those that are drawn by trial, gamma for one, may take more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytensor.tensor as pt
import pytensor.tensor.random.basic as ptr
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.type_other import NoneTypeT

from ..domain import Refused
from ..lengths import ONE
from .sizes import lengths, row_axis
from .walk import Padded, Padder, aligned, check_spread, rule

_BY_PLACE = (ptr.NormalRV, ptr.UniformRV, ptr.BernoulliRV)


@rule(RandomVariable)
def draw(padder: Padder, node: Apply) -> None:
    """Along the first axis."""
    _, size, *params = node.inputs
    drawn = node.outputs[1].type.ndim
    states: list[Padded | None] = []
    if not isinstance(size.type, NoneTypeT):
        found = lengths(padder, size)
        axis = row_axis(found)
        if axis is not None:
            states.append(Padded(axis, found[axis][1]))
    for var in params:
        state = padder.state(var)
        if state is not None:
            axis = state.axis + drawn - var.type.ndim
            states.append(replace(state, axis=axis))
    state = aligned(states)
    inputs = padder.given(node)
    inputs[1] = padder.long_of(size)
    made = padder.made(node, inputs)
    if state is None:
        padder.become(node.outputs, made)
        return
    if not _is_by_place(node):
        raise Refused("draws for each row, and for more rows may draw other numbers")
    if state.axis or state.blocks not in (None, ONE):
        raise Refused("draws for each row along another axis than the first")
    check_spread(padder, params, -drawn)
    padder.become(node.outputs[:1], made[:1])
    padder.become(node.outputs[1:], made[1:], replace(state, blocks=ONE))


def _is_by_place(node: Apply) -> bool:
    """Tell whether each number depends on its place alone."""
    is_once = isinstance(node.op, ptr.BinomialRV) and _is_one(node.inputs[2])
    if not (isinstance(node.op, _BY_PLACE) or is_once):
        return False
    import jax

    config: Any = jax.config
    return (
        config.jax_threefry_partitionable
        and config.jax_default_prng_impl == "threefry2x32"
    )


def _is_one(var: Variable) -> bool:
    try:
        return bool(pt.get_underlying_scalar_constant_value(var) == 1)
    except NotScalarConstantError:
        return False
