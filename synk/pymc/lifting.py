"""Lifting of indices: entries of a computed array, computed from entries of the data.

A reshape, repetition or join has the entries of its operand in another arrangement:
``pt.repeat(f(x), 4)`` is ``f(x)[[0, 0, 0, 0, 1, 1, ...]]``. If the index moves up the
graph to the data, as in ``f(x[[0, 0, 0, 0, 1, 1, ...]])``, ranks can share the entries.
At a free variable the index stays, as for effects of groups.

`with_gathered_data` lifts indices of gathered rows: from a linear predictor ``X @ w``
PyMC takes the observed rows, and those with missing values, for two densities. An index
that takes more rows than its operand has, as from effects of groups, is not lifted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.tensor.basic import (
    Alloc,
    Join,
    MakeVector,
    ScalarFromTensor,
    TensorFromScalar,
)
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import All, Dot
from pytensor.tensor.subtensor import Subtensor
from pytensor.tensor.type import DenseTensorType

from ..compiler.cloning import inlined
from ..compiler.domain import Refused
from ..compiler.rules.base import TAKING, split_axis
from ..compiler.rules.index import entries_of_index, layout
from .names import Check
from .rebuilding import rebuilt, remade

Index = Mapping[int, Any]
"""The entries to take, by axis: arrays of one shape, computed from data alone. An index
of one axis may be a slice."""


class Computed:
    """The set of variables that depend on free variables; tested by ``in``."""

    def __init__(self, free: Sequence[Variable]) -> None:
        self._known: dict[Variable, bool] = dict.fromkeys(free, True)

    def __contains__(self, var: Variable) -> bool:
        if var not in self._known:
            above = list(ancestors([var], blockers=self._known))
            found = any(map(self._known.get, above))
            self._known.update(dict.fromkeys([var] if found else above, found))
        return self._known[var]


class Lifting:
    """Moves an index, of arrays of `ndim` axes, as far up a graph as possible.

    `part` is a node that joins parts, and the number of the part that the index takes,
    through checks of parameters as well. `meets_data` is whether an index has reached
    data.
    """

    def __init__(
        self, computed: Computed, ndim: int, part: tuple[Apply, int] | None = None
    ) -> None:
        self._computed, self._n, self._part = computed, ndim, part
        self._known: dict[Any, Any] = {}
        self.meets_data = False

    def of(self, var: Variable, index: Index) -> Any:
        """Return entries of a variable: the index's axes first, then the others."""
        if not index:
            return _in_order(var, ["x"] * self._n + [*range(var.type.ndim)])  # type: ignore[attr-defined]
        key = var, tuple((axis, id(each)) for axis, each in sorted(index.items()))
        if key not in self._known:
            self._known[key] = self._of(var, dict(index)), index
        return self._known[key][0]

    def _of(self, var: Any, index: dict[int, Any]) -> Any:
        is_data = var not in self._computed
        self.meets_data = self.meets_data or is_data
        if is_data or var.owner is None:
            return _indexed(var, index)
        for kind, rule in (
            (Elemwise, self._elementwise),
            (Check if self._part else (), self._checked),
            (DimShuffle, self._shuffled),
            (Dot, self._product),
            (CAReduce, self._reduced),
            (Alloc, self._spread),
            (Join, self._joined),
            ((Subtensor, *TAKING), self._taken),
            (OpFromGraph, self._inside),
        ):
            if isinstance(var.owner.op, kind):
                found = rule(var.owner, index)
                return _indexed(var, index) if found is None else found
        return _indexed(var, index)

    def _broadcast(self, var: Any, index: Index, ndim: int) -> Any:
        """Return entries of an operand that is broadcast to `ndim` axes."""
        missing = ndim - var.type.ndim
        own = {a - missing: each for a, each in index.items() if a >= missing}
        long = {a: e for a, e in own.items() if var.type.shape[a] != 1}
        found = self.of(var, long)
        axes: list[Any] = list(range(self._n))
        place = self._n
        for axis in range(-missing, var.type.ndim):
            if axis < 0:
                axes += [] if axis + missing in index else ["x"]
            elif axis not in long:
                axes += [] if axis in own else [place]
                place += 1
        return _in_order(found, axes)

    def _elementwise(self, node: Apply, index: Index) -> Any:
        ndim = node.outputs[0].type.ndim  # type: ignore[attr-defined]
        inputs = [self._broadcast(var, index, ndim) for var in node.inputs]
        return remade(node, inputs)[0]

    def _checked(self, node: Apply, index: Index) -> Any:
        """Return entries of a checked density, with conditions on these alone."""
        first, *conditions = node.inputs
        taken = self.of(first, index)
        return remade(
            node, [taken, *(self._condition(c, first, index) for c in conditions)]
        )[0]

    def _condition(self, condition: Any, density: Any, index: Index) -> Any:
        node = condition.owner
        if node is None or condition not in self._computed:
            return condition
        array = node.inputs[0]
        of_vector = array.owner is not None and isinstance(array.owner.op, MakeVector)
        if isinstance(node.op, All) and not of_vector:
            ndim, kinds = density.type.ndim, (array.type.shape, density.type.shape)
            same = array.type.ndim == ndim and None not in kinds[0]
            if same and all(a in (1, b) for a, b in zip(*kinds, strict=True)):
                return pt.all(self._broadcast(array, index, ndim))
        elif isinstance(node.op, (All, *_OF_CONDITIONS)):
            inputs = [self._condition(v, density, index) for v in node.inputs]
            return remade(node, inputs)[0]
        return condition

    def _inside(self, node: Apply, index: Index) -> Any:
        """Return entries of an Op with an inner graph, which replaces the Op."""
        return self.of(inlined(node)[0], index) if len(node.outputs) == 1 else None

    def _shuffled(self, node: Apply, index: Index) -> Any:
        (var,), order = node.inputs, list(node.op.new_order)  # type: ignore[attr-defined]
        inner = {order[a]: each for a, each in index.items() if order[a] != "x"}
        found = self.of(var, inner)
        kept = [a for a in range(var.type.ndim) if a not in inner]  # type: ignore[attr-defined]
        places = {a: self._n + i for i, a in enumerate(kept)}
        rest = [
            "x" if source == "x" else places[source]
            for axis, source in enumerate(order)
            if axis not in index
        ]
        return found.dimshuffle([*range(self._n), *rest])

    def _product(self, node: Apply, index: dict[int, Any]) -> Any:
        a, b = node.inputs
        of_a = index.pop(0, None) if a.type.ndim == 2 else None  # type: ignore[attr-defined]
        of_b = next(iter(index.values()), None)
        if of_a is not None and of_b is not None:
            return (self.of(a, {0: of_a}) * self.of(b, {1: of_b})).sum(axis=-1)
        if of_a is not None:
            return _dot(self.of(a, {0: of_a}), b)
        found = self.of(b, {1: of_b})
        return _dot(found, a.T if a.type.ndim == 2 else a)  # type: ignore[attr-defined]

    def _reduced(self, node: Apply, index: Index) -> Any:
        (var,), op = node.inputs, node.op
        ndim = var.type.ndim  # type: ignore[attr-defined]
        axes = range(ndim) if op.axis is None else [a % ndim for a in op.axis]  # type: ignore[attr-defined]
        kept = [a for a in range(ndim) if a not in axes]
        inner = {kept[a]: each for a, each in index.items()}
        rest = [a for a in range(ndim) if a not in inner]
        found = self.of(var, inner)
        places = tuple(self._n + rest.index(a) for a in axes)
        return op.clone(axis=places)(found)  # type: ignore[attr-defined]

    def _spread(self, node: Apply, index: Index) -> Any:
        """Return entries of an `Alloc`; None for a slice."""
        var, *lengths = node.inputs
        found = self._broadcast(var, index, len(lengths))
        first: Any = next(iter(index.values()))
        if isinstance(first, slice):
            return None
        rest = [each for axis, each in enumerate(lengths) if axis not in index]
        shape = [first.shape[axis] for axis in range(self._n)]
        if not rest and all(length != 1 for length in found.type.shape):
            return found
        return pt.alloc(found, *shape, *rest)

    def _joined(self, node: Apply, index: Index) -> Any:
        """Return entries of joined parts; None if they are of several parts."""
        if (found := joined_parts(node)) is None:
            return None
        along, parts, lengths = found
        if along not in index:
            kept = [a for a in range(node.outputs[0].type.ndim) if a not in index]  # type: ignore[attr-defined]
            taken = [self.of(part, index) for part in parts]
            return pt.join(self._n + kept.index(along), *taken)
        if len(index) > 1 or self._part is None:
            return None
        of, k = self._part
        # Or another node that joins parts of the same lengths.
        known: Any = joined_parts(of)
        if node is of or (None not in lengths and lengths == known[2]):
            return pt.moveaxis(parts[k], along, 0)
        return None

    def _taken(self, node: Apply, index: Index) -> Any:
        """Return entries of an indexed array, as entries of the array; or None."""
        var: Any = node.inputs[0]
        entries = _entries(node)
        arrays = [a for a, entry in enumerate(entries) if isinstance(entry, Variable)]
        if isinstance(node.op, Subtensor):  # its variables are numbers
            arrays = []
        kinds = [entries[a].type for a in arrays]
        if not entries or any(k.ndim != 1 or k.dtype == "bool" for k in kinds):
            return None
        if arrays and arrays != list(range(arrays[0], arrays[-1] + 1)):
            return None
        _, axes = layout(entries, 1 if arrays else 0)
        inner: dict[int, Any] = {}
        for axis, each in index.items():
            if (own := axes[axis]) < 0:
                inner |= {a: _indexed(entries[a], {0: each}) for a in arrays}
                continue
            if entries[own] != slice(None):
                length, known = var.type.shape[own], _known_slice(entries[own])
                if length is None or known is None:
                    return None
                numbers: Any = np.arange(length)[known]
                is_known = isinstance(each, (np.ndarray, slice))
                each = (numbers if is_known else pt.constant(numbers))[each]
            inner[own] = each
        if arrays and arrays[0] not in inner:
            return None
        rest = [entry for a, entry in enumerate(entries) if a not in inner]
        found = self.of(var, inner)
        if all(entry == slice(None) for entry in rest):
            return found
        return found[(*[slice(None)] * self._n, *rest)]


_OF_CONDITIONS = (Elemwise, MakeVector, ScalarFromTensor, TensorFromScalar)
"""Ops that combine conditions."""


def joined_parts(node: Apply) -> tuple[int, list[Any], list[int | None]] | None:
    """Return the axis along which a node joins, its parts, and their lengths.

    None if the axis is no constant. A length is None if unknown.
    """
    along, parts = split_axis(node, node.inputs)
    if not isinstance(along, int):
        return None
    along %= node.outputs[0].type.ndim  # type: ignore[attr-defined]
    return along, parts, [part.type.shape[along] for part in parts]


def _entries(node: Apply) -> list[Any]:
    """Return the entries of a node's index, one for each axis; [] if unknown."""
    try:
        entries = entries_of_index(node, 1)
    except Refused:
        return []
    return entries + [slice(None)] * (node.inputs[0].type.ndim - len(entries))  # type: ignore[attr-defined]


def _known_slice(entry: slice) -> slice | None:
    """Return a slice with its bounds as ints; None if one is no constant."""
    bounds: list[Any] = []
    for part in (entry.start, entry.stop, entry.step):
        if isinstance(part, Variable) and not isinstance(part, Constant):
            return None
        bounds.append(int(part.data) if isinstance(part, Constant) else part)
    return slice(*bounds)


def _dot(entries: Any, matrix: Any) -> Any:
    """Return the product of an array's last axis with a matrix or vector."""
    if entries.type.ndim <= 2:
        return pt.dot(entries, matrix)
    if matrix.type.ndim == 1:  # a product of matrices would merge two axes
        return (entries * matrix).sum(axis=-1)
    return pt.matmul(entries, matrix)


def _indexed(var: Any, index: Index) -> Any:
    """Return entries of an array by an index in place, with the index's axes first."""
    axes = sorted(index)
    entries = [index[axis] for axis in axes]
    are_known = all(isinstance(each, (np.ndarray, slice)) for each in entries)
    if isinstance(var, Constant) and are_known:
        moved = np.moveaxis(np.asarray(var.data), axes, range(len(axes)))
        return pt.constant(moved[tuple(entries)])
    rest = [axis for axis in range(var.type.ndim) if axis not in index]
    first = _in_order(var, [*axes, *rest])
    return first[
        tuple(e if isinstance(e, slice) else pt.as_tensor_variable(e) for e in entries)
    ]


def _in_order(var: Any, order: Sequence[Any]) -> Any:
    """Return an array with its axes in `order`, as by `dimshuffle`; constants stay."""
    if list(order) == list(range(var.type.ndim)):
        return var
    if not isinstance(var, Constant):
        return var.dimshuffle(order)
    data = np.asarray(var.data)
    kept = [axis for axis in order if axis != "x"]
    dropped = tuple(axis for axis in range(data.ndim) if axis not in kept)
    moved = data.transpose([*kept, *dropped]).reshape([data.shape[a] for a in kept])
    new = tuple(place for place, axis in enumerate(order) if axis == "x")
    return pt.constant(np.expand_dims(moved, new))


# -- gathered rows


def with_gathered_data(
    graph: Sequence[Variable], free: Sequence[Variable]
) -> list[Variable]:
    """Return graphs in which indices of gathered rows are lifted to the data.

    `free` are the graphs' free variables; all other leaves are data.
    """
    computed = Computed(free)
    at_once = _needed_at_once(io_toposort([], list(graph)))

    def visit(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        if not isinstance(node.op, (*TAKING, Subtensor)) or inputs[0] not in computed:
            return None
        index = _gathered(node, inputs)
        if index is None:
            return None
        axis, lifting = min(index), Lifting(computed, 1)
        first = index[axis]
        is_reversed = isinstance(first, slice) and first == slice(None, None, -1)
        if is_reversed and node in at_once:
            return None
        found = lifting.of(inputs[0], index)
        if not lifting.meets_data:
            return None
        order = [*range(1, axis + 1), 0, *range(axis + 1, found.type.ndim)]
        return [_in_order(found, order)]

    return rebuilt(graph, visit)


def _needed_at_once(nodes: Sequence[Apply]) -> set[Apply]:
    """Return the nodes from which cumulative sums are computed element by element.

    Every rank needs all rows of such a sum. If the rows are reversed, as in a partial
    likelihood, each rank should compute its own rows, and exchange them before they are
    reversed. With reversed data, every rank would compute all rows.
    """
    found: set[Apply] = set()
    for node in reversed(nodes):
        if node in found or isinstance(node.op, CumOp):
            for var in node.inputs:
                is_passed_on = isinstance(node.op, (CumOp, Elemwise, DimShuffle))
                if var.owner is not None and is_passed_on:
                    found.add(var.owner)
    return found


def _gathered(node: Apply, inputs: list[Variable]) -> Index | None:
    """Return the index by which a node gathers rows, or None if it is no such index.

    It has one entry that is no full slice: a slice, integers, or a mask, which may be
    of several axes, as of the observed values in a matrix.
    """
    gathered = [(a, e) for a, e in enumerate(_entries(node)) if e != slice(None)]
    if len(gathered) != 1:
        return None
    ((axis, entry),) = gathered
    if isinstance(entry, slice):
        known = _known_slice(entry)
        return None if known is None else {axis: known}
    is_known = isinstance(entry, Constant)
    if not isinstance(entry.type, DenseTensorType) or not (
        is_known or entry.owner is None  # else it is computed
    ):
        return None
    if entry.type.ndim and entry.type.dtype == "bool":
        found = np.nonzero(entry.data) if is_known else pt.nonzero(entry)
        return dict(enumerate(found, axis))
    if entry.type.ndim != 1:
        return None
    had, has = inputs[0].type.shape[axis], entry.type.shape[0]  # type: ignore[attr-defined]
    if None in (had, has) or has > had:
        return None
    return {axis: entry.data if is_known else entry}
