"""Sums rewritten so that they need not wait for an earlier meeting of the ranks.

If a sum over rows uses a reduced value w, the sum's level is one higher than that of w.
Two kinds of sums can be taken apart so that w enters after the sum:

* one linear in w: ``sum(a + w * b) = sum(a) + w * sum(b)``, as in the gradients of
  batch normalisation;
* a sum of squares about w, as in a variance about the mean of all rows: each rank sums
  squares about its own mean, and the squared distances of the ranks' means from w,
  times their counts, are added (T. F. Chan, G. H. Golub, R. J. LeVeque 1979, "Updating
  formulae and a pairwise algorithm for computing sample variances"). No large numbers
  are subtracted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor import scalar as ps
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import Sum

from ..domain import Replicated, Sharded
from ..rules.reductions import axes_of
from .nodes import Nodes

Term = tuple[list[Any], Any]
"""Whole factors that are constant along the summed axes, and the factor with rows."""


def terms_of(whole: Nodes, node: Apply) -> list[Term] | None:
    """Return the terms of a `Sum` node's operand; None if that saves no meeting.

    The node's output is the total, over all terms, of the factors times the sum of the
    term's rows.
    """
    (summed,) = node.inputs
    axes = axes_of(node)
    terms = _Terms(whole, axes).of(summed)
    level = whole.level(summed)
    if all(whole.level(row) < level for _, row in terms):
        return terms
    return None


def squared_difference(whole: Nodes, node: Apply) -> tuple[Any, Any] | None:
    """Return x and w if a `Sum` node computes ``sum((x - w) ** 2)``; else None.

    x has rows, w is whole and constant along the summed axes, and x has a lower level.
    """
    difference = _squared(node.inputs[0])
    if difference is None or not (_is(difference, ps.Sub) and _is_float(difference)):
        return None
    rows, middle = difference.owner.inputs
    axes = axes_of(node)
    if _is_constant_along(rows, axes):
        rows, middle = middle, rows
    value = whole.value(rows)
    if not (
        isinstance(value, Sharded)
        and value.power == 0
        and value.axis in axes
        and not any(rows.type.broadcastable)
        and _is_whole(whole, middle, axes)
        and whole.level(rows) < whole.level(middle)
    ):
        return None
    return rows, middle


def spread(rows: Any, node: Apply) -> tuple[Any, Any, Any]:
    """Return a rank's own count, means, and sums of squares about these means."""
    axes = axes_of(node)
    count = math.prod([rows.shape[axis] for axis in axes], start=pt.constant(1))
    count = count.astype(rows.type.dtype)
    mean = rows.sum(axis=axes) / pt.maximum(count, 1)  # a mask may select none
    order = iter(range(mean.type.ndim))
    back = ["x" if axis in axes else next(order) for axis in range(rows.type.ndim)]
    return count, mean, pt.sqr(rows - mean.dimshuffle(back)).sum(axis=axes)


def without_axes(factor: Any, node: Apply) -> Any:
    """Return a factor without the axes that a `Sum` node sums."""
    axes = axes_of(node)
    return factor.dimshuffle([i for i in range(factor.type.ndim) if i not in axes])


class _Terms:
    """Takes apart a value that is summed over `axes`."""

    def __init__(self, whole: Nodes, axes: Sequence[int]) -> None:
        self._whole, self._axes = whole, axes

    def of(self, var: Variable) -> list[Term]:
        """Return the terms of a value."""
        found = None
        if self._whole.level(var) and _is_float(var):
            if _is(var, ps.Add):
                found = self._added(var.owner.inputs, itertools.repeat(1))
            elif _is(var, ps.Sub):
                found = self._added(var.owner.inputs, [1, -1])
            elif _is(var, ps.Neg):
                found = self._added(var.owner.inputs, [-1])
            elif _is(var, ps.Mul):
                found = self._multiplied(var.owner.inputs)
            elif _is(var, ps.TrueDiv):
                found = self._divided(*var.owner.inputs)
        return [([], var)] if found is None else found

    def _added(self, variables: Sequence[Any], signs: Any) -> list[Term] | None:
        if any(self._is_repeated(var) for var in variables):
            return None
        terms = []
        for var, sign in zip(variables, signs, strict=False):
            signed = [] if sign == 1 else [pt.constant(sign, dtype=var.type.dtype)]
            terms += [([*signed, *given], row) for given, row in self.of(var)]
        return terms

    def _multiplied(self, variables: Sequence[Any]) -> list[Term] | None:
        factors: list[Any] = []
        rows: list[Any] = []
        filled: list[Any] = []
        todo = list(variables)
        while todo:
            var = todo.pop(0)
            if _is_whole(self._whole, var, self._axes):
                factors.append(var)
            elif _is(var, ps.Mul):
                todo += var.owner.inputs
            elif _is(var, ps.Neg):
                factors.append(pt.constant(-1, dtype=var.type.dtype))
                todo += var.owner.inputs
            else:
                (filled if _is(var, ps.Second) else rows).append(var)
        for var in filled:  # a factor if another one has the shape that it fills
            _, value = var.owner.inputs
            if _is_whole(self._whole, value, self._axes) and any(
                not any(row.type.broadcastable) for row in rows
            ):
                factors.append(value)
            else:
                rows.append(var)
        if not rows or any(self._is_repeated(row) for row in rows):
            return None
        if len(rows) > 1:
            return [(factors, self._whole.add_graph(pt.mul(*rows)))]
        return [([*factors, *given], row) for given, row in self.of(rows[0])]

    def _divided(self, above: Any, below: Any) -> list[Term] | None:
        if not _is_whole(self._whole, below, self._axes) or self._is_repeated(above):
            return None
        return [([*given, 1 / below], row) for given, row in self.of(above)]

    def _is_repeated(self, var: Variable) -> bool:
        return any(var.type.broadcastable[axis] for axis in self._axes)


def is_sum(node: Apply) -> bool:
    """Return whether a node is a `Sum` of floats that keeps their dtype."""
    if not isinstance(node.op, Sum):
        return False
    (summed,), (made,) = node.inputs, node.outputs
    return _is_float(summed) and summed.type.dtype == made.type.dtype


def _is_float(var: Variable) -> bool:
    """Return whether a variable has floats; sums of integers are not taken apart."""
    return var.type.numpy_dtype.kind == "f"


def _is(var: Variable, kind: type) -> bool:
    node = var.owner
    return (
        node is not None
        and isinstance(node.op, Elemwise)
        and isinstance(node.op.scalar_op, kind)
    )


def _squared(var: Variable) -> Any:
    """Return x if a variable is the square of x; else None."""
    if _is(var, ps.Sqr):
        return var.owner.inputs[0]
    if _is(var, ps.Mul) and len(var.owner.inputs) == 2:
        first, second = var.owner.inputs
        return first if first is second else None
    if _is(var, ps.Pow):
        base, power = var.owner.inputs
        while power.owner is not None and len(power.owner.inputs) == 1:
            power = power.owner.inputs[0]
        is_two = isinstance(power, Constant) and power.data.size == 1
        return base if is_two and power.data.item() == 2 else None
    return None


def _is_constant_along(var: Variable, axes: Sequence[int]) -> bool:
    return all(var.type.broadcastable[axis] for axis in axes)


def _is_whole(whole: Nodes, var: Variable, axes: Sequence[int]) -> bool:
    value = whole.value(var)
    is_whole = isinstance(value, Replicated) and value.power in (0, None)
    return is_whole and var not in whole.of_rows and _is_constant_along(var, axes)
