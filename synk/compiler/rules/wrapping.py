"""Integers that wrap around, so that some equations of numbers do not hold.

Integers of b bits are numbers modulo 2**b. Addition and multiplication respect that:
the ranks' sums add up to the serial sum, however often each has wrapped. Comparison,
division and conversion to a wider dtype do not: after wrapping, the smaller of two
numbers may compare as the larger, and 2**64 - 3 is another float than -3.

So the equations of `domain` are claimed of integers only if these cannot have wrapped,
which bounds of their absolute values tell, or if wrapping makes no difference.
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
"""More than the length of any axis, and than the number of elements of any sum."""

_DEEP = 20


def is_integer(var: Variable) -> bool:
    """Return whether a variable has integers; bools do not count, nor wrap."""
    return getattr(var.type, "dtype", "bool")[:1] in "iu"


def check_extreme(node: Apply, result: Value) -> None:
    """Raise if an Op that adds or multiplies gives a maximum or minimum of integers.

    The largest integer may become the smallest if 10 is added.
    """
    is_extreme = isinstance(result, Partial) and result.op in ("max", "min")
    if is_extreme and is_integer(node.outputs[0]):
        raise Refused(f"may wrap around, in {describe(result)} of integers")


def is_minimum(node: Apply) -> bool:
    """Return whether a node is ``-max(-x)``, as PyTensor writes a minimum of integers.

    If -x wraps around, the result depends on PyTensor's rewrites even in the serial
    run. So no serial value can be missed.
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
    """Return whether a conversion of dtypes keeps the order of values."""
    if target.kind in "iu":
        return np.can_cast(source, target)
    return source.kind == "b" or target.kind == "f"


def may_have_wrapped(var: Variable) -> bool:
    """Return whether a variable's integers may have wrapped around."""
    dtype = np.dtype(var.type.dtype)
    return dtype.kind in "iu" and bound(var) > np.iinfo(dtype).max


def bound(var: Variable, depth: int = 0) -> int:
    """Return a bound of the absolute values that a variable's integers should have.

    It exceeds the dtype's largest integer if they may have wrapped.
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
    """Return the bound of a node's output; None if it is not known."""
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
    """Return why `value` does not hold for an output of integers; None if it holds."""
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
    """Return whether a value is n itself, or a multiple of n that cannot wrap."""
    if not isinstance(value, Replicated):
        return False
    is_small = _is_signed(var) and not may_have_wrapped(var)
    return value.exact or is_small


def _is_sum(value: Value) -> bool:
    return isinstance(value, Partial) and value.op in ("sum", "prod")
