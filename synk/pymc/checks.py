"""Checks of parameters, row by row.

PyMC's densities hold where a condition does, of parameters of all rows: otherwise the
whole is an error, or, in sampling, minus infinity. Of rows each looks at its own
parameters, and the sum is minus infinity if one of them is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import io_toposort
from pytensor.scalar import AND, Mul
from pytensor.tensor.basic import MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import All
from pytensor.tensor.type import DenseTensorType

from .rebuilding import rebuilt


def written_out(
    graph: Sequence[Variable],
    row_axis: Mapping[Variable, int],
    check: type,
    bounds: bool,
) -> list[Variable]:
    """Return graphs with the checks put in, as far as PyMC does so in sampling.

    Parameters
    ----------
    graph : sequence of Variable
    row_axis : mapping of Variable to int
        Which axis of a variable has the rows.
    check : type
        PyMC's Op that checks parameters.
    bounds : bool
        Whether the model wants parameters to be checked.
    """
    made: dict[Variable, Variable] = {}
    rows = dict(row_axis)

    def visit(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        op: Any = node.op
        if not isinstance(op, check):
            return None
        if not bounds:
            return [inputs[0]]
        if not op.can_be_replaced_by_ninf:  # type: ignore[attr-defined]
            return None
        axis = rows.get(node.outputs[0], rows.get(node.inputs[0]))
        holds = [_of_rows(condition, axis, inputs[0], rows) for condition in inputs[1:]]
        logp: Any = pt.switch(_all_of(holds), inputs[0], -np.inf)
        return [logp.astype(node.outputs[0].type.dtype)]

    def inputs_of(node: Apply) -> list[Variable]:
        inputs = [made.get(var, var) for var in node.inputs]
        for old, new in zip(node.inputs, inputs, strict=True):
            if old in rows:
                rows[new] = rows[old]
        return inputs

    rebuilt(io_toposort([], list(graph)), made, inputs_of, visit)
    return [made.get(var, var) for var in graph]


def _all_of(conditions: list[Any]) -> Any:
    first, *others = conditions
    for other in others:
        first = pt.and_(first, other)
    return first


def _of_rows(
    condition: Variable, axis: int | None, logp: Any, rows: Mapping[Variable, int]
) -> Any:
    """Return a condition as one for each row where it is of all rows.

    Parameters
    ----------
    condition : Variable
        A bool for all rows.
    axis : int or None
        That of the rows in `logp`; None if it has none.
    logp : Variable
    rows : mapping
    """
    node = condition.owner
    if node is None or axis is None:
        return _tensor(condition)
    op: Any = node.op
    if isinstance(op, (ScalarFromTensor, TensorFromScalar, MakeVector)) or _is_and(op):
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


def _is_and(op: Any) -> bool:
    return isinstance(op, Elemwise) and isinstance(op.scalar_op, (AND, Mul))


def _tensor(condition: Variable) -> Any:
    if isinstance(condition.type, DenseTensorType):
        return condition
    return pt.tensor_from_scalar(condition)
