"""Checks of parameters, row by row.

PyMC's densities hold where a condition does, of parameters of all rows: otherwise the
whole is an error, or, in sampling, minus infinity. To know of all rows takes a
reduction before the density. So each row looks at its own parameters:

1. What is summed as it is, such as a plain likelihood, is minus infinity for the bad
   rows. So is the sum then, as in PyMC, or NaN where another row is.
2. What something else is made of, such as a component of a mixture, is minus infinity
   for all rows in PyMC, where one is bad. Bad rows of such make the sum NaN.

Where the sum is NaN, and only there, the density is asked for with whole conditions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.scalar import AND, Add, Cast, Mul
from pytensor.tensor.basic import MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import All, Sum
from pytensor.tensor.shape import SpecifyShape
from pytensor.tensor.type import DenseTensorType

from .rebuilding import rebuilt


def written_out(
    graph: Sequence[Variable],
    row_axis: Mapping[Variable, int],
    check: type,
    bounds: bool,
) -> tuple[list[Variable], bool]:
    """Put the checks into graphs, as far as PyMC does so in sampling.

    Parameters
    ----------
    graph : sequence of Variable
        The first is the log-density.
    row_axis : mapping of Variable to int
        Which axis of a variable has the rows.
    check : type
        PyMC's Op that checks parameters.
    bounds : bool
        Whether the model wants parameters to be checked.

    Returns
    -------
    list of Variable
        The graphs with conditions put in; with those of rows for each row.
    bool
        Whether there are such. Then the density may be NaN where it is another number.
    """
    rows = dict(row_axis)
    summed = _summed(graph[0], check)
    bad: list[Any] = []
    are_by_rows = False

    def visit(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        nonlocal are_by_rows
        op: Any = node.op
        for old, new in zip(node.inputs, inputs, strict=True):
            if old in rows:
                rows[new] = rows[old]
        if bad and isinstance(op, Sum) and node.outputs[0] in summed:
            if inputs[0] not in rows:
                return None
            return [_with_bad_rows(op, inputs[0], rows[inputs[0]])]
        if not isinstance(op, check):
            return None
        if not bounds:
            return [inputs[0]]
        if not op.can_be_replaced_by_ninf:  # type: ignore[attr-defined]
            return None
        axis = rows.get(node.outputs[0], rows.get(node.inputs[0]))
        holds = [_of_rows(condition, axis, inputs[0], rows) for condition in inputs[1:]]
        of_rows = [each for each in holds if each.type.ndim]
        are_by_rows = are_by_rows or bool(of_rows)
        if of_rows and node.outputs[0] not in summed:
            bad.append(pt.switch(_all_of(of_rows).dimshuffle([axis]), 0.0, np.nan))
            holds = [each for each in holds if not each.type.ndim]
        logp: Any = inputs[0]
        if holds:
            logp = pt.switch(_all_of(holds), logp, -np.inf)
        return [logp.astype(node.outputs[0].type.dtype)]

    def _with_bad_rows(op: Any, values: Any, axis: int) -> Variable:
        """Sum values, of which those of bad rows become NaN: in one loop with them."""
        order: list[Any] = ["x"] * values.type.ndim
        order[axis] = 0
        for each in bad:
            values = values + each.dimshuffle(order).astype(values.type.dtype)
        bad.clear()
        made: Variable = op(values)
        return made

    made: list[Any] = rebuilt(graph, visit)
    total, *others = made
    if bad:
        total = pt.add(total, *(each.sum() for each in bad)).astype(total.type.dtype)
    return [total, *others], are_by_rows


def _summed(total: Variable, check: type) -> set[Variable]:
    """Return what makes a sum minus infinity, or NaN, if an entry of it is that."""
    found: set[Variable] = set()
    left = [total]
    while left:
        var = left.pop()
        if var in found or var.owner is None:
            continue
        found.add(var)
        op: Any = var.owner.op
        if isinstance(op, (Sum, DimShuffle)) or _is(op, Add, Cast):
            left += var.owner.inputs
        elif isinstance(op, (check, SpecifyShape)):
            left.append(var.owner.inputs[0])
    return found


def _all_of(conditions: list[Any]) -> Any:
    first, *others = conditions
    for other in others:
        first = pt.and_(first, other)
    return first


def _of_rows(
    condition: Variable, axis: int | None, logp: Any, rows: Mapping[Variable, int]
) -> Any:
    """Return a condition as one for each row where it is of all rows.

    These are along `axis` of `logp`, if it has any.
    """
    node = condition.owner
    if node is None or axis is None:
        return _tensor(condition)
    op: Any = node.op
    passes_on = isinstance(op, (ScalarFromTensor, TensorFromScalar, MakeVector))
    if passes_on or _is(op, AND, Mul):
        parts = [_of_rows(var, axis, logp, rows) for var in node.inputs]
        return _all_of(parts)
    if isinstance(op, DimShuffle) and node.inputs[0].type.ndim == 0:
        return _of_rows(node.inputs[0], axis, logp, rows)
    if isinstance(op, All) and condition.type.ndim == 0:  # type: ignore[attr-defined]
        (array,) = node.inputs
        if array.owner is not None and isinstance(array.owner.op, MakeVector):
            return _of_rows(array, axis, logp, rows)
        if array in rows:
            others = [a for a in range(array.type.ndim) if a != rows[array]]
            each = pt.all(array, axis=others) if others else array
            order: list[Any] = ["x"] * logp.type.ndim
            order[axis] = 0
            return each.dimshuffle(order)
    return _tensor(condition)


def _is(op: Any, *scalar_ops: type) -> bool:
    return isinstance(op, Elemwise) and isinstance(op.scalar_op, scalar_ops)


def _tensor(condition: Variable) -> Any:
    if isinstance(condition.type, DenseTensorType):
        return condition
    return pt.tensor_from_scalar(condition)
