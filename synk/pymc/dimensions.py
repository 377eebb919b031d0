"""Which dimension's entries ranks share between them, for each term of a density."""

from __future__ import annotations

import math
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
    """

    def __init__(
        self, sums: Sequence[Variable], free: Mapping[Variable, tuple[int, ...]]
    ) -> None:
        self.sums, self._free = list(sums), dict(free)
        self.given = Given(self.sums, list(free))
        self._axes = Axes(self.sums)
        self._used = [
            (node, i)
            for node, i in self.given.uses
            if isinstance(node.inputs[i].type, DenseTensorType)
        ]
        self.sources = Sources([node.inputs[i] for node, i in self._used])
        self._measure()
        # Inputs that are the numbers of rows: the axis that they index, and their own.
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
                one = self._axes.of(node.inputs[0])[axis]
                values = np.asarray(self.sources.values[var])
                rows = np.arange(self.lengths.get(one, -1))
                if np.array_equal(values.ravel(), rows):
                    self._axes.join(one, self._axes.of_input(node, i)[own])
                    self.row_indices[node, i] = axis, own
        if self.row_indices:
            self._measure()

    def _measure(self) -> None:
        """Find how long each dimension is of which data or free variables have one."""
        # Of an axis that is broadcast, that of the others counts.
        self.lengths: dict[Axis, int] = {}
        self._of_data: set[Axis] = set()
        found = []
        for node, i in self._used:
            axes = self._axes.of_input(node, i)
            self._of_data.update(axes)
            found.append((axes, np.shape(self.sources.values[node.inputs[i]])))
        found += [(self._axes.of(var), shape) for var, shape in self._free.items()]
        for axes, shape in found:
            for axis, length in zip(axes, shape, strict=True):
                self.lengths[axis] = max(length, self.lengths.get(axis, 1))

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
            known = found.setdefault(axis, Dimension(axis, self.lengths[axis]))
            known.terms.append(i)
            known.work += counted[axis]
        shared = [each for each in found.values() if self._has_data(each)]
        return sorted(shared, key=lambda each: -each.work)

    def _has_data(self, dimension: Dimension) -> bool:
        """Tell whether data of some of a dimension's terms lie along it, not all alike.

        Those of other terms may do so: of groups which these terms are priors of.
        """
        above = set(ancestors([self.sums[i] for i in dimension.terms]))
        return any(
            not are_alike(node.inputs[i], axis)
            for node, i in self._used
            if not above.isdisjoint(node.outputs)
            for axis in self.along_input(node, i, dimension.axis)
        )

    def _rows_of(self, total: Variable, counted: Mapping[Axis, int]) -> Axis:
        """Return the dimension whose entries are the rows of a term.

        Of what a likelihood has a value for each, its rows, unless another has much
        more to do with it; and never one of few entries, as of coordinates, beside one
        of more: it would be too short for the ranks.
        """
        axes = [a for a in counted if self.lengths[a] > FEW] or list(counted)
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
            if var.owner is None or not isinstance(var.type, DenseTensorType):
                continue
            if var.type.ndim:
                found.update(self._axes.of(var))
            elif isinstance(var.owner.op, (CAReduce, Elemwise)):
                left += var.owner.inputs
        return found

    def _work(self, node: Apply) -> dict[Axis, int]:
        """Return along which dimensions a node computes, and how many elements."""
        axes_of = [self._axes.of_input(node, i) for i in range(len(node.inputs))]
        axes_of += map(self._axes.of, node.outputs)
        counted: dict[Axis, int] = {}
        for var, axes in zip([*node.inputs, *node.outputs], axes_of, strict=True):
            fixed: Any = var.type.shape if axes else ()  # type: ignore[attr-defined]
            size = math.prod(
                1 if length == 1 else self.lengths.get(axis, length or 1)
                for axis, length in zip(axes, fixed, strict=True)
            )
            for axis in axes:
                counted[axis] = max(size, counted.get(axis, 0))
        return counted

    def along(self, var: Variable, dimension: Axis) -> list[int]:
        """Return which axes of a variable, no constant, are of a dimension."""
        return [a for a, axis in enumerate(self._axes.of(var)) if axis == dimension]

    def along_input(self, node: Apply, i: int, dimension: Axis) -> list[int]:
        """Return which axes of an input of a node are of a dimension."""
        axes = self._axes.of_input(node, i)
        return [a for a, axis in enumerate(axes) if axis == dimension]

    def makers(self, dimension: Axis) -> list[Variable]:
        """Return the free variables of which something gets an axis of a dimension.

        None has that axis itself: so of all values but one those are made that add up
        to 0, or to 1.
        """
        found: set[Variable] = set()
        for node in self.given.nodes:
            if any(self.along(var, dimension) for var in node.outputs) and not any(
                self.along_input(node, i, dimension) for i in range(len(node.inputs))
            ):
                found.update(ancestors(node.inputs))
        return [var for var in self._free if var in found]


def _source(node: Apply, i: int) -> tuple[tuple[Apply, int], Variable]:
    """Return where an input, a view of data, has that from."""
    var = node.inputs[i]
    while var.owner is not None and is_view(var.owner):
        node, i = var.owner, 0
        var = node.inputs[0]
    return (node, i), var


def _row_indices(node: Apply) -> Iterator[tuple[int, int, int]]:
    """Yield where an input may be the numbers of rows, as in ``p[arange(len(y)), y]``.

    Each is told by its place, by the axis that it indexes, and by its own axis along
    which the numbers are. It takes from each row something of its own: so what is
    indexed has rows where the index does.
    """
    try:
        entries = entries_of_index(node, 1) if isinstance(node.op, TAKING) else []
    except Refused:
        return
    for axis, entry in enumerate(entries):
        if not isinstance(entry, Variable):
            continue
        i = node.inputs.index(entry)
        _, var = _source(node, i)
        # It stays the numbers of rows if it has such now.
        is_one = var.owner is not None and isinstance(var.owner.op, ARange)
        if isinstance(var, Constant):
            is_one = var.type.dtype != "bool"  # type: ignore[attr-defined]
        shape: Any = getattr(entry.type, "shape", ())
        long = [a for a, length in enumerate(shape) if length != 1]
        if is_one and len(long) == 1:
            yield i, axis, long[0]
