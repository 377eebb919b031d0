"""Sizes (integers that make up shapes) as graphs of the shapes of inputs.

JAX has to know shapes when it compiles. It knows the shapes of its arguments, but not a
size that another part has computed, which is the value of an argument.
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
    """Return, for those variables that are sizes, a graph of the inputs' shapes.

    Left out are sizes that depend on values, or on the shape of a variable whose Op
    does not infer shapes.
    """
    behind = {var: _shapes_behind(var) for var in variables}
    found = {var: shapes for var, shapes in behind.items() if shapes is not None}
    if not found:
        return {}
    measured = [shape.owner.inputs[0] for shapes in found.values() for shape in shapes]
    lengths_of = _lengths(measured)
    known: dict[Variable, Variable | None] = {}

    def resolved(size: Variable, shapes: list[Variable]) -> Variable | None:
        """Return a size with `shapes` in it replaced by graphs of inputs' shapes."""
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
            known[shape] = None  # meanwhile: a shape that leads to itself is unknown
            op, lengths = shape.owner.op, lengths_of(shape.owner.inputs[0])
            inferred = shape
            if lengths and isinstance(op, Shape_i):
                inferred = lengths[op.i]
            elif lengths:
                inferred = pt.stack(lengths)
            # A reshape's shape is its operand, in which there may be other shapes.
            behind = _shapes_behind(inferred)
            known[shape] = None if behind is None else resolved(inferred, behind)
        return known[shape]

    sizes = {var: resolved(var, shapes) for var, shapes in found.items()}
    return {var: size for var, size in sizes.items() if size is not None}


def _lengths(measured: list[Variable]) -> Callable[[Variable], Sequence | None]:
    """Return a function from a variable to its lengths, as PyTensor infers them."""
    feature: Any = ShapeFeature()
    FunctionGraph([], [], features=[feature])  # initialises the feature
    lengths = vars(feature).get("shape_of")
    if lengths is None:  # PyTensor 3.3 infers lengths on demand
        return feature.shape_tuple
    with untraced():
        for node in io_toposort([], measured):
            for var in node.inputs:
                if var.owner is None and var not in lengths:
                    feature.init_r(var)
            feature.on_import(None, node, reason="sizes")
    return lengths.get


def is_of_shapes(var: Variable) -> bool:
    """Return whether a number follows from shapes alone, so that JAX knows it."""
    return _shapes_behind(var) is not None


def _shapes_behind(var: Variable) -> list[Variable] | None:
    """Return the shapes that a variable is computed from; None if values enter."""
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
            return None  # a value, or the shape of all ranks' rows
        if isinstance(made.owner.op, (Shape, Shape_i)):
            shapes.append(made)
    return shapes


# -- whether each row fills the groups of elements that a reshape makes
#
# ``x.reshape((-1, 2, 2))`` needs a number of elements that is a multiple of four, a
# *group*. All rows together may fill groups while a rank's rows do not. If each single
# row fills groups, any rows do. Only the arguments of a call may tell how many elements
# a row has. So when a function is made, the two sizes are collected, and each call
# checks them (`call.variant`). If a row does not fill groups, synk makes the function
# again with `careful`, and all rows are reshaped together.

# The number of elements, and the number in a group, as graphs of the inputs' shapes.
Filled = tuple[Variable, Variable]


@dataclass
class _Collecting:
    inputs: frozenset[Variable]
    careful: bool
    found: dict[Apply, Filled | None] = field(default_factory=dict)


_collecting: ContextVar[_Collecting | None] = ContextVar("_collecting", default=None)


@contextlib.contextmanager
def filled_sizes(inputs: Iterable[Variable], careful: bool) -> Iterator[list[Filled]]:
    """Collect the sizes that each call has to check; the list is filled at the end.

    With `careful`, no rows are taken to fill groups, and nothing is collected.
    """
    state = _Collecting(frozenset(inputs), careful)
    token = _collecting.set(state)
    asked: list[Filled] = []
    try:
        yield asked
    finally:
        _collecting.reset(token)
        asked += [found for found in state.found.values() if found is not None]


def are_filled(node: Apply, axis: int) -> bool:
    """Return whether to place a `Reshape` as if each row filled groups.

    `axis` is the one whose length is -1; the product of the others is a group. If it
    returns True, each call checks its rows.
    """
    state = _collecting.get()
    if state is None:
        return True  # on a rank: the master has checked
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
            return None  # such as the number of all rows, or an input of a scan's step
    return found[elements], found[group]


# -- which lengths are those of rows


def _lengths_behind(symbol: Symbol) -> set[Symbol] | None:
    """Return the inputs' lengths that a length depends on; None if not all are known.

    It need not be their product: that of a convolution's result is not.
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
    """The values, and graphs, of shapes that follow from the shapes of inputs.

    No collective changes such a shape. `known` has the values of the inputs: which of
    them have rows, along axis 0.
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
        """Return the `Value` of a shape node if it depends on the number of rows.

        None if it does not, or does not follow from the inputs' shapes.
        """
        if not isinstance(node.op, (Shape, Shape_i)):
            return None
        (of,) = node.inputs
        entries = [self._length(of, axis) for axis in _axes(node)]
        known = [entry for entry in entries if entry is not None]
        if len(known) < len(entries) or all(map(is_replicated, known)):
            return None
        return Listed(tuple(known)) if isinstance(node.op, Shape) else known[0]

    def written(self, node: Apply) -> Variable | None:
        """Return the shape of a shape node computed from inputs' shapes alone.

        A rank cannot take the shape of the variable itself if it has another one there,
        as has a variable whose length follows from a reduced value. It may not even be
        computable there as written: ``x - cumsum(e)``, with a rank's rows of x and all
        of e. None if values determine the shape, as in ``x[x > x.mean()]``.
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
        """Return the `Value` of an axis's length; None if inputs' do not tell it."""
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
        """Return whether a length is known not to depend on the number of rows."""
        if symbol not in self._without_rows:
            found = _lengths_behind(symbol)
            known = found is not None and self._row_lengths.isdisjoint(found)
            self._without_rows[symbol] = known
        return self._without_rows[symbol]


def _axes(node: Apply) -> Sequence[int]:
    of = node.inputs[0]
    return range(of.type.ndim) if isinstance(node.op, Shape) else [node.op.i]


def _graph(length: Length) -> Variable:
    """Return a `Length` as a graph."""
    found: Any = pt.constant(length.number, dtype="int64")
    for (root, axis), many in length.symbols:
        for _ in range(many):
            factor: Any = pt.shape(root)[axis]
            is_one = length.number == 1 and found.owner is None
            found = factor if is_one else found * factor
    return found
