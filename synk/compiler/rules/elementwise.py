"""Elementwise Ops: a rule for each scalar function."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from pytensor import scalar as ps
from pytensor.graph.basic import Apply, Variable
from pytensor.scalar import math as psm
from pytensor.tensor.elemwise import Elemwise

from ...reduce_ops import ReduceOp
from .. import table
from ..domain import (
    REPLICATED,
    Listed,
    Partial,
    Position,
    Refused,
    Replicated,
    Sharded,
    Unknown,
    Value,
    constant,
    describe,
    independent,
    inverse,
    is_n,
    is_replicated,
    is_sum,
    negated,
    number_of,
    product,
    selected,
    total,
    unlisted,
)
from ..lengths import Length, size
from .base import any_function, check_spread, is_short
from .wrapping import check_extreme, is_minimum, keeps_order

ScalarRule = Callable[[Apply, list[Value]], Value]


@table.placement(
    Elemwise,
    takes_unknown=True,
    takes_some_rows=True,
    makes_sizes=True,
    by_elements=True,
)
def elemwise(node: Apply, values: list[Value]) -> Value:
    """Apply the scalar function's rule, after a check of what is broadcast to rows."""
    if all(value == REPLICATED for value in values):
        return REPLICATED  # the usual case, first for speed
    scalar_rule = _scalar_rule(node)
    of_shape_only = scalar_rule is _second
    for value in values[of_shape_only:]:
        if isinstance(value, Unknown):
            return value
    number = _number(node, values)
    if number is not None:
        return number
    kinds = {type(value) for value in values}
    if Listed in kinds and kinds <= {Listed, Replicated}:
        if node.outputs[0].type.shape[0] is not None:
            return _entrywise(node, values, scalar_rule)
        # A vector of coefficients rather than a shape.
        values = [unlisted(value) for value in values]
    for value in values:
        if isinstance(value, (Sharded, Position)):
            axis = value.axis - node.outputs[0].type.ndim
            check_spread(node.inputs, values, axis)
    return _ruled(scalar_rule, node, values)


def _ruled(rule: ScalarRule, node: Apply, values: list[Value]) -> Value:
    found = rule(node, values)
    if rule in _COMPUTING and not is_minimum(node):
        check_extreme(node, found)
    return found


@table.placement(ps.ScalarOp)
def scalar(node: Apply, values: list[Value]) -> list[Value]:
    """Scalars that are no tensors: lengths and indices."""
    number = _number(node, values)
    return [number] if number else any_function(node, values)


def _number(node: Apply, values: list[Value]) -> Value | None:
    """Return the constant that a node computes from constant integers; else None."""
    numbers = list(map(number_of, values))
    dtypes = [np.dtype(var.type.dtype) for var in (*node.inputs, *node.outputs)]
    if None in numbers or any(dtype.kind not in "ib" for dtype in dtypes):
        return None
    if len(node.outputs) > 1:
        return None
    *given, out = dtypes
    op = getattr(node.op, "scalar_op", node.op)
    with np.errstate(all="ignore"), suppress(ArithmeticError, NotImplementedError):
        found = op.impl(*(d.type(n) for d, n in zip(given, numbers, strict=True)))
        number = np.asarray(found).astype(out).item()
        return constant(number)
    return None


def _entrywise(node: Apply, values: list[Value], scalar_rule: ScalarRule) -> Value:
    n = node.outputs[0].type.shape[0]
    lengths = {len(value.entries) for value in values if isinstance(value, Listed)}
    if not lengths <= {1, n}:
        raise Refused("combines shapes of different lengths")
    entries: list[Value] = []
    for i in range(n):
        row = [
            value.entries[i % len(value.entries)]
            if isinstance(value, Listed)
            else value
            for value in values
        ]
        unknown = next((value for value in row if isinstance(value, Unknown)), None)
        entries.append(unknown or _ruled(scalar_rule, node, row))
    return Listed(tuple(entries))


def _scalar_rule(node: Apply) -> ScalarRule:
    kind = type(node.op.scalar_op)
    if node.outputs[0].type.dtype == "bool" and kind in (ps.Add, ps.Mul):
        kind = ps.OR if kind is ps.Add else ps.AND
    if kind in _INCREASING:
        return _increasing
    return _SCALAR.get(kind, lambda node, values: independent(values))


# Increasing functions of real numbers, defined everywhere, and NaN only for NaN.
_INCREASING = {
    ps.Exp,
    ps.Expm1,
    ps.Tanh,
    ps.Sinh,
    ps.ArcTan,
    ps.ArcSinh,
    ps.Ceil,
    ps.Floor,
    ps.Trunc,
    ps.Sign,
    psm.Sigmoid,  # type: ignore[attr-defined]
    psm.Softplus,  # type: ignore[attr-defined]
    psm.Erf,  # type: ignore[attr-defined]
}


def _increasing(node: Apply, values: list[Value]) -> Value:
    (value,) = map(unlisted, values)
    if isinstance(value, Partial) and value.op in ("max", "min"):
        return value
    # Not used: exp(a + b) = exp(a) * exp(b). One factor may be infinite, and their
    # product not.
    return independent(values)


def _add(node: Apply, values: list[Value]) -> Value:
    _refuse_short(node, values)
    if isinstance(node.op.scalar_op, ps.Sub):
        _refuse_unsigned(node, values)
        values = [values[0], negated(unlisted(values[1]))]
    return total(values)


def _neg(node: Apply, values: list[Value]) -> Value:
    _refuse_unsigned(node, values)
    value = negated(unlisted(values[0]))
    is_unsigned = node.outputs[0].type.numpy_dtype.kind == "u"
    if is_unsigned and isinstance(value, Replicated):
        return replace(value, number=None)  # not -3, but 2**32 - 3
    return value


def _refuse_unsigned(node: Apply, values: list[Value]) -> None:
    # In uint8, -3 is 253. As a sum it is right again after the ranks' sums are added,
    # but not after a cast; and -n is no multiple of n.
    is_unsigned = node.outputs[0].type.numpy_dtype.kind == "u"
    if is_unsigned and any(
        isinstance(value, Partial) or getattr(value, "power", 0) for value in values
    ):
        raise Refused("subtracts unsigned integers, which wrap around below zero")


def _refuse_short(node: Apply, values: list[Value]) -> None:
    if is_short(node.outputs[0]) and any(
        isinstance(value, Partial) for value in values
    ):
        raise Refused("computes with short integers, which wrap around")


def _mul(node: Apply, values: list[Value]) -> Value:
    _refuse_short(node, values)
    return product(values)


def _true_div(node: Apply, values: list[Value]) -> Value:
    *above, below = values
    return product([*above, inverse(below)])


def _second(node: Apply, values: list[Value]) -> Value:
    """``second(a, b)`` is b in the shape that a and b have together."""
    like, value = values
    if node.inputs[0].type.ndim == 0:
        return value
    if isinstance(like, Unknown):
        if None in node.inputs[0].type.shape:
            raise Refused("takes the shape of what is not understood")
        return value
    if isinstance(like, Position):
        like = Sharded(like.axis, 0, like.length)
    if isinstance(like, Sharded):
        value = unlisted(value)
        if isinstance(value, Partial):
            raise Refused(f"repeats {describe(value)} for each row")
        # The shape of `like`; the order of its rows does not matter.
        return selected([replace(like, power=None, layout=None), value])
    return unlisted(value)


def _switch(node: Apply, values: list[Value]) -> Value:
    condition, *branches = map(unlisted, values)
    chosen = selected(branches)
    if is_replicated(condition):
        return chosen
    if isinstance(condition, Sharded) and isinstance(chosen, (Sharded, Replicated)):
        return selected([replace(condition, power=None), *branches])
    raise Refused(f"chooses by {describe(condition)}")


def _cast(node: Apply, values: list[Value]) -> Value:
    (value,) = values
    source, target = (
        np.dtype(var.type.dtype) for var in (node.inputs[0], node.outputs[0])
    )
    if is_replicated(value):
        return _cast_number(value, target)
    integers = source.kind in "iu" and target.kind in "iu"
    wide = integers and target.itemsize >= min(source.itemsize, 4)
    if isinstance(value, Position):
        return value if wide else independent(values)
    if isinstance(value, Partial) and value.op in ("max", "min"):
        return value if keeps_order(source, target) else independent(values)
    if source == target or (target.kind in "fc" and source.kind in "biufc"):
        return value  # exact, or to rounding
    if wide and (
        target.kind == source.kind or isinstance(value, (Replicated, Sharded))
    ):
        if target.kind == "u" != source.kind and not is_n(value):
            return independent([value])  # 2**64 - n, of -n, is no multiple of n
        return value
    return independent(values)


def _cast_number(value: Value, target: np.dtype) -> Value:
    number = number_of(value)
    if number is None:
        return value
    source = np.asarray(number)
    if target.kind in "iu" and source.dtype.kind == "f":
        limits = np.iinfo(target)
        if not limits.min < source < limits.max:
            return Replicated()  # out of range, results differ by machine
    with np.errstate(all="ignore"):
        return constant(source.astype(target).real.item())


def _extremes(op: ReduceOp, of_bools: bool = False) -> ScalarRule:
    """Return the rule of an elementwise maximum or minimum.

    With `of_bools`, the rule of `or` or `and`.
    """

    def extreme(node: Apply, values: list[Value]) -> Value:
        if of_bools and node.outputs[0].type.dtype != "bool":
            return independent(values)
        values = [unlisted(value) for value in values]
        if all(map(is_n, values)):
            return values[0]  # all are n
        if all(value == Partial(op) or is_replicated(value) for value in values):
            return Partial(op) if Partial(op) in values else Replicated()
        return independent(values)

    return extreme


def _invert(node: Apply, values: list[Value]) -> Value:
    value = unlisted(values[0])
    is_bool = node.outputs[0].type.dtype == "bool"
    if is_bool and value in (Partial("max"), Partial("min")):
        return negated(value)
    return independent(values)


def _linear(node: Apply, values: list[Value]) -> Value:
    """Real parts, imaginary parts and conjugates."""
    value = unlisted(values[0])
    is_kept = is_sum(value) or isinstance(value, (Sharded, Replicated))
    return value if is_kept else independent(values)


def _abs(node: Apply, values: list[Value]) -> Value:
    """Powers of n are kept."""
    value = unlisted(values[0])
    if isinstance(value, Replicated):
        return Replicated(value.power)
    return value if isinstance(value, Sharded) else independent(values)


def _pow(node: Apply, values: list[Value]) -> Value:
    """Small integer powers keep powers of n; others are any function."""
    base, *others = map(unlisted, values)
    exponent = others[0] if others else constant(2)  # a square
    power: Any = number_of(exponent)
    is_scaled = isinstance(base, (Sharded, Replicated)) and base.power != 0
    if is_scaled and power in range(1, 9):
        return product([base] * int(power))
    return independent(values)


_SCALAR: dict[type, ScalarRule] = {
    ps.Add: _add,
    ps.Sub: _add,
    ps.Neg: _neg,
    ps.Mul: _mul,
    ps.TrueDiv: _true_div,
    ps.Reciprocal: _true_div,
    ps.Second: _second,
    ps.Switch: _switch,
    ps.Cast: _cast,
    ps.Identity: lambda node, values: values[0],
    ps.Abs: _abs,
    ps.Sqr: _pow,
    ps.Pow: _pow,
    ps.ScalarMaximum: _extremes("max"),
    ps.ScalarMinimum: _extremes("min"),
    ps.OR: _extremes("max", of_bools=True),
    ps.AND: _extremes("min", of_bools=True),
    ps.Invert: _invert,
    ps.Real: _linear,
    ps.Imag: _linear,
    ps.Conj: _linear,
}
_COMPUTING = (_add, _neg, _mul)
"""Rules of functions whose results may exceed the dtype."""


# -- lengths


@table.length(Elemwise)
def elemwise_length(node: Apply, var: Variable, axis: int) -> Length | None:
    """The length of any operand that is not broadcast; best one that inputs tell."""
    found = [size(given, axis) for given in node.inputs if given.type.shape[axis] != 1]
    for length in found:
        if all(root.owner is None for root, _ in length.symbols_only()):
            return length
    return found[0] if found else None
