"""Entries of what is computed from data: computed from entries of the data.

What is reshaped, repeated or joined has the entries of something else in another
arrangement: ``pt.repeat(f(x), 4)`` is ``f(x)[[0, 0, 0, 0, 1, 1, ...]]``. With the index
taken to the data, as ``f(x[[0, 0, 0, 0, 1, 1, ...]])``, ranks can share the entries.
Where an index meets a free variable it stays there, as that of a group does.

So are rows gathered: of a linear predictor ``X @ slopes`` PyMC takes the rows that were
observed, and those with missing values, each for a density of its own. What has fewer
rows than are gathered, as effects of groups, stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import io_toposort
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

from ..compiler.cloning import inlined
from ..compiler.domain import Refused
from ..compiler.rules.base import TAKING, apart
from ..compiler.rules.index import entries_of_index
from .rebuilding import rebuilt, remade

Index = Mapping[int, Any]
"""Of some axes, arrays of one shape that say which entries are taken: data. Of one axis
it may be a slice."""


class Computed:
    """Tells what is computed in each call, from free variables."""

    def __init__(self, free: Sequence[Variable]) -> None:
        self._known: dict[Variable, bool] = dict.fromkeys(free, True)

    def __contains__(self, var: Variable) -> bool:
        left = [var]
        while left:
            each = left[-1]
            inputs = [] if each.owner is None else each.owner.inputs
            unknown = [v for v in inputs if v not in self._known]
            if each not in self._known and unknown:
                left += unknown
                continue
            left.pop()
            if each not in self._known:
                self._known[each] = any(self._known[v] for v in inputs)
        return self._known[var]


class Lifting:
    """Takes entries as far up a graph as it goes.

    Parameters
    ----------
    computed : Computed
    ndim : int
        Of the arrays of an index.
    part : (Apply, int), optional
        A node that joins parts, and which part the entries are.
    check : type, optional
        The Op that checks parameters, around a density.

    Attributes
    ----------
    meets_data : bool
        Whether entries of data were taken.
    """

    def __init__(
        self,
        computed: Computed,
        ndim: int,
        part: tuple[Apply, int] | None = None,
        check: type | None = None,
    ) -> None:
        self._computed, self._part = computed, part
        self._check: tuple[type, ...] = (check,) if check else ()
        self._n = ndim
        self._known: dict[Any, Any] = {}
        self.meets_data = False

    def of(self, var: Variable, index: Index) -> Any:
        """Return entries of a variable: their axes first, then those of no index."""
        if not index:
            return _in_order(var, ["x"] * self._n + [*range(var.type.ndim)])  # type: ignore[attr-defined]
        key = var, tuple((axis, id(each)) for axis, each in sorted(index.items()))
        if key not in self._known:
            self._known[key] = self._of(var, dict(index)), index
        return self._known[key][0]

    def _of(self, var: Any, index: dict[int, Any]) -> Any:
        if var not in self._computed:
            self.meets_data = True
            return _indexed(var, index)
        if var.owner is None:
            return _indexed(var, index)
        node, op = var.owner, var.owner.op
        for kind, rule in (
            (Elemwise, self._elementwise),
            (self._check, self._checked),
            (DimShuffle, self._shuffled),
            (Dot, self._product),
            (CAReduce, self._reduced),
            (Alloc, self._spread),
            (Join, self._joined),
            (Subtensor, self._sliced),
            (TAKING, self._taken),
            (OpFromGraph, self._inside),
        ):
            if isinstance(op, kind):
                found = rule(node, index)
                return _indexed(var, index) if found is None else found
        return _indexed(var, index)

    def _broadcast(self, var: Any, index: Index, ndim: int) -> Any:
        """Return entries of an operand, which is broadcast to a number of axes."""
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
        """Take a density's entries, under the conditions of these."""
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
        if isinstance(node.op, All) and not isinstance(_op_of(array), MakeVector):
            ndim, kinds = density.type.ndim, (array.type.shape, density.type.shape)
            same = array.type.ndim == ndim and None not in kinds[0]
            if same and all(a in (1, b) for a, b in zip(*kinds, strict=True)):
                return pt.all(self._broadcast(array, index, ndim))
            return condition
        if isinstance(node.op, (All, *_OF_CONDITIONS)):
            inputs = [self._condition(v, density, index) for v in node.inputs]
            return remade(node, inputs)[0]
        return condition

    def _inside(self, node: Apply, index: Index) -> Any:
        """Take entries of what a graph within an Op computes, put in its place."""
        if len(node.outputs) > 1:
            return None
        return self.of(inlined(node)[0], index)

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
        """Take entries of what is broadcast to a shape."""
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
        along, parts = apart(node, node.inputs)
        if not isinstance(along, int):
            return None
        along %= node.outputs[0].type.ndim  # type: ignore[attr-defined]
        if along not in index:
            kept = [a for a in range(node.outputs[0].type.ndim) if a not in index]  # type: ignore[attr-defined]
            taken = [self.of(part, index) for part in parts]
            return pt.join(self._n + kept.index(along), *taken)
        if len(index) > 1:
            return None
        lengths = [part.type.shape[along] for part in parts]
        if self._part is not None and self._is_part(node, lengths):
            return pt.moveaxis(parts[self._part[1]], along, 0)
        if None in lengths or not isinstance(index[along], np.ndarray):
            return None
        return self._of_parts(parts, lengths, along, index[along])

    def _is_part(self, node: Apply, lengths: list[int | None]) -> bool:
        """Tell whether a node joins parts as that does of which one is taken."""
        assert self._part is not None
        known = self._part[0]
        if node is known:
            return True
        others = apart(known, known.inputs)[1]
        ndim = known.outputs[0].type.ndim  # type: ignore[attr-defined]
        axis: Any = apart(known, known.inputs)[0]
        theirs = [part.type.shape[axis % ndim] for part in others]
        return None not in lengths and lengths == theirs

    def _of_parts(
        self, parts: Sequence[Any], lengths: Any, along: int, taken: np.ndarray
    ) -> Any:
        """Return entries of some parts: of each its own, where the index is in it."""
        ends = np.cumsum(lengths)
        which = np.searchsorted(ends, taken, side="right")
        found: Any = None
        for k, part in enumerate(parts):
            if not (which == k).any():
                continue
            first = ends[k] - lengths[k]
            inside = np.clip(taken - first, 0, lengths[k] - 1)
            entries = self.of(part, {along: inside})
            if found is None:
                found = entries
                continue
            mask = pt.constant(which == k)
            rest = entries.type.ndim - self._n
            found = pt.switch(pt.shape_padright(mask, rest), entries, found)
        return found

    def _sliced(self, node: Apply, index: Index) -> Any:
        """Take entries of a slice from what that was cut out of."""
        var: Any = node.inputs[0]
        entries = entries_of_index(node, 1)
        entries += [slice(None)] * (var.type.ndim - len(entries))
        kept = [a for a, entry in enumerate(entries) if isinstance(entry, slice)]
        inner: dict[int, Any] = {}
        for axis, each in index.items():
            entry, length = entries[kept[axis]], var.type.shape[kept[axis]]
            bounds = [_number(p) for p in (entry.start, entry.stop, entry.step)]
            if entry != slice(None) and (length is None or "?" in bounds):
                return None
            if entry != slice(None):
                numbers = np.arange(length)[slice(*bounds)]
                is_known = isinstance(each, (np.ndarray, slice))
                each = (numbers if is_known else pt.constant(numbers))[each]
            inner[kept[axis]] = each
        rest = [entry for a, entry in enumerate(entries) if a not in inner]
        found = self.of(var, inner)
        if all(entry == slice(None) for entry in rest):
            return found
        return found[(*[slice(None)] * self._n, *rest)]

    def _taken(self, node: Apply, index: Index) -> Any:
        """Take entries of an index, in place of those of what it has taken."""
        try:
            entries = entries_of_index(node, 1)
        except Refused:
            return None
        var: Any = node.inputs[0]
        entries += [slice(None)] * (var.type.ndim - len(entries))
        arrays = [a for a, entry in enumerate(entries) if isinstance(entry, Variable)]
        kinds = [entries[a].type for a in arrays]
        if any(kind.ndim != 1 or kind.dtype == "bool" for kind in kinds):
            return None
        if arrays != list(range(arrays[0], arrays[-1] + 1)) or len(index) > 1:
            return None
        if arrays[0] not in index or any(
            isinstance(entry, slice) and entry != slice(None) for entry in entries
        ):
            return None
        (each,) = index.values()
        return self.of(var, {a: _indexed(entries[a], {0: each}) for a in arrays})


_OF_CONDITIONS = (Elemwise, MakeVector, ScalarFromTensor, TensorFromScalar)
"""Ops that put conditions together."""


def _op_of(var: Variable) -> Any:
    return None if var.owner is None else var.owner.op


def _number(part: Any) -> Any:
    if part is None or isinstance(part, int):
        return part
    return int(part.data) if isinstance(part, Constant) else "?"


def _dot(entries: Any, matrix: Any) -> Any:
    """Return the products of rows that lie along some axes with a matrix or vector."""
    if entries.type.ndim <= 2:
        return pt.dot(entries, matrix)
    if matrix.type.ndim == 1:  # no product of matrices: that is of two axes, merged
        return (entries * matrix).sum(axis=-1)
    return pt.matmul(entries, matrix)


def _indexed(var: Any, index: Index) -> Any:
    """Return entries of an array, their axes first."""
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
    """Return an array with its axes in another order; of data, as data."""
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


# -- rows that are gathered


def with_gathered_data(
    graph: Sequence[Variable], free: Sequence[Variable]
) -> list[Variable]:
    """Return graphs in which rows are gathered from data, where they can be.

    Of the graphs, `free` are the leaves that are no data.
    """
    computed = Computed(free)
    at_once = _needed_at_once(io_toposort([], list(graph)))

    def visit(node: Apply, inputs: list[Variable]) -> list[Variable] | None:
        if inputs[0] not in computed or not isinstance(node.op, (*TAKING, Subtensor)):
            return None
        index = _gathered(node, inputs)
        if index is None or (node in at_once and _reverses(index)):
            return None
        axis, lifting = min(index), Lifting(computed, 1)
        found = lifting.of(inputs[0], index)
        if not lifting.meets_data:
            return None
        order = [*range(1, axis + 1), 0, *range(axis + 1, found.type.ndim)]
        return [_in_order(found, order)]

    return rebuilt(graph, visit)


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


def _reverses(index: Index) -> bool:
    """Tell whether an index is all entries, from the last to the first."""
    return any(
        isinstance(entry, slice) and entry == slice(None, None, -1)
        for entry in index.values()
    )


def _gathered(node: Apply, inputs: list[Variable]) -> Index | None:
    """Return the index by which a node gathers rows; None if it is not of one entry.

    That may be a mask of several axes, as of the observed values in a matrix.
    """
    try:
        entries = entries_of_index(node, 1)
    except Refused:
        return None
    gathered = [(a, e) for a, e in enumerate(entries) if e != slice(None)]
    if len(gathered) != 1:
        return None
    ((axis, entry),) = gathered
    if isinstance(entry, slice):
        bounds = [_number(p) for p in (entry.start, entry.stop, entry.step)]
        return None if "?" in bounds else {axis: slice(*bounds)}
    ndim = getattr(entry.type, "ndim", 0)
    is_mask = getattr(entry.type, "dtype", "") == "bool"
    if is_mask and ndim:
        if isinstance(entry, Constant):
            return dict(enumerate(np.nonzero(entry.data), axis))
        return dict(enumerate(pt.nonzero(entry), axis)) if _is_data(entry) else None
    if ndim != 1:
        return None
    had, has = inputs[0].type.shape[axis], entry.type.shape[0]  # type: ignore[attr-defined]
    if None in (had, has) or has > had or not _is_data(entry):
        return None
    return {axis: entry.data if isinstance(entry, Constant) else entry}


def _is_data(var: Variable) -> bool:
    return isinstance(var, Constant) or var.owner is None
