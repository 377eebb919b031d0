"""Sizes that a part receives from another, as computed from the shapes of its inputs.

JAX must know shapes when it compiles. Those of its arguments it knows; a size that
another part has computed comes as the value of an argument, and that it does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import io_toposort
from pytensor.scalar import ScalarType
from pytensor.tensor.rewriting.shape import ShapeFeature
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.type import TensorType

from ..ops import COLLECTIVES


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
    resolver = _Resolver(_lengths(measured))
    return {
        var: size
        for var, shapes in found.items()
        if (size := resolver.resolved(var, shapes)) is not None
    }


def _lengths(measured: list[Variable]) -> Callable[[Variable], Sequence | None]:
    """Return a function that tells a variable's lengths, as PyTensor infers them."""
    feature: Any = ShapeFeature()
    FunctionGraph([], [], features=[feature])  # which makes it ready
    lengths = vars(feature).get("shape_of")
    if lengths is None:  # PyTensor 3.3 infers them when it is asked
        return feature.shape_tuple
    for node in io_toposort([], measured):
        for var in node.inputs:
            if var.owner is None and var not in lengths:
                feature.init_r(var)
        feature.on_import(None, node, reason="sizes")
    return lengths.get


class _Resolver:
    """Says what shapes are, down to those of inputs; None where that is not known."""

    def __init__(self, lengths: Callable[[Variable], Sequence | None]) -> None:
        self._lengths = lengths
        self._known: dict[Variable, Variable | None] = {}

    def resolved(
        self, size: Variable, shapes: list[Variable] | None
    ) -> Variable | None:
        """Return a size with other shapes in it replaced by what they are."""
        if shapes is None:
            return None
        replaced: dict[Variable, Variable] = {}
        for shape in shapes:
            if shape.owner.inputs[0].owner is not None:
                known = self._shape(shape)
                if known is None:
                    return None
                replaced[shape] = known
        return clone_replace(size, replaced) if replaced else size

    def _shape(self, shape: Variable) -> Variable | None:
        if shape not in self._known:
            self._known[shape] = None  # meanwhile: what leads back to itself is unknown
            # A reshape's shape is what it was told, in which there may be other shapes.
            inferred = self._inferred(shape)
            self._known[shape] = self.resolved(inferred, _shapes_behind(inferred))
        return self._known[shape]

    def _inferred(self, shape: Variable) -> Variable:
        """Return a shape, or a length, as PyTensor has inferred it."""
        node = shape.owner
        lengths = self._lengths(node.inputs[0])
        if lengths is None:
            return shape
        if isinstance(node.op, Shape_i):
            return lengths[node.op.i]
        return pt.stack(lengths) if lengths else shape


def _shapes_behind(var: Variable) -> list[Variable] | None:
    """Return the shapes that make up a variable, or None if any value enters it."""
    is_number = isinstance(var.type, (TensorType, ScalarType))
    if not is_number or var.type.dtype[:3] not in ("int", "uin"):
        return None
    shapes: list[Variable] = []
    todo, seen = [var], set()
    while todo:
        behind = todo.pop()
        if behind in seen or isinstance(behind, Constant):
            continue
        seen.add(behind)
        if behind.owner is None or isinstance(behind.owner.op, COLLECTIVES):
            return None  # a value: that of all ranks, which is not this one's
        if isinstance(behind.owner.op, (Shape, Shape_i)):
            shapes.append(behind)
        else:
            todo.extend(behind.owner.inputs)
    return shapes
