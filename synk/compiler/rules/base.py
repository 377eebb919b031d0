"""What the rules share: what is true of any Op, and questions they ask of a graph."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.tensor import subtensor as pts
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.random.type import RandomType
from pytensor.tensor.type import DenseTensorType

from ..domain import (
    OwnStream,
    Position,
    Refused,
    Replicated,
    Sharded,
    Value,
    is_replicated,
    unlisted,
)


def any_function(node: Apply, values: list[Value]) -> list[Value]:
    """An Op of which nothing is known computes the same from the same."""
    if any(isinstance(var.type, RandomType) for var in node.inputs):
        raise Refused("draws at random, and each rank has a stream of its own")
    if not all(is_replicated(unlisted(value)) for value in values):
        raise Refused("is not known to work row by row")
    return [Replicated() for _ in node.outputs]


def literal(var: Variable) -> Value:
    """Return what a variable is that nothing computes, other than an input.

    Each rank has streams of its own; those that all have alike are known by other means
    (see `placement.streams`).
    """
    if isinstance(var.type, RandomType):
        return OwnStream()
    if isinstance(var, Constant) and isinstance(var.type, DenseTensorType):
        data = np.asarray(var.data)
        if data.size and data.dtype.kind in "biuf" and (data == data.flat[0]).all():
            number = data.flat[0].item()
            return Replicated(0 if number else None, number=number)
    elif isinstance(var, Constant) and isinstance(var.data, (int, float, np.number)):
        number = np.asarray(var.data).item()
        return Replicated(0 if number else None, number=number)
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


def before_3_1(name: str) -> list[type]:
    """Return an Op of older versions of PyTensor, which had one for a single index."""
    return [getattr(pts, name)] if hasattr(pts, name) else []


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
