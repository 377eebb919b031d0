"""Sizes that a part receives from another, as computed from the shapes of its inputs.

JAX must know shapes when it compiles. Those of its arguments it knows; a size that
another part has computed comes as the value of an argument, and that it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.rewriting.shape import ShapeFeature
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.type import TensorType


def sizes_from_inputs(variables: Iterable[Variable]) -> dict[Variable, Variable]:
    """Return, for those variables that are sizes, what they are of the inputs' shapes.

    Parameters
    ----------
    variables : iterable of Variable

    Returns
    -------
    dict of Variable to Variable
        Without those that depend on values, or on the shape of something whose Op does
        not say how its shape follows from those of its inputs.
    """
    found = {}
    for var in variables:
        shapes = _shapes_behind(var)
        if shapes is not None:
            found[var] = shapes
    if not found:
        return {}
    measured = [shape.owner.inputs[0] for shapes in found.values() for shape in shapes]
    feature = ShapeFeature()
    for node in io_toposort([], measured):
        for var in node.inputs:
            if var.owner is None and var not in feature.shape_of:
                feature.init_r(var)
        feature.on_import(None, node, reason="sizes")  # type: ignore[arg-type]
    sizes = {}
    for var, shapes in found.items():
        size = clone_replace(var, {shape: _sized(shape, feature) for shape in shapes})
        if _is_known(size):
            sizes[var] = size
    return sizes


def _shapes_behind(var: Variable) -> list[Variable] | None:
    """Return the shapes that make up a variable, or None if any value enters it."""
    if not isinstance(var.type, TensorType) or var.type.dtype[:3] not in ("int", "uin"):
        return None
    shapes: list[Variable] = []
    todo, seen = [var], set()
    while todo:
        behind = todo.pop()
        if behind in seen or isinstance(behind, Constant):
            continue
        seen.add(behind)
        if behind.owner is None:
            return None
        if isinstance(behind.owner.op, (Shape, Shape_i)):
            shapes.append(behind)
        else:
            todo.extend(behind.owner.inputs)
    return shapes


def _sized(shape: Variable, feature: ShapeFeature) -> Variable:
    """Return a shape, or a length, as the feature has inferred it."""
    node = shape.owner
    (measured,) = node.inputs
    if measured not in feature.shape_of:
        feature.init_r(measured)
    lengths = feature.shape_of[measured]
    if isinstance(node.op, Shape_i):
        return lengths[node.op.i]
    return pt.stack(lengths) if lengths else shape


def _is_known(size: Variable) -> bool:
    """Tell whether a size takes nothing but shapes of what is an input."""
    shapes = _shapes_behind(size)
    return shapes is not None and all(
        shape.owner.inputs[0].owner is None for shape in shapes
    )
