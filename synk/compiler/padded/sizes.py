"""Sizes: numbers that follow from the number of rows, as they are and as JAX knows it.

``x.shape[0]`` is n, an argument, where it divides a sum, and N, which JAX knows when it
compiles, where an array gets its shape from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.raise_op import CheckAndRaise
from pytensor.tensor import basic as ptb
from pytensor.tensor.shape import Shape, Shape_i

from ..domain import Refused
from ..lengths import Length, entries_of, value_of
from .walk import Padder, is_integer, rule


def of_sizes(padder: Padder, node: Apply) -> None:
    """Apply an Op to exact values, and once more to what they are for all N rows."""
    # Before the outputs are known: what nothing is known of is not free.
    free = {var for var in node.outputs if _is_free(padder, var)}
    padder.become(node.outputs, padder.made(node, padder.given(node)))
    longs = padder.made(node, [padder.long_of(var) for var in node.inputs])
    for var, long in zip(node.outputs, longs, strict=True):
        if var in free:
            padder.new[var] = long  # x.shape[1], of the same vector as x.shape[0]
        elif is_integer(var) or not var.type.ndim:  # and no tensor that is divided by n
            padder.long[var] = long


def _is_free(padder: Padder, var: Variable) -> bool:
    """Tell whether a scalar does not depend on the number of rows after all."""
    if var.type.ndim or not is_integer(var):
        return False
    try:
        return padder.normal(value_of(var))[0] == 0
    except Refused:
        return False


@rule(Shape)
def shape(padder: Padder, node: Apply) -> None:
    """The lengths of all axes."""
    (var,) = node.inputs
    state, new = padder.state(var), padder.new[var]
    (long,) = padder.made(node, [new])
    if state is None:  # of a size, which has the shape that it would have
        padder.become(node.outputs, [long])
        return
    lengths = [
        _real(padder, new, axis) if axis == state.axis else new.shape[axis]
        for axis in range(new.type.ndim)
    ]
    padder.become(node.outputs, [pt.stack(lengths)])
    padder.long[node.outputs[0]] = long


@rule(Shape_i)
def shape_i(padder: Padder, node: Apply) -> None:
    """The length of one axis."""
    (var,) = node.inputs
    state, new = padder.state(var), padder.new[var]
    (long,) = padder.made(node, [new])
    if state is None or node.op.i != state.axis:
        padder.become(node.outputs, [long])
        return
    padder.become(node.outputs, [_real(padder, new, state.axis)])
    padder.long[node.outputs[0]] = long


def _real(padder: Padder, new: Any, axis: int) -> Any:
    """Return how long an axis is without the copies."""
    return padder.real * (new.shape[axis] // padder.padded_rows)


@rule(ptb.MakeVector, ptb.TensorFromScalar, ptb.ScalarFromTensor)
def arranged(padder: Padder, node: Apply) -> None:
    """Sizes again."""
    if any(var in padder.found for var in node.inputs):
        raise Refused("makes a vector of rows")
    of_sizes(padder, node)


@rule(CheckAndRaise)
def checked(padder: Padder, node: Apply) -> None:
    """The first input: JAX checks nothing."""
    var = node.inputs[0]
    (out,) = node.outputs
    padder.become([out], [padder.new[var]], padder.state(var))
    if var in padder.long:
        padder.long[out] = padder.long[var]


# -- shapes that arrays are given


def one_length(padder: Padder, var: Variable) -> tuple[int, Length]:
    """Return a scalar as a power of the number of rows, and a factor."""
    if var not in padder.facts.long:
        return 0, value_of(var)
    return padder.normal(value_of(var))


def lengths(padder: Padder, var: Variable) -> list[tuple[int, Length]]:
    """Return the entries of a shape, each as power of the number of rows and factor."""
    if var not in padder.facts.long:
        return [(0, length) for length in entries_of(var)]
    return [padder.normal(length) for length in entries_of(var)]


def row_axis(found: Sequence[tuple[int, Length]]) -> int | None:
    """Return the one axis whose length is a multiple of the number of rows."""
    axes = [axis for axis, (power, _) in enumerate(found) if power]
    if len(axes) > 1 or any(power > 1 for power, _ in found):
        raise Refused("makes an array whose size grows with the square of the rows")
    return axes[0] if axes else None
