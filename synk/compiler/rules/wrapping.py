"""Integers that wrap around: what is not true of them, though it is of numbers.

In b bits integers are numbers modulo 2**b. What adds and multiplies goes with that: the
ranks' sums are the serial one when they are added, however often each has wrapped. What
compares, divides or goes to a dtype with more numbers does not: of two that have
wrapped the larger may be the other one, and 2**64 - 3 is not the float that -3 is.

So the equations of `domain` are claimed of integers only where these cannot have
wrapped, or where it makes no difference. What they cannot reach is told by bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from pytensor import scalar as ps
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.basic import (
    Alloc,
    Join,
    MakeVector,
    ScalarFromTensor,
    TensorFromScalar,
)
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import Dot, Max
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.subtensor import IncSubtensor, Subtensor

from ..domain import Partial, Refused, Replicated, Value, describe
from .base import PUTTING

LENGTH = 2**31
"""What the length of an axis is less than, and the number of elements summed."""

_DEEP = 20


def is_integer(var: Variable) -> bool:
    """Tell whether a variable holds integers; bools are none, they do not wrap."""
    return getattr(var.type, "dtype", "bool")[:1] in "iu"


def check_extreme(node: Apply, result: Value) -> None:
    """Raise if an Op that adds or multiplies would give an extreme, in integers.

    The largest integer may be the least with 10 added.
    """
    is_extreme = isinstance(result, Partial) and result.op in ("max", "min")
    if is_extreme and is_integer(node.outputs[0]):
        raise Refused(f"may wrap around, in {describe(result)} of integers")


def is_minimum(node: Apply) -> bool:
    """Tell whether a node is how PyTensor writes a minimum of integers, ``-max(-x)``.

    Where -x wraps around, it depends on what PyTensor's rewrites see of it what comes
    out: there is no serial value that could differ.
    """
    if not _is_negative(node):
        return False
    maximum = node.inputs[0].owner
    while maximum is not None and isinstance(maximum.op, DimShuffle):
        maximum = maximum.inputs[0].owner
    is_maximum = maximum is not None and isinstance(maximum.op, Max)
    return is_maximum and _is_negative(maximum.inputs[0].owner)


def _is_negative(node: Any) -> bool:
    op = getattr(node, "op", None)
    return isinstance(op, Elemwise) and isinstance(op.scalar_op, ps.Neg)


def keeps_order(source: np.dtype, target: np.dtype) -> bool:
    """Tell whether what is larger is not less after it has been converted."""
    if target.kind in "iu":
        return np.can_cast(source, target)
    return source.kind == "b" or target.kind == "f"


def may_have_wrapped(var: Variable) -> bool:
    """Tell whether integers are known only modulo 2**b, and not as numbers."""
    dtype = np.dtype(var.type.dtype)
    return dtype.kind in "iu" and bound(var) > np.iinfo(dtype).max


def bound(var: Variable, depth: int = 0) -> int:
    """Return what no integer of a variable exceeds in absolute value.

    It is more than the dtype's largest where they may have wrapped.
    """
    dtype = np.dtype(var.type.dtype)
    if dtype.kind not in "iu":
        return 1  # a bool
    most = int(np.iinfo(dtype).max)
    if isinstance(var, Constant):
        data = np.asarray(var.data)
        return max(abs(int(data.min())), abs(int(data.max()))) if data.size else 0
    if var.owner is None:
        return most + (dtype.kind == "i")
    found = _made(var.owner, depth + 1) if depth < _DEEP else None
    return most + 1 if found is None else min(found, most + 1)


def _made(node: Apply, depth: int) -> int | None:
    """Return the bound of what a node computes; None if it is not known."""
    op = getattr(node.op, "scalar_op", node.op)
    if isinstance(op, (Shape, Shape_i)):
        return LENGTH - 1
    if isinstance(op, _FIRST):
        return bound(node.inputs[0], depth)
    if not all(getattr(var.type, "dtype", "?")[0] in "biu" for var in node.inputs):
        return None
    given = [bound(var, depth) for var in node.inputs]
    is_unsigned = not _is_signed(node.outputs[0])
    if is_unsigned and any(map(_is_signed, node.inputs)):
        return None  # -3 is 2**64 - 3
    if isinstance(node.op, CAReduce):
        (var,) = node.inputs
        if isinstance(op, ps.Mul):
            many = var.type.shape[0] if var.type.ndim == 1 else None
            return None if many is None else given[0] ** many
        sums = given[0] * (LENGTH - 1) if isinstance(op, ps.Add) else None
        return given[0] if isinstance(op, _EXTREMES) else sums
    if isinstance(op, _ADDS_AT):
        return given[0] + given[1] * (LENGTH - 1)
    if isinstance(op, (ps.Mul, Dot)):
        return math.prod(given) * (1 if isinstance(op, ps.Mul) else LENGTH - 1)
    if is_unsigned and isinstance(op, (ps.Sub, ps.Neg)):
        return None
    if isinstance(op, (ps.Add, ps.Sub)):
        return sum(given)
    return max(given) if isinstance(op, _CHOOSING) else None


def _is_signed(var: Variable) -> bool:
    return getattr(var.type, "dtype", "")[:1] == "i"


_EXTREMES = (ps.ScalarMaximum, ps.ScalarMinimum)
_FIRST = (DimShuffle, Subtensor, Alloc, ScalarFromTensor, TensorFromScalar)
_CHOOSING = (
    *(ps.Cast, ps.Identity, ps.Neg, ps.Abs, ps.Switch, ps.Second),
    *(*_EXTREMES, MakeVector, Join),
)
_ADDS_AT: tuple[type, ...] = (IncSubtensor, *PUTTING)


def wrapped(
    var: Variable, value: Value, node: Apply, values: Sequence[Value]
) -> str | None:
    """Return why an equation does not hold of integers; None if it does."""
    if is_integer(var) and getattr(value, "power", None) and not _is_right(var, value):
        return f"has {describe(value)} in integers, which may wrap around"
    if not _is_sum(value):
        return None
    for given, of in zip(node.inputs, values, strict=True):
        is_converted = _is_sum(of) and given.type.dtype != var.type.dtype
        if is_converted and may_have_wrapped(given):
            return f"converts {describe(of)} that may have wrapped around"
    return None


def _is_right(var: Variable, value: Value) -> bool:
    """Tell whether a number is n itself, or follows from n and is too small to wrap."""
    if not isinstance(value, Replicated):
        return False
    is_small = _is_signed(var) and not may_have_wrapped(var)
    return value.exact or is_small


def _is_sum(value: Value) -> bool:
    return isinstance(value, Partial) and value.op in ("sum", "prod")
