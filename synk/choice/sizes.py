"""The shapes of all that a graph computes, from those of what enters it.

PyTensor's Ops tell the shapes of their results as graphs of those of their inputs
(``infer_shape``). Where these are numbers, such a graph is of few numbers too, and is
evaluated here Op by Op.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pytensor.tensor as pt
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.shape import Shape as ShapeOp
from pytensor.tensor.shape import Shape_i

from ..compiler.op_shapes import inferred
from ..ops import AllStack, is_collective

Shape: TypeAlias = tuple[int, ...]

_FEW = 64
"""Numbers of a value that is evaluated: lengths, and arrays of them."""


class Sizes:
    """The shapes in graphs whose inputs have some.

    Parameters
    ----------
    given : mapping of Variable to tuple of int
        Of inputs. Shared variables have those of their values.
    """

    def __init__(self, given: Mapping[Variable, Shape]) -> None:
        self._shapes: dict[Variable, Shape | None] = dict(given)
        self._numbers: dict[Variable, Any] = {}

    def shape(self, var: Variable) -> Shape | None:
        """Return the shape of a variable, or None if it does not follow."""
        if var not in self._shapes:
            for node in io_toposort([], [var]):
                if not all(each in self._shapes for each in node.outputs):
                    self._shapes.update(self._of(node))
            if var.owner is None:
                self._shapes[var] = _of_leaf(var)
        return self._shapes[var]

    def number(self, var: Variable) -> Any:
        """Return a value that follows from shapes and constants, or else None.

        A value that the function takes is not known, but for its shape.
        """
        if isinstance(var, Constant):
            return _value(var)
        if var not in self._numbers:
            self._numbers[var] = None
            for node in io_toposort([], [var]):
                for each in node.outputs:
                    if self._numbers.get(each) is None:
                        self._numbers[each] = self._evaluated(node, each)
        return self._numbers[var]

    def _of(self, node: Apply) -> dict[Variable, Shape | None]:
        """Return the shapes of a node's outputs; those of its inputs are known.

        Inputs have the rows of all ranks, and so has what ranks gather.
        """
        given: list[Any] = []
        for var in node.inputs:
            if var.owner is None and var not in self._shapes:
                self._shapes[var] = _of_leaf(var)
            shape = self._shapes[var]
            if shape is not None:
                given.append(tuple(pt.constant(n, dtype="int64") for n in shape))
            else:  # as PyTensor writes what it does not know
                given.append(_open(var))
        if is_collective(node):
            shape = self._shapes[node.inputs[0]]
            if isinstance(node.op, AllStack) and shape is not None:
                shape = 1, *shape  # and not as many as there are ranks
            return {node.outputs[0]: shape}
        try:
            found = inferred(node, given)
        except Exception:  # as a call would raise it
            found = None
        if found is None:
            return {var: _of_leaf(var) for var in node.outputs}
        return {
            var: self._settled(lengths)
            for var, lengths in zip(node.outputs, found, strict=True)
        }

    def _settled(self, lengths: Sequence[Any] | None) -> Shape | None:
        """Return a shape whose lengths may be variables."""
        if lengths is None:
            return None
        known = [
            self.number(each) if isinstance(each, Variable) else each
            for each in lengths
        ]
        return None if None in known else tuple(map(int, known))

    def _evaluated(self, node: Apply, var: Variable) -> Any:
        if isinstance(node.op, (Shape_i, ShapeOp)):
            shape = self.shape(node.inputs[0])
            if shape is None:
                return None
            lengths = np.array(shape, dtype=np.int64)
            return lengths[node.op.i] if isinstance(node.op, Shape_i) else lengths
        given = [
            _value(each) if isinstance(each, Constant) else self._numbers.get(each)
            for each in node.inputs
        ]
        if any(value is None for value in given):
            return None
        made: list[list] = [[None] for _ in node.outputs]
        try:
            node.op.perform(node, given, made)
        except Exception:  # as a call would raise it, or an Op that cannot be run so
            return None
        return _if_few(made[node.outputs.index(var)][0])


def _of_leaf(var: Any) -> Shape | None:
    """Return the shape of what no Op tells of, as far as its type has it."""
    if isinstance(var, Constant):
        return np.shape(var.data)
    if isinstance(var, SharedVariable):
        return np.shape(var.get_value(borrow=True))
    shape = getattr(var.type, "shape", None)
    return None if shape is None or None in shape else tuple(shape)


def _open(var: Any) -> tuple | None:
    """Return lengths of a variable, of which nothing is known but by its type."""
    if not hasattr(var.type, "ndim"):
        return None
    return tuple(Shape_i(i)(var) for i in range(var.type.ndim))


def _value(var: Constant) -> Any:
    return _if_few(var.data)


def _if_few(value: Any) -> Any:
    return value if np.size(value) <= _FEW else None
