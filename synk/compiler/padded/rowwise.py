"""Elementwise functions, and reductions: over the rows, or beside them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from pytensor import scalar as ps
from pytensor.graph.basic import Apply, Variable
from pytensor.tensor import math as ptm
from pytensor.tensor import special
from pytensor.tensor.elemwise import CAReduce, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.sort import ArgSortOp, SortOp

from ...reduce_ops import ReduceOp, identity
from ..axes import apart
from ..domain import Refused
from ..lengths import ONE
from ..rules.reductions import axes_of
from .sizes import of_sizes
from .walk import Padded, Padder, aligned, check_spread, is_integer, rule


@rule(Elemwise)
def elemwise(padder: Padder, node: Apply) -> None:
    """For each row; of sizes, a size."""
    state = aligned(padder.state(var) for var in node.inputs)
    if state is None:
        of_sizes(padder, node)
        return
    back = state.axis - node.outputs[0].type.ndim
    check_spread(padder, node.inputs, back)
    if isinstance(node.op.scalar_op, ps.Cast) and _holds_numbers(node.outputs[0]):
        state = padder.state(node.inputs[0])  # numbers of rows are still that
    padder.row_by_row(node, state)


def _holds_numbers(var: Variable) -> bool:
    return is_integer(var) and var.type.numpy_dtype.itemsize >= 4


@rule(CAReduce)
def reduction(padder: Padder, node: Apply) -> None:
    """Over the rows, without the copies."""
    (var,) = node.inputs
    state = padder.state(var)
    if state is None:
        of_sizes(padder, node)
        return
    axes = axes_of(node)
    if state.axis not in axes:
        padder.row_by_row(node, _beside(state, axes))
        return
    nothing = _nothing(type(node.op.scalar_op), var.type.numpy_dtype)
    padder.become(node.outputs, padder.made(node, [padder.masked(var, nothing)]))


def _beside(state: Padded, axes: tuple[int, ...]) -> Padded:
    axis = state.axis - sum(other < state.axis for other in axes)
    return replace(state, axis=axis, numbers=False)


def _nothing(kind: type, dtype: np.dtype) -> Any:
    """Return what changes nothing when it is combined with other values."""
    if kind in (ps.Add, ps.OR, ps.XOR):
        return 0
    if kind is ps.Mul:
        return 1
    if kind is ps.AND:
        return 1 if dtype.kind == "b" else np.array(-1).astype(dtype)
    if kind in (ps.ScalarMaximum, ps.ScalarMinimum):
        return _extreme("max" if kind is ps.ScalarMaximum else "min", dtype)
    raise Refused("is not known to have a value that changes nothing")


def _extreme(op: ReduceOp, dtype: np.dtype) -> Any:
    if dtype.kind == "b":
        return op == "min"
    if dtype.kind == "c":
        raise Refused("compares complex numbers")
    return identity(op, dtype)


@rule(ptm.Argmax)
def argmax(padder: Padder, node: Apply) -> None:
    """The copies come last and are the least: they are not found."""
    (var,) = node.inputs
    state, axes = padder.state(var), axes_of(node)
    if state is None:
        raise Refused("compares sizes")
    if state.axis not in axes:
        padder.row_by_row(node, _beside(state, axes))
        return
    if axes != (state.axis,) or state.blocks not in (None, ONE):
        raise Refused("numbers what lies along the rows and beside them")
    least = _extreme("max", var.type.numpy_dtype)
    padder.become(node.outputs, padder.made(node, [padder.masked(var, least)]))


_ALONG = [special.Softmax, special.LogSoftmax]
if hasattr(special, "SoftmaxGrad"):  # before PyTensor 3
    _ALONG.append(special.SoftmaxGrad)


@rule(*_ALONG)
def softmax(padder: Padder, node: Apply) -> None:
    """Along other axes, for each row."""
    state = aligned(padder.state(var) for var in node.inputs)
    if state is None:
        raise Refused("computes with sizes")
    if state.axis in axes_of(node):
        raise Refused("goes along the rows")
    check_spread(padder, node.inputs, state.axis - node.outputs[0].type.ndim)
    padder.row_by_row(node, state)


@rule(SortOp, ArgSortOp)
def sort(padder: Padder, node: Apply) -> None:
    """Along other axes, for each row."""
    axis, (var,) = apart(node, node.inputs)
    state = padder.state(var)
    if state is None or not isinstance(axis, int):
        raise Refused("sorts along an axis that is not constant")
    if axis == state.axis:
        raise Refused("goes along the rows")
    padder.row_by_row(node, replace(state, numbers=False))


@rule(CumOp)
def cumulative(padder: Padder, node: Apply) -> None:
    """Along the rows as well: the copies come last."""
    (var,) = node.inputs
    state, axis = padder.state(var), node.op.axis
    if state is None:
        raise Refused("computes with sizes")
    if axis is None and var.type.ndim == 1:
        axis = 0
    along = axis is None or axis % var.type.ndim == state.axis
    if axis is None or (along and state.blocks not in (None, ONE)):
        raise Refused("goes along the rows and beside them")
    blocks = ONE if along else state.blocks
    padder.row_by_row(node, replace(state, blocks=blocks, numbers=False))
