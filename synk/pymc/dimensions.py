"""The dimension of each term of a density whose entries are the rows for the ranks."""

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
from .terms import ComputedPart, Sources, is_constant_along, is_view

FEW = 3
"""A dimension with at most this many entries gives the rows only if no other does."""

MUCH = 4
"""A dimension with this many times the work is preferred to a likelihood's own."""


@dataclass
class Dimension:
    """A dimension of the data, and the terms of a density whose rows it gives.

    `work` is the number of elements that a call computes along it, for these terms.
    """

    axis: Axis
    length: int
    terms: list[int] = field(default_factory=list)
    work: int = 0


class Dimensions:
    """The dimensions of the terms of a density, their lengths, and the work along them.

    `sums` are the terms, and `free` has the shapes of the free variables.
    """

    def __init__(
        self, sums: Sequence[Variable], free: Mapping[Variable, tuple[int, ...]]
    ) -> None:
        self.sums, self._free = list(sums), dict(free)
        self.given = ComputedPart(self.sums, list(free))
        self._axes = Axes(self.sums)
        self._used = [
            (node, i)
            for node, i in self.given.uses
            if isinstance(node.inputs[i].type, DenseTensorType)
        ]
        self.sources = Sources([node.inputs[i] for node, i in self._used])
        self._measure()
        # Inputs that are row numbers: the axis that they index, and their own axis.
        self.row_indices: dict[tuple[Apply, int], tuple[int, int]] = {}
        self._join_indexed()

    def _join_indexed(self) -> None:
        """Join the dimension of row numbers with the dimension that they index."""
        uses = self.given.uses
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
        """Find the lengths of all dimensions of data and free variables."""
        # The largest, as an axis of a dimension may be broadcast.
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
        """Return the dimensions of the terms' rows, those with the most work first.

        A term is in none if it has no data along a dimension. Dimensions are left out
        if no data of their terms differ along them, as for a prior of many groups.
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
        """Return whether data of a dimension's own terms differ along it.

        Data of other terms do not count: these terms may be priors of their groups.
        """
        above = set(ancestors([self.sums[i] for i in dimension.terms]))
        return any(
            not is_constant_along(node.inputs[i], axis)
            for node, i in self._used
            if not above.isdisjoint(node.outputs)
            for axis in self.along_input(node, i, dimension.axis)
        )

    def _rows_of(self, total: Variable, counted: Mapping[Axis, int]) -> Axis:
        """Return the dimension whose entries are the rows of a term.

        `counted` has the work by dimension. A dimension over which the term is summed
        is preferred, unless another has `MUCH` times the work. A dimension of `FEW`
        entries, such as coordinates, is too short for ranks if there is a longer one.
        """
        axes = [a for a in counted if self.lengths[a] > FEW] or list(counted)
        most = max(counted[a] for a in axes)
        own = self._summed_over(total)
        rows = [a for a in axes if a in own and counted[a] * MUCH >= most]
        return max(rows or axes, key=lambda a: counted[a] * (1 - 1 / self.lengths[a]))

    def _summed_over(self, total: Variable) -> set[Axis]:
        """Return the dimensions over which a term is a sum."""
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
        """Return the number of elements that a node computes, by dimension."""
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
        """Return the axes of a variable, no constant, that are of a dimension."""
        return [a for a, axis in enumerate(self._axes.of(var)) if axis == dimension]

    def along_input(self, node: Apply, i: int, dimension: Axis) -> list[int]:
        """Return the axes of a node's input that are of a dimension."""
        axes = self._axes.of_input(node, i)
        return [a for a, axis in enumerate(axes) if axis == dimension]

    def makers(self, dimension: Axis) -> list[Variable]:
        """Return the free variables above nodes that create an axis of a dimension.

        No input of such a node has that axis. An example are n - 1 free values, from
        which n are made that add up to 0 or 1.
        """
        found: set[Variable] = set()
        for node in self.given.nodes:
            if any(self.along(var, dimension) for var in node.outputs) and not any(
                self.along_input(node, i, dimension) for i in range(len(node.inputs))
            ):
                found.update(ancestors(node.inputs))
        return [var for var in self._free if var in found]


def _source(node: Apply, i: int) -> tuple[tuple[Apply, int], Variable]:
    """Return the node and input index, and the variable, that an input is a view of."""
    var = node.inputs[i]
    while var.owner is not None and is_view(var.owner):
        node, i = var.owner, 0
        var = node.inputs[0]
    return (node, i), var


def _row_indices(node: Apply) -> Iterator[tuple[int, int, int]]:
    """Yield inputs that may be row numbers, as in ``p[arange(len(y)), y]``.

    Each is (i, axis, own): input i indexes `axis`, and its numbers lie along its axis
    `own`. If they are row numbers, the indexed array has the same rows as the index.
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
        # An `arange`, or a constant: row numbers now will be row numbers later.
        is_one = var.owner is not None and isinstance(var.owner.op, ARange)
        if isinstance(var, Constant):
            is_one = var.type.dtype != "bool"  # type: ignore[attr-defined]
        shape: Any = getattr(entry.type, "shape", ())
        long = [a for a, length in enumerate(shape) if length != 1]
        if is_one and len(long) == 1:
            yield i, axis, long[0]
