"""How long the results of users' Ops are: as the rows, or by the Op's `infer_shape`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable

from ..lengths import Length, size, value_of
from .registry import shardings_of


def own_length(node: Apply, var: Variable, axis: int) -> Length | None:
    """Return the length of an axis; None if nothing tells it."""
    place = node.outputs.index(var)
    ways = shardings_of(node)
    if ways is None:
        return None
    for way in ways:
        if way.outputs[place] == axis:  # an entry for each row
            first = way.rows[0]
            of_rows: Any = way.inputs[first]
            return size(node.inputs[first], of_rows)
    return _inferred(node, place, axis)


def _inferred(node: Apply, place: int, axis: int) -> Length | None:
    """Return what the Op says of it, if that is a product of other lengths."""
    if not hasattr(node.op, "infer_shape"):
        return None
    shape = _shapes(node.op.infer_shape, node)[place]
    if shape is None:
        return None
    length = value_of(pt.as_tensor_variable(shape[axis]))
    # What is no product would be a symbol of the expression that was just made.
    is_product = all(isinstance(which, int) for _, which in length.symbols_only())
    return length if is_product else None


def _shapes(infer_shape: Callable, node: Apply) -> Sequence:
    """Return the shapes of a node's results, as variables."""
    given = node, [_shape(var) for var in node.inputs]
    parameters = inspect.signature(infer_shape).parameters.values()
    wanted = [one for one in parameters if one.default is one.empty]
    # The first is the graph that the node is in; not from PyTensor 3.3 on.
    return infer_shape(None, *given) if len(wanted) == 3 else infer_shape(*given)


def _shape(var: Any) -> tuple | None:
    ndim = getattr(var.type, "ndim", None)
    return None if ndim is None else tuple(var.shape[i] for i in range(ndim))
