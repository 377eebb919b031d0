"""Terms of a density as graphs of rows: data along a dimension become inputs.

PyMC's graphs contain the dimension's length as a number, such as in a density's shape.
The new graphs have the inputs' number of rows in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.scan.op import Scan
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.type import DenseTensorType, TensorType

from .axes import Axis
from .dimensions import Dimensions
from .rebuilding import remade
from .terms import is_constant_along, shown


class NotByRows(Exception):
    """A term cannot be computed row by row, for the reason in the message."""


class NoRows(NotByRows):
    """A term has no data with rows, so there is nothing to share."""


class Way(NamedTuple):
    """A way to share terms by rows.

    Free variables along the dimension become inputs, with rows. With `exchanges` every
    rank has them whole, as ranks may need rows of other ranks; and so it has data with
    the dimension on two axes, such as a matrix of neighbours. `replicates`: every rank
    computes values without data along the dimension for all rows, as PyMC's graph does,
    and takes its rows of them where they meet values with rows.
    """

    exchanges: bool = False
    replicates: bool = False


class RowInput(NamedTuple):
    """An input of the function, with rows along axis 0, of data or a free variable.

    `source` is that data or variable, with the rows along `axis`.
    """

    variable: Variable
    source: Variable
    axis: int

    def put_back(self) -> Variable:
        """Return the input with its rows moved to the axis of the source."""
        rows: Any = self.variable
        return pt.moveaxis(rows, 0, self.axis) if self.axis else rows


class ByRows:
    """Graphs of some terms as functions of rows along a dimension.

    `sums` are the terms. `data` and `free` are the inputs with rows. `row_axis` has the
    axis of the rows, by computed variable. `whole` has replacements for free variables
    that are no inputs. Raises NotByRows if a term cannot be computed so.
    """

    def __init__(
        self,
        dimensions: Dimensions,
        dimension: Axis,
        terms: Sequence[int],
        whole: Mapping[Variable, Variable],
        way: Way,
    ) -> None:
        self._of, self._dimension = dimensions, dimension
        self._exchanges = way.exchanges
        self._all_rows: Any = None
        if way.replicates:
            self._all_rows = pytensor.shared(np.int64(dimensions.lengths[dimension]))
        self._has_rows: dict[Variable, bool] = {}
        self._made = dict(whole)
        self._inputs: dict[tuple[Variable, int], RowInput] = {}
        for var in () if way.exchanges else whole:
            if axes := self._along(var):
                self._made[var] = self._row_input(var, axes).put_back()
        self.free = list(self._inputs.values())
        self._uses = dimensions.given.uses
        totals = [dimensions.sums[i] for i in terms]
        above = set(ancestors(totals))
        nodes = [n for n in dimensions.given.nodes if not above.isdisjoint(n.outputs)]
        self._add_inputs(nodes)
        for node in nodes:
            inputs = self._inputs_of(node)
            outputs = self._visit(node, inputs) or remade(node, inputs)
            self._made.update(zip(node.outputs, outputs, strict=True))
        self.row_axis = self._rows_checked(nodes)
        self.sums = [self._made.get(var, var) for var in totals]
        self.data = list(self._inputs.values())[len(self.free) :]

    def _rows_checked(self, nodes: Sequence[Apply]) -> dict[Variable, int]:
        """Return the axis of the rows by variable, for values computed from inputs.

        Raises NotByRows if such a value has a fixed number of rows, or two such axes.
        """
        row_axis: dict[Variable, int] = {}
        of_rows = {given.variable for given in self._inputs.values()}
        for node in io_toposort([], [v for v in self._made.values() if v.owner]):
            if not of_rows.isdisjoint(node.inputs):
                of_rows.update(node.outputs)
        for var in (var for node in nodes for var in node.outputs):
            new: Any = self._made[var]
            axes = self._along(var) if new in of_rows else []
            if any(new.type.shape[axis] is not None for axis in axes):
                what = f"{shown(var)} fixes the number of rows"
                raise NotByRows(f"{what}{self._whole(var)}")
            if len(axes) > 1:
                what = f"{shown(var)} of shape {var.type.shape}"  # type: ignore[attr-defined]
                raise NotByRows(f"{what} has all rows beside all rows")
            row_axis.update((new, axis) for axis in axes)
        return row_axis

    def _whole(self, var: Variable) -> str:
        """Return words that name an operand of `var` with all rows; "" if none."""
        given = {one.variable for one in self._inputs.values()}
        for operand in [] if var.owner is None else var.owner.inputs:
            made = self._made.get(operand)
            if made is None or made.owner is None or not self._along(operand):
                continue
            if given.isdisjoint(ancestors([made])):
                return f": {shown(operand)} is computed for all of them at once"
        return ""

    def _along(self, var: Variable) -> list[int]:
        """Return the axes of a variable that are of the dimension."""
        return self._of.along(var, self._dimension)

    # -- what nodes take

    @property
    def _n(self) -> Variable:
        """The number of rows."""
        first = next(iter(self._inputs.values()))
        return pt.shape(first.variable)[0]

    def _add_inputs(self, nodes: Sequence[Apply]) -> None:
        """Make inputs for all data with rows; `_n` needs one of them."""
        for node in nodes:
            for i, var in enumerate(node.inputs):
                if (node, i) in self._uses and not self._is_row_index(node, i):
                    axes = self._of.along_input(node, i, self._dimension)
                    if self._is_whole(axes) or self._is_of_scan(node):
                        continue
                    if axes and not is_constant_along(var, axes[0]):
                        self._row_input(var, axes)

    def _is_whole(self, axes: list[int]) -> bool:
        """Return whether every rank has all of data with rows along these axes."""
        return len(axes) > 1 and self._exchanges

    def _is_of_scan(self, node: Apply) -> bool:
        """Return whether a node is a scan that every rank computes for all rows.

        With `replicates` that is so, as the types in its step fix the number of rows.
        """
        return self._all_rows is not None and isinstance(node.op, Scan)

    def _row_input(self, var: Variable, axes: list[int]) -> RowInput:
        axis = _only(var, axes)
        if (var, axis) not in self._inputs:
            rest = [n for a, n in enumerate(var.type.shape) if a != axis]  # type: ignore[attr-defined]
            dtype = var.type.dtype  # type: ignore[attr-defined]
            name = var.name or f"rows_{len(self._inputs)}"
            # Not by `pt.tensor`, which takes names such as "long" for dtypes.
            made = TensorType(dtype, (None, *rest))(name)
            self._inputs[var, axis] = RowInput(made, var, axis)
        return self._inputs[var, axis]

    def _inputs_of(self, node: Apply) -> list[Variable]:
        inputs = [self._input(node, i) for i in range(len(node.inputs))]
        if self._all_rows is None or not any(map(self._is_of_rows, inputs)):
            return inputs
        return [self._own_rows(node, i, var) for i, var in enumerate(inputs)]

    def _is_of_rows(self, var: Variable) -> bool:
        """Return whether a variable of the new graph is computed from the inputs."""
        if var not in self._has_rows:
            rows = {given.variable for given in self._inputs.values()}
            self._has_rows[var] = not rows.isdisjoint(ancestors([var]))
        return self._has_rows[var]

    def _own_rows(self, node: Apply, i: int, var: Any) -> Variable:
        """Return a node's input, as a slice of all rows, whose type fixes no number."""
        if self._is_of_rows(var):
            return var
        for axis in self._of.along_input(node, i, self._dimension):
            if var.type.shape[axis] not in (None, 1):
                var = var[(*[slice(None)] * axis, slice(self._all_rows))]
        return var

    def _input(self, node: Apply, i: int) -> Variable:
        """Return the new graph's variable for an input of a node."""
        var = node.inputs[i]
        if self._is_row_index(node, i):
            return self._row_index(node, i)
        if (node, i) not in self._uses:
            return self._made[var]
        if not isinstance(var.type, DenseTensorType):
            return var
        shape = list(var.type.shape)
        axes = self._of.along_input(node, i, self._dimension)
        if axes and not self._is_of_scan(node):
            if self._is_whole(axes):  # with a type that fixes no number of rows
                return self._of.sources.holder(
                    var, [None if a in axes else n for a, n in enumerate(shape)]
                )
            if is_constant_along(var, axes[0]):
                return self._uniform(node, var, axes)
            return self._inputs[var, axes[0]].put_back()
        if isinstance(var, (Constant, SharedVariable)):
            return var
        return self._of.sources.holder(var, shape)

    def _is_row_index(self, node: Apply, i: int) -> bool:
        """Return whether an input is the row numbers 0, 1, ... as an index."""
        found = self._of.row_indices.get((node, i))
        return found is not None and found[0] in self._along(node.inputs[0])

    def _row_index(self, node: Apply, i: int) -> Variable:
        """Return row numbers from 0 on, as many as a rank has rows."""
        axis, own = self._of.row_indices[node, i]
        indexed: Any = self._input(node, 0)
        order: list[Any] = ["x"] * node.inputs[i].type.ndim  # type: ignore[attr-defined]
        order[own] = 0
        return pt.arange(indexed.shape[axis]).dimshuffle(order)

    def _uniform(self, node: Apply, var: Variable, axes: list[int]) -> Variable:
        """Return data that are equal in all rows, for the number of rows."""
        axis = _only(var, axes)
        one = pt.constant(np.asarray(var.data).take([0], axis))  # type: ignore[attr-defined]
        if isinstance(node.op, Elemwise) and any(
            other is not var and self._along(other)
            for other in node.inputs
            if not isinstance(other, Constant)
        ):
            return one  # the Op broadcasts it
        if self._all_rows is not None:
            return var
        shape = list(one.shape)
        shape[axis] = self._n
        made: Any = pt.alloc(one, *shape)
        return made

    # -- nodes that say how many rows there are

    def _visit(self, node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        """Return new outputs of a node that states the number of rows; None if none."""
        op: Any = node.op
        if not isinstance(op, (Alloc, SpecifyShape, Reshape)):
            return None
        if self._all_rows is not None and not any(map(self._is_of_rows, inputs)):
            return None
        rows = self._along(node.outputs[0])
        if isinstance(op, SpecifyShape):
            return [inputs[0]] if rows else None
        if not (rows or self._of.along_input(node, 0, self._dimension)):
            return None
        if isinstance(op, Reshape):
            return [self._reshaped(node, inputs, rows)]
        lengths = list(inputs[1:])
        for axis in rows:
            lengths[axis] = self._n
        made: Any = pt.alloc(inputs[0], *lengths)
        return [made]

    def _reshaped(self, node: Apply, inputs: list[Variable], rows: list[int]) -> Any:
        """Return a reshape with the rows' axis open."""
        out: Any = node.outputs[0]
        shape: list[Any] = list(out.type.shape)
        for axis in rows:
            shape[axis] = self._n
        if not rows and None not in shape:
            raise NotByRows(f"{shown(out)} takes the rows apart")
        if shape.count(None) > 1:
            raise NotByRows(f"{shown(out)} has a shape that is not known")
        lengths = [-1 if length is None else length for length in shape]
        return pt.reshape(inputs[0], lengths, ndim=len(shape))


def _only(var: Variable, axes: list[int]) -> int:
    """Return the one axis with the rows; raise NotByRows if there are two."""
    if len(axes) > 1:
        raise NotByRows(f"{shown(var)} has all rows beside all rows")
    return axes[0]
