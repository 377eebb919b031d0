"""Helpers of the rules: rules for any Op, and questions about nodes and values."""

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
from ..lengths import size

TAKING: tuple[Any, ...] = (pts.AdvancedSubtensor,)
PUTTING: tuple[Any, ...] = (pts.AdvancedIncSubtensor,)
"""Ops that index by arrays; before PyTensor 3.1 there are two of each."""
if hasattr(pts, "AdvancedSubtensor1"):
    TAKING += (pts.AdvancedSubtensor1,)
    PUTTING += (pts.AdvancedIncSubtensor1,)


def any_function(node: Apply, values: list[Value]) -> list[Value]:
    """Rule of an unknown Op: replicated inputs give replicated outputs."""
    if takes_streams(node):
        raise Refused("draws at random, and each rank has a stream of its own")
    if not all(is_replicated(unlisted(value)) for value in values):
        raise Refused("is not known to work row by row")
    return [Replicated() for _ in node.outputs]


def literal(var: Variable) -> Value:
    """Return the `Value` of a constant or shared variable.

    Random streams are each rank's own; `placement.streams` knows the common ones.
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
    """Raise unless variables without rows are broadcast along the rows' axis.

    A fixed length on that axis could equal the number of all rows, or of one part's,
    but not both. `axis` is negative: counted from the last.
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
    """Return whether a variable has integers of less than 32 bits."""
    dtype = var.type.numpy_dtype
    return dtype.kind in "iu" and dtype.itemsize < 4


def name(var: Variable) -> str:
    """Return a short name of a variable for messages."""
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
        return _short_name(var.owner.inputs[0])
    return op_name(var.owner.op).split("{")[0] + "(...)"


def op_name(op: Op) -> str:
    """Return the name of an Op, as PyTensor prints it, without long parameters."""
    text = str(op)
    if len(text) <= 40:
        return text
    return op_name(op.core_op) if hasattr(op, "core_op") else text.split("{")[0]


def split_axis(node: Apply, given: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Split `given`, an item for each input, into the axis and the other items.

    The axis of ``Join``, ``Split``, ``SortOp`` and ``ArgSortOp`` is a property of the
    Op from PyTensor 3.3 on, and an input before. The returned axis is a nonnegative
    int if it is a property or a constant; else the item of that input.
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
# Their number differs between ranks, and the sum of the numbers is that of the serial
# run. Rules with `OpEntry.takes_some_rows` take them: those of Ops that work on each
# row or add rows up.


def is_some(value: Value) -> bool:
    """Return whether a value is of rows that a mask selects."""
    return isinstance(value, Sharded) and value.length == "some"


def check_some_rows(node: Apply, values: Sequence[Value], are_taken: bool) -> None:
    """Raise for selected rows unless the rule takes them, and one mask selects all.

    `are_taken` is the entry's `takes_some_rows`.
    """
    if not any(map(is_some, values)):
        return
    if not are_taken:
        raise Refused("takes rows that a mask selects")
    if len(values) > 2 and selecting_mask(node, 2, values) is not None:
        return  # the rule of `PUTTING` checks it
    pairs = list(zip(node.inputs, values, strict=True))
    lengths = {size(var, value.axis) for var, value in pairs if is_some(value)}  # type: ignore[union-attr]
    if len(lengths) > 1 or any(
        isinstance(value, Sharded) and not is_some(value) for value in values
    ):
        raise Refused("pairs rows that are selected in different ways")


def selecting_mask(node: Apply, first: int, values: Sequence[Value]) -> Variable | None:
    """Return the mask of rows that is a node's whole index; None if it has none.

    The index begins at input `first`.
    """
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


# -- random streams: each rank's own, or common ones


def is_stream(var: Variable) -> bool:
    """Return whether a variable is the state of a random stream."""
    return isinstance(var.type, RandomType)


def takes_streams(node: Apply) -> bool:
    """Return whether a random stream is among the inputs of a node."""
    for var in node.inputs:
        if type(var.type) is not TensorType and is_stream(var):
            return True
    return False


def by_streams(rule: Callable, node: Apply, values: list[Value]) -> list[Value]:
    """Return the values of the outputs of a node that takes random streams.

    From common streams and replicated inputs, all ranks draw the same numbers. For
    draws from ranks' own streams, the Op's `rule` is called.
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
