"""Sizes as graphs of the shapes of inputs, and what follows of them from the rows.

JAX must know shapes when it compiles. Those of its arguments it knows; a size that
another part has computed comes as the value of an argument, and that it does not know.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import pytensor.tensor as pt
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.traversal import graph_inputs, io_toposort, walk
from pytensor.scalar import ScalarType
from pytensor.tensor.rewriting.shape import ShapeFeature
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.type import TensorType

from ..ops import COLLECTIVES
from ..user_frames import untraced
from .domain import Listed, Replicated, Sharded, Value, constant, is_replicated
from .lengths import Length, Symbol, inferred_length, size
from .table import ask_or_none


def sizes_from_inputs(variables: Iterable[Variable]) -> dict[Variable, Variable]:
    """Return, for those variables that are sizes, what they are of the inputs' shapes.

    Without those that depend on values, or on the shape of something whose Op does not
    say how its shape follows from those of its inputs.
    """
    behind = {var: _shapes_behind(var) for var in variables}
    found = {var: shapes for var, shapes in behind.items() if shapes is not None}
    if not found:
        return {}
    measured = [shape.owner.inputs[0] for shapes in found.values() for shape in shapes]
    lengths_of = _lengths(measured)
    known: dict[Variable, Variable | None] = {}

    def resolved(size: Variable, shapes: list[Variable]) -> Variable | None:
        """Return a size with other shapes in it replaced by what they are."""
        replaced: dict[Variable, Any] = {
            shape: of_inputs(shape)
            for shape in shapes
            if shape.owner.inputs[0].owner is not None
        }
        if any(known is None for known in replaced.values()):
            return None
        return clone_replace(size, replaced) if replaced else size

    def of_inputs(shape: Any) -> Variable | None:
        if shape not in known:
            known[shape] = None  # meanwhile: what leads back to itself is unknown
            op, lengths = shape.owner.op, lengths_of(shape.owner.inputs[0])
            inferred = shape
            if lengths and isinstance(op, Shape_i):
                inferred = lengths[op.i]
            elif lengths:
                inferred = pt.stack(lengths)
            # A reshape's shape is what it was told, in which there may be other shapes.
            behind = _shapes_behind(inferred)
            known[shape] = None if behind is None else resolved(inferred, behind)
        return known[shape]

    sizes = {var: resolved(var, shapes) for var, shapes in found.items()}
    return {var: size for var, size in sizes.items() if size is not None}


def _lengths(measured: list[Variable]) -> Callable[[Variable], Sequence | None]:
    """Return a function that tells a variable's lengths, as PyTensor infers them."""
    feature: Any = ShapeFeature()
    FunctionGraph([], [], features=[feature])  # which makes it ready
    lengths = vars(feature).get("shape_of")
    if lengths is None:  # PyTensor 3.3 infers them when it is asked
        return feature.shape_tuple
    with untraced():
        for node in io_toposort([], measured):
            for var in node.inputs:
                if var.owner is None and var not in lengths:
                    feature.init_r(var)
            feature.on_import(None, node, reason="sizes")
    return lengths.get


def is_of_shapes(var: Variable) -> bool:
    """Tell whether a number follows from shapes alone, for which JAX compiles."""
    return _shapes_behind(var) is not None


def _shapes_behind(var: Variable) -> list[Variable] | None:
    """Return the shapes that make up a variable, or None if any value enters it."""
    is_number = isinstance(var.type, (TensorType, ScalarType))
    if not is_number or var.type.dtype[:3] not in ("int", "uin"):
        return None

    def before(var: Any) -> list[Variable] | None:
        is_end = var.owner is None or isinstance(var.owner.op, (Shape, Shape_i))
        return None if is_end else var.owner.inputs

    shapes: list[Variable] = []
    for behind in walk([var], before, bfs=False):
        made: Any = behind
        if isinstance(made, Constant):
            continue
        if made.owner is None or isinstance(made.owner.op, COLLECTIVES):
            return None  # a value: that of all ranks, which is not this one's
        if isinstance(made.owner.op, (Shape, Shape_i)):
            shapes.append(made)
    return shapes


# -- whether each row fills the groups of elements that a reshape makes
#
# ``x.reshape((-1, 2, 2))`` needs a number of elements that is a multiple of four. All
# rows may have it, and a rank's not. Where each row by itself fills whole groups, any
# rows do. The graph may not say how many elements a row has; the arguments of a call
# do. So what has to hold is noted when a function is made, and asked of each call's
# arguments (`call.groups`). Where it does not hold the function is made once more, with
# `careful`: all rows are reshaped together then.

# How many elements there are, and how many make a group: of the inputs' shapes.
Filled = tuple[Variable, Variable]


@dataclass
class _Noted:
    inputs: frozenset[Variable]
    careful: bool
    found: dict[Apply, Filled | None] = field(default_factory=dict)


_noted: ContextVar[_Noted | None] = ContextVar("_noted", default=None)


@contextlib.contextmanager
def collecting_filled(
    inputs: Iterable[Variable], careful: bool
) -> Iterator[list[Filled]]:
    """Note what calls are to be asked of their inputs; in the list, once this is over.

    With `careful`, rows are taken not to fill their groups.
    """
    state = _Noted(frozenset(inputs), careful)
    token = _noted.set(state)
    asked: list[Filled] = []
    try:
        yield asked
    finally:
        _noted.reset(token)
        asked += [found for found in state.found.values() if found is not None]


def are_filled(node: Apply, axis: int) -> bool:
    """Tell whether each row fills groups, if calls whose rows do not are seen to.

    The node is of `Reshape`, the axis that whose length is -1; the others make a group.
    """
    state = _noted.get()
    if state is None:
        return True  # on a rank, which is told nothing else
    if state.careful:
        return False
    if node not in state.found:
        state.found[node] = _sizes(node, axis, state.inputs)
    return state.found[node] is not None


def _sizes(node: Apply, axis: int, inputs: frozenset[Variable]) -> Filled | None:
    source, shape = node.inputs
    elements: Any = pt.constant(1, dtype="int64")
    group: Any = pt.constant(1, dtype="int64")
    for i in range(source.type.ndim):  # type: ignore[attr-defined]
        elements *= source.shape[i]  # type: ignore[attr-defined]
    for i in range(node.outputs[0].type.ndim):
        group = group if i == axis else group * shape[i]  # type: ignore[index]
    found = sizes_from_inputs([elements, group])
    if len(found) < 2:
        return None
    for root in graph_inputs(list(found.values())):
        if root not in inputs and not isinstance(root, (Constant, SharedVariable)):
            return None  # the rows of all ranks, or within a scan
    return found[elements], found[group]


# -- which lengths are those of rows


def _lengths_behind(symbol: Symbol) -> set[Symbol] | None:
    """Return the lengths of inputs that one follows from, if they are all known.

    It need be no product of them, as that of what a convolution makes is none.
    """
    found: set[Symbol] = set()
    seen, todo = {symbol}, [symbol]
    while todo:
        var, which = todo.pop()
        if not isinstance(which, int):
            return None
        if var.owner is None:
            found.add((var, which))
            continue
        made = ask_or_none(inferred_length, var, which)
        shapes: Any = None if made is None else _shapes_behind(made)
        if shapes is None or not all(isinstance(s.owner.op, Shape_i) for s in shapes):
            return None
        lengths = [size(shape.owner.inputs[0], shape.owner.op.i) for shape in shapes]
        new = {other for length in lengths for other in length.symbols_only()} - seen
        seen |= new
        todo += new
    return found


class RowLengths:
    """Tells lengths that are numbers of rows from others, and writes shapes down.

    No reduction changes a shape that follows from those of a function's inputs. Of
    these it is known which are cut into rows, along axis 0.
    """

    def __init__(self, known: Mapping[Variable, Value]) -> None:
        self._lengths = {
            var: value.length
            for var, value in known.items()
            if isinstance(value, Sharded)
        }
        self._row_lengths = {(var, 0) for var in self._lengths}
        self._without_rows: dict[Symbol, bool] = {}

    def shape(self, node: Apply) -> Value | None:
        """Return what a shape with rows is, if it follows from the shapes of inputs."""
        if not isinstance(node.op, (Shape, Shape_i)):
            return None
        (of,) = node.inputs
        entries = [self._length(of, axis) for axis in _axes(node)]
        known = [entry for entry in entries if entry is not None]
        if len(known) < len(entries) or all(map(is_replicated, known)):
            return None
        return Listed(tuple(known)) if isinstance(node.op, Shape) else known[0]

    def written(self, node: Apply) -> Variable | None:
        """Return a shape as computed from those that it follows from, and no value.

        The variable itself may have no shape on a rank: ``x - cumsum(e)``, with rows
        of x and all of e, is computed there of the rank's rows of both. And what a mean
        of all rows makes as long as it is has another length there. None if values
        decide upon it, as in ``x[x > x.mean()]``.
        """
        (of,), (shape,) = node.inputs, node.outputs
        lengths = [size(of, axis) for axis in _axes(node)]
        symbols = {symbol for length in lengths for symbol in length.symbols_only()}
        if any(var.owner or not isinstance(which, int) for var, which in symbols):
            found = sizes_from_inputs([shape]).get(shape)
            if found is not None or self.shape(node) is None:
                return found
        made = list(map(_graph, lengths))
        return pt.stack(made) if isinstance(node.op, Shape) else made[0]

    def _length(self, var: Variable, axis: int) -> Value | None:
        """Return what the length of an axis is, if it follows from those of inputs."""
        length, rows = size(var, axis), 0
        for (root, which), many in length.symbols:
            if not isinstance(which, int):
                return None
            if root.owner is not None:
                if not self._is_without_rows((root, which)):
                    return None
            elif (root, which) in self._row_lengths:
                if self._lengths[root] == "?":
                    return None
                rows += many
        if not length.symbols:
            return constant(length.number)
        if rows > 1:
            return None
        return Replicated(rows, exact=rows == length.number == len(length.symbols))

    def _is_without_rows(self, symbol: Symbol) -> bool:
        """Tell whether a length is known to follow from others than the rows' alone."""
        if symbol not in self._without_rows:
            found = _lengths_behind(symbol)
            known = found is not None and self._row_lengths.isdisjoint(found)
            self._without_rows[symbol] = known
        return self._without_rows[symbol]


def _axes(node: Apply) -> Sequence[int]:
    of = node.inputs[0]
    return range(of.type.ndim) if isinstance(node.op, Shape) else [node.op.i]


def _graph(length: Length) -> Variable:
    """Return a length as a graph of the shapes that it is a product of."""
    found: Any = pt.constant(length.number, dtype="int64")
    for (root, axis), many in length.symbols:
        for _ in range(many):
            factor: Any = pt.shape(root)[axis]
            is_one = length.number == 1 and found.owner is None
            found = factor if is_one else found * factor
    return found
