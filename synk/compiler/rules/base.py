"""What the rules share: what is true of any Op, and questions they ask of a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import HasInnerGraph, Op
from pytensor.tensor import subtensor as pts
from pytensor.tensor.basic import Join
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import DenseTensorType, TensorType

from ..domain import (
    OwnStream,
    Position,
    Refused,
    Replicated,
    Sharded,
    Unknown,
    Value,
    constant,
    is_replicated,
    unlisted,
)
from ..lengths import selected_by, size

TAKING: tuple[Any, ...] = (pts.AdvancedSubtensor,)
PUTTING: tuple[Any, ...] = (pts.AdvancedIncSubtensor,)
"""Ops that index by arrays, and what PyTensor before 3.1 has for a single one."""
if hasattr(pts, "AdvancedSubtensor1"):
    TAKING += (pts.AdvancedSubtensor1,)
    PUTTING += (pts.AdvancedIncSubtensor1,)


def any_function(node: Apply, values: list[Value]) -> list[Value]:
    """An Op of which nothing is known computes the same from the same."""
    if takes_streams(node):
        raise Refused("draws at random, and each rank has a stream of its own")
    if not all(is_replicated(unlisted(value)) for value in values):
        raise Refused("is not known to work row by row")
    return [Replicated() for _ in node.outputs]


def literal(var: Variable) -> Value:
    """Return what a variable is that nothing computes, other than an input.

    Each rank has streams of its own; `placement.streams` knows those that all have.
    """
    if isinstance(var.type, RandomType):
        return OwnStream()
    is_tensor = isinstance(var.type, DenseTensorType)
    data = np.asarray(var.data) if isinstance(var, Constant) else np.empty(0)
    is_number = data.dtype.kind in "biuf" and (is_tensor or not data.ndim)
    if is_number and data.size and (data == data.flat[0]).all():
        return constant(data.flat[0].item())
    return Replicated()


def check_spread(
    variables: Sequence[Variable], values: Sequence[Value], axis: int
) -> None:
    """Raise unless what has no rows is repeated along the rows' axis.

    Something else of fixed length there fits the rows of the whole, or of one part, but
    not of all. Axes are counted from the last.
    """
    for var, value in zip(variables, values, strict=True):
        if isinstance(value, (Sharded, Position)) or var.type.ndim < -axis:
            continue
        if var.type.shape[axis] != 1:
            raise Refused(
                f"meets the rows with {name(var)}, whose length along their axis does"
                " not follow theirs"
            )


def is_short(var: Variable) -> bool:
    """Tell whether a variable holds integers that wrap around in ordinary use."""
    dtype = var.type.numpy_dtype
    return dtype.kind in "iu" and dtype.itemsize < 4


def name(var: Variable) -> str:
    """Return a short name for a variable."""
    if var.name or var.owner is None:
        return str(var)
    inputs = ", ".join(map(_short_name, var.owner.inputs[:3]))
    if len(var.owner.inputs) > 3:
        inputs += ", ..."
    return f"{op_name(var.owner.op)}({inputs})"


def _short_name(var: Variable) -> str:
    if var.name or var.owner is None:
        text = str(var)
        return text if len(text) <= 20 else "..."
    if isinstance(var.owner.op, DimShuffle):
        return _short_name(var.owner.inputs[0])  # what it adds says nothing
    return op_name(var.owner.op).split("{")[0] + "(...)"


def op_name(op: Op) -> str:
    """Return the name of an Op, as PyTensor prints it, without long parameters."""
    text = str(op)
    if len(text) <= 40:
        return text
    return op_name(op.core_op) if hasattr(op, "core_op") else text.split("{")[0]


def split_axis(node: Apply, given: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Return an Op's axis, apart from what is `given` for each of its other inputs.

    The axis of ``Join``, ``Split``, ``SortOp`` and ``ArgSortOp`` is the Op's own in
    PyTensor 3.3, and one of the inputs before. Where it is the Op's own or a constant
    it is an int, not negative; else what is given for it.
    """
    if "axis" in node.op.__props__:
        return node.op.axis, list(given)
    place = 0 if isinstance(node.op, Join) else 1
    var = node.inputs[place]
    axis = given[place]
    if isinstance(var, Constant) and var.data is not None:
        axis = int(var.data) % max(node.outputs[0].type.ndim, 1)
    return axis, [*given[:place], *given[place + 1 :]]


# -- rows that a mask selects
#
# They are of a number of their own on each rank, which add up. What is done for each of
# them, or adds them up, is done as for all rows. Other rules do not know of them.


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


# -- random streams: each rank's own, or one that all ranks have alike


def is_stream(var: Variable) -> bool:
    """Tell whether a variable is the state of a random stream."""
    return isinstance(var.type, RandomType)


def takes_streams(node: Apply) -> bool:
    """Tell whether a random stream is among the inputs of a node."""
    for var in node.inputs:
        if type(var.type) is not TensorType and is_stream(var):
            return True
    return False


def by_streams(rule: Callable, node: Apply, values: list[Value]) -> list[Value]:
    """Return what the outputs of an Op are that takes random streams.

    From streams that all ranks have alike, and from what else is the same on every
    rank, it draws the same numbers everywhere. Of draws from the ranks' own streams
    the Op's rule tells.
    """
    if not any(isinstance(value, OwnStream) for value in values):
        for value in values:
            if isinstance(value, Unknown):
                return [value] * len(node.outputs)
        if not all(is_replicated(unlisted(value)) for value in values):
            raise Refused("draws for rows from a stream that all ranks have alike")
        return [Replicated() for _ in node.outputs]
    if not isinstance(node.op, (RandomVariable, HasInnerGraph)):
        values = [Replicated() if isinstance(v, OwnStream) else v for v in values]
    found = rule(node, values)
    if not isinstance(found, list):
        found = [found] * len(node.outputs)
    return [
        OwnStream() if is_stream(var) and not isinstance(value, Unknown) else value
        for var, value in zip(node.outputs, found, strict=True)
    ]
