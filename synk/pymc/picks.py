"""Some rows of what is computed from data: computed from some rows of the data.

Of a linear predictor ``X @ slopes`` PyMC takes the rows that were observed, and those
with missing values, each for a density of its own: ``X[seen] @ slopes`` is the same,
and ranks can share the rows of ``X[seen]``. What has fewer rows than are picked, as
effects of groups, stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import Dot
from pytensor.tensor.subtensor import Subtensor

from ..compiler.domain import Refused
from ..compiler.rules.index import entries_of_index
from .numbers import TAKING
from .rebuilding import rebuilt, remade


def lifted(graph: Sequence[Variable], free: Sequence[Variable]) -> list[Variable]:
    """Return graphs in which rows are picked from data, where they can be.

    Parameters
    ----------
    graph : sequence of Variable
    free : sequence of Variable
        What is no data.
    """
    nodes = io_toposort([], list(graph))
    computed: set[Variable] = set(free)
    made: dict[Variable, Variable] = {}
    at_once = _needed_at_once(nodes)

    def inputs_of(node: Apply) -> list[Variable]:
        for var in node.inputs:
            if var in computed and var in made:
                computed.add(made[var])
        inputs = [made.get(var, var) for var in node.inputs]
        if not computed.isdisjoint(inputs):
            computed.update(node.outputs)
        return inputs

    def visit(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        if node.outputs[0] not in computed or inputs[0] not in computed:
            return None
        if not isinstance(node.op, (*TAKING, Subtensor)):
            return None
        picks = _the_one(node, inputs)
        if picks is None or (node in at_once and _reverses(picks[1])):
            return None
        picking = _Picking(*picks, computed)
        found = picking.of(inputs[0], picking.axis)
        if not picking.meets_data:
            return None
        computed.update(picking.made)
        return [found]

    rebuilt(nodes, made, inputs_of, visit)
    return [made.get(var, var) for var in graph]


def _needed_at_once(nodes: Sequence[Apply]) -> set[Apply]:
    """Return what goes element by element into sums up to each row.

    Every rank needs all of these rows. Where they come from the last to the first, as
    in a partial likelihood, ranks are to compute each its own before they exchange
    them: of data in the other order every rank would compute all.
    """
    found: set[Apply] = set()
    for node in reversed(nodes):
        if node in found or isinstance(node.op, CumOp):
            for var in node.inputs:
                is_passed_on = isinstance(node.op, (CumOp, Elemwise, DimShuffle))
                if var.owner is not None and is_passed_on:
                    found.add(var.owner)
    return found


def _reverses(entry: Any) -> bool:
    """Tell whether an index is all entries, from the last to the first."""
    return isinstance(entry, slice) and entry == slice(None, None, -1)


def _the_one(node: Apply, inputs: list[Variable]) -> tuple[int, Any] | None:
    """Return along which axis a node picks, and what; None if that is not one axis."""
    try:
        entries = entries_of_index(node, 1)
    except Refused:
        return None
    picks = [(a, e) for a, e in enumerate(entries) if e != slice(None)]
    if len(picks) != 1:
        return None
    ((axis, entry),) = picks
    if isinstance(entry, slice):
        parts = entry.start, entry.stop, entry.step
        if not all(part is None or _is_number(part) for part in parts):
            return None
        return axis, slice(*(None if p is None else _number(p) for p in parts))
    if getattr(entry.type, "ndim", 0) != 1:
        return None
    if entry.type.dtype == "bool":
        if isinstance(entry, Constant):
            return axis, pt.constant(np.flatnonzero(entry.data))
        return (axis, pt.nonzero(entry)[0]) if _is_data(entry) else None
    had, has = inputs[0].type.shape[axis], entry.type.shape[0]  # type: ignore[attr-defined]
    if None in (had, has) or has > had or not _is_data(entry):
        return None
    return axis, entry


def _is_number(part: Any) -> bool:
    return isinstance(part, (int, Constant))


def _number(part: Any) -> int:
    return int(part.data if isinstance(part, Constant) else part)


def _is_data(var: Variable) -> bool:
    return isinstance(var, Constant) or var.owner is None


class _Picking:
    """Picks entries along an axis, as far up a graph as it goes.

    Attributes
    ----------
    meets_data : bool
        Whether data were picked from.
    made : list of Variable
        What takes the place of what was computed of all rows.
    """

    def __init__(self, axis: int, entry: Any, computed: set[Variable]) -> None:
        self.axis, self._entry, self._computed = axis, entry, computed
        self.meets_data = False
        self.made: list[Variable] = []
        self._known: dict[tuple[Variable, int], Variable] = {}

    def of(self, var: Variable, axis: int) -> Variable:
        """Return the picked entries of a variable."""
        if (var, axis) not in self._known:
            found = self._of(var, axis)
            self._known[var, axis] = found
            if var in self._computed:
                self.made.append(found)
        return self._known[var, axis]

    def _of(self, var: Any, axis: int) -> Variable:
        if var not in self._computed:
            self.meets_data = True
            return self._of_data(var, axis)
        node = var.owner
        op: Any = None if node is None else node.op
        inputs = None
        if isinstance(op, Elemwise):
            inputs = [
                v if v.type.shape[axis] == 1 else self.of(v, axis) for v in node.inputs
            ]
        elif isinstance(op, DimShuffle) and (place := op.new_order[axis]) != "x":
            inputs = [self.of(node.inputs[0], int(place))]
        elif isinstance(op, Dot):
            a, b = node.inputs
            if axis == 0 and a.type.ndim == 2:
                inputs = [self.of(a, 0), b]
            elif b.type.ndim == 2:
                inputs = [a, self.of(b, 1)]
        elif isinstance(op, CAReduce):
            ndim = node.inputs[0].type.ndim
            reduced = range(ndim) if op.axis is None else {a % ndim for a in op.axis}
            kept = [a for a in range(ndim) if a not in reduced]
            inputs = [self.of(node.inputs[0], kept[axis])]
        elif isinstance(op, TAKING):
            return self._of_taken(node, axis)
        if inputs is None:
            return self._index(var, axis)
        return remade(node, inputs)[0]

    def _of_taken(self, node: Apply, axis: int) -> Variable:
        """Pick from an index in place of what it has picked, as effects by row."""
        entries = entries_of_index(node, 1)
        arrays = [e for e in entries if isinstance(e, Variable)]
        is_simple = len(arrays) == 1 and getattr(arrays[0].type, "ndim", 0) == 1
        if not is_simple or axis >= len(entries) or entries[axis] is not arrays[0]:
            return self._index(node.outputs[0], axis)
        if arrays[0].type.dtype == "bool":  # type: ignore[attr-defined]
            return self._index(node.outputs[0], axis)
        entries[axis] = self.of(arrays[0], 0)
        array: Any = node.inputs[0]
        return array[tuple(entries)]

    def _of_data(self, var: Any, axis: int) -> Variable:
        is_slice = isinstance(self._entry, slice)
        if isinstance(var, Constant) and (
            is_slice or isinstance(self._entry, Constant)
        ):
            entry = self._entry if is_slice else self._entry.data
            return pt.constant(np.asarray(var.data)[(slice(None),) * axis + (entry,)])
        return self._index(var, axis)

    def _index(self, var: Any, axis: int) -> Variable:
        return var[(slice(None),) * axis + (self._entry,)]
