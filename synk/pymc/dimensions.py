"""Which dimension's entries ranks share between them, for each term of a density."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.basic import ARange
from pytensor.tensor.elemwise import CAReduce, Elemwise
from pytensor.tensor.type import DenseTensorType

from ..compiler.domain import Refused
from ..compiler.rules.base import TAKING
from ..compiler.rules.index import entries_of_index
from .axes import Axes, Axis
from .terms import Given, Sources, are_alike, is_view

FEW = 3
"""Entries of a dimension that are no rows where there are others."""

MUCH = 4
"""As many times as much to do with another dimension: that has the rows then."""


@dataclass
class Dimension:
    """A dimension of the data, and the terms of a density that it has most to do with.

    `work` is how many elements a call computes along it.
    """

    axis: Axis
    length: int
    terms: list[int] = field(default_factory=list)
    work: int = 0


class Dimensions:
    """The dimensions of the terms of a density, their lengths, and the work along them.

    `free` has the variables that the density is of, with their shapes.

    Attributes
    ----------
    lengths : dict of Axis to int
        Of each dimension of which data or free variables have one.
    row_indices : dict of (Apply, int) to (int, int)
        Inputs that are the numbers of rows: the axis that they index, and their own.
    """

    def __init__(
        self, sums: Sequence[Variable], free: Mapping[Variable, tuple[int, ...]]
    ) -> None:
        self.sums, self._free = list(sums), dict(free)
        self.given = Given(self.sums, list(free))
        self.axes = Axes(self.sums)
        used = [node.inputs[i] for node, i in self.given.uses]
        self.sources = Sources([v for v in dict.fromkeys(used) if _is_array(v)])
        self._of_data: set[Axis] = set()
        self.lengths = self._measure()
        self.row_indices: dict[tuple[Apply, int], tuple[int, int]] = {}
        self._join_indexed()

    def _join_indexed(self) -> None:
        """Join the dimensions of what the numbers of rows index, and of these."""
        uses = set(self.given.uses)
        for node in self.given.nodes:
            for i, axis, own in _row_indices(node):
                key, var = (node, i), node.inputs[i]
                if key not in uses:
                    key, var = _source(node, i)
                if key not in uses or isinstance(node.inputs[0], Constant):
                    continue
                one = self.axes.of(node.inputs[0], axis)
                values = np.asarray(self.sources.values[var])
                if _counts_rows(values, self.lengths.get(one, -1)):
                    self.axes.join(one, self.axes.of_input(node, i, own))
                    self.row_indices[node, i] = axis, own
        if self.row_indices:
            self._of_data = set()
            self.lengths = self._measure()

    def _measure(self) -> dict[Axis, int]:
        """Return how long each dimension is of which data or free variables have one.

        Raises
        ------
        ValueError
            If one has two lengths: an error of the model's.
        """
        lengths: dict[Axis, int] = {}
        for node, i in self.given.uses:
            var = node.inputs[i]
            if not _is_array(var):
                continue
            shape = np.shape(self.sources.values[var])
            axes = self.axes.all_of_input(node, i)
            for axis, length in zip(axes, shape, strict=True):
                self._of_data.add(axis)
                lengths[axis] = max(length, lengths.get(axis, 1))
        for var, shape in self._free.items():
            for a, length in enumerate(shape):
                axis = self.axes.of(var, a)
                lengths[axis] = max(length, lengths.get(axis, 1))
        return lengths

    def of_terms(self) -> list[Dimension]:
        """Return the dimensions that terms have most to do with, the largest first.

        Terms without data along a dimension are in none, and nor are those along one of
        which no data of theirs tell entries apart: as of a prior of many groups.
        """
        work = {node: self._work(node) for node in self.given.nodes}
        found: dict[Axis, Dimension] = {}
        for i, total in enumerate(self.sums):
            counted: Counter[Axis] = Counter()
            for var in ancestors([total]):
                if var.owner in work and var is var.owner.outputs[0]:
                    counted.update(work[var.owner])
            for axis in list(counted):
                if axis not in self._of_data or self.lengths.get(axis, 1) < 2:
                    del counted[axis]
            if not counted:
                continue
            axis = self._rows_of(total, counted)
            most = counted[axis]
            known = found.setdefault(axis, Dimension(axis, self.lengths[axis]))
            known.terms.append(i)
            known.work += most
        shared = [each for each in found.values() if self._has_data(each)]
        return sorted(shared, key=lambda each: -each.work)

    def _has_data(self, dimension: Dimension) -> bool:
        """Tell whether data of some of a dimension's terms lie along it, not all alike.

        Those of other terms may do so: of groups which these terms are priors of.
        """
        above = set(ancestors([self.sums[i] for i in dimension.terms]))
        return any(
            not are_alike(node.inputs[i], axis)
            for node, i in self.given.uses
            if not above.isdisjoint(node.outputs)
            for axis in self.along_input(node, i, dimension.axis)
        )

    def _rows_of(self, total: Variable, counted: Mapping[Axis, int]) -> Axis:
        """Return the dimension whose entries are the rows of a term.

        Of what a likelihood has a value for each, its rows, unless another has much
        more to do with it; and never one of few entries, as of coordinates, beside one
        of more: it would be too short for the ranks.
        """
        axes = list(counted)
        long = [a for a in axes if self.lengths[a] > FEW]
        axes = long or axes
        most = max(counted[a] for a in axes)
        own = self._summed_over(total)
        rows = [a for a in axes if a in own and counted[a] * MUCH >= most]
        return max(rows or axes, key=lambda a: counted[a] * (1 - 1 / self.lengths[a]))

    def _summed_over(self, total: Variable) -> set[Axis]:
        """Return the dimensions of what a term is the sum of."""
        found: set[Axis] = set()
        left = [total]
        while left:
            var = left.pop()
            if not _is_array(var) or var.owner is None:
                continue
            if var.type.ndim:  # type: ignore[attr-defined]
                found.update(self._axes_of(var))
            elif isinstance(var.owner.op, (CAReduce, Elemwise)):
                left += var.owner.inputs
        return found

    def _work(self, node: Apply) -> dict[Axis, int]:
        """Return along which dimensions a node computes, and how many elements."""
        arrays = [self._axes_of_input(node, i) for i in range(len(node.inputs))]
        arrays += [self._axes_of(var) for var in node.outputs]
        counted: dict[Axis, int] = {}
        for var, axes in zip([*node.inputs, *node.outputs], arrays, strict=True):
            if not axes:
                continue
            shape: Any = var.type.shape  # type: ignore[attr-defined]
            size = 1
            for axis, fixed in zip(axes, shape, strict=True):
                size *= self.lengths.get(axis, fixed or 1) if fixed != 1 else 1
            for axis in axes:
                counted[axis] = max(size, counted.get(axis, 0))
        return counted

    def _axes_of_input(self, node: Apply, i: int) -> list[Axis]:
        return self.axes.all_of_input(node, i) if _is_array(node.inputs[i]) else []

    def _axes_of(self, var: Variable) -> list[Axis]:
        if not _is_array(var):
            return []
        return [self.axes.of(var, a) for a in range(var.type.ndim)]  # type: ignore[attr-defined]

    def along(self, var: Variable, dimension: Axis) -> list[int]:
        """Return which axes of a variable, no constant, are of a dimension."""
        return [a for a, axis in enumerate(self._axes_of(var)) if axis == dimension]

    def along_input(self, node: Apply, i: int, dimension: Axis) -> list[int]:
        """Return which axes of an input of a node are of a dimension."""
        axes = self._axes_of_input(node, i)
        return [a for a, axis in enumerate(axes) if axis == dimension]

    def makers(self, dimension: Axis) -> list[Variable]:
        """Return the free variables of which something gets an axis of a dimension.

        None has that axis itself: so of all values but one those are made that add up
        to 0, or to 1.
        """
        found: dict[Variable, None] = {}
        for node in self.given.nodes:
            if any(self.along(var, dimension) for var in node.outputs) and not any(
                self.along_input(node, i, dimension) for i in range(len(node.inputs))
            ):
                found.update(dict.fromkeys(ancestors(node.inputs)))
        return [var for var in self._free if var in found]


def _source(node: Apply, i: int) -> tuple[tuple[Apply, int], Variable]:
    """Return where an input, a view of data, has that from."""
    var = node.inputs[i]
    while var.owner is not None and is_view(var.owner):
        node, i = var.owner, 0
        var = node.inputs[0]
    return (node, i), var


def _is_array(var: Variable) -> bool:
    return isinstance(var.type, DenseTensorType)


def _row_indices(node: Apply) -> Iterator[tuple[int, int, int]]:
    """Yield where an input may be the numbers of rows, as in ``p[arange(len(y)), y]``.

    Each is told by its place, by the axis that it indexes, and by its own axis along
    which the numbers are. It takes from each row something of its own: so what is
    indexed has rows where the index does.
    """
    if not isinstance(node.op, TAKING):
        return
    try:
        entries = entries_of_index(node, 1)
    except Refused:
        return
    for axis, entry in enumerate(entries):
        if isinstance(entry, Variable) and _may_be_row_index(entry):
            shape: Any = entry.type.shape  # type: ignore[attr-defined]
            long = [a for a, length in enumerate(shape) if length != 1]
            if len(long) == 1:
                yield node.inputs.index(entry), axis, long[0]


def _may_be_row_index(var: Variable) -> bool:
    """Tell whether a variable stays the numbers of rows if it has such now."""
    while var.owner is not None and is_view(var.owner):
        var = var.owner.inputs[0]
    if isinstance(var, Constant):
        return var.type.dtype != "bool"
    return var.owner is not None and isinstance(var.owner.op, ARange)


def _counts_rows(values: np.ndarray, length: int) -> bool:
    """Tell whether values are 0, 1, 2, ... up to a length."""
    return values.size == length and np.array_equal(values.ravel(), np.arange(length))
