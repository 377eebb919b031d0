"""The nodes of a placed graph: what their values are, how often ranks meet before.

A *placed* value is one of which the rules know what it is (see `domain`).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import Op
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.type import DenseTensorType

from ...ops import AllGather, is_collective
from ..cloning import with_inputs
from ..domain import Value
from ..rules.base import literal
from ..walk import apply_rule


class Nodes:
    """The placed variables of one graph, and what they are."""

    def __init__(
        self,
        rows: Sequence[Variable],
        known: dict[Variable, Value],
        as_long: Iterable[Variable],
    ) -> None:
        self.values = dict(known)
        self.of_rows = set(rows)
        """What is a function of a rank's own rows, and was not reduced."""
        self.as_long = set(as_long)
        """What may be as long as all rows, where the user's graph has a rank's own."""
        self.asserted: dict[Variable, Value] = {}
        """What is known not by a rule, but by how it was made."""
        self._same: dict[Op, dict[tuple, Apply]] = {}
        self._equal: dict[Variable, Variable] = {}
        self._levels: dict[Variable, int] = {}

    def value(self, var: Variable) -> Value:
        """Return what a placed variable is."""
        if var not in self.values:
            assert var.owner is None, f"{var} was not placed"
            self.values[var] = literal(var)
        return self.values[var]

    def add(self, node: Apply) -> Apply:
        """Take a node of placed variables, or the equal one that is there already."""
        return self._added(node, self._equals(node.op), self._key_of(node.inputs))

    def _added(self, node: Apply, equals: dict[tuple, Apply], key: tuple) -> Apply:
        if key in equals:
            return equals[key]
        equals[key] = node
        values = apply_rule(node, [self.value(var) for var in node.inputs])
        is_meeting = is_collective(node)
        here = not is_meeting and not self.of_rows.isdisjoint(node.inputs)
        if not self.as_long.isdisjoint(node.inputs) or isinstance(node.op, AllGather):
            self.as_long.update(node.outputs)
        level = max(map(self.level, node.inputs), default=0) + is_meeting
        for var, value in zip(node.outputs, values, strict=True):
            self.values[var] = value
            self._levels[var] = level
            if here:
                self.of_rows.add(var)
        return node

    def _equals(self, op: Op) -> dict[tuple, Apply]:
        """Return the nodes of an Op, by what they take; to hash an Op takes long."""
        found = self._same.get(op)
        if found is None:
            found = self._same[op] = {}
        return found

    def _key_of(self, inputs: Sequence[Variable]) -> tuple:
        return tuple([_key(self._equal.get(var, var)) for var in inputs])

    def add_as_it_is(self, node: Apply) -> None:
        """Take a node of the user's, be there an equal one or not.

        PyTensor merges them, and what goes on from there need not be made again. Only
        reductions must not be twice: they are those of the first.
        """
        found = self.add(node)
        if found is node:
            return
        for var, first in zip(node.outputs, found.outputs, strict=True):
            self._equal[var] = first
            self.values[var] = self.values[first]
            self._levels[var] = self.level(first)
            for known in (self.of_rows, self.as_long):
                if first in known:
                    known.add(var)
            if first in self.asserted:
                self.asserted[var] = self.asserted[first]

    def level(self, var: Variable) -> int:
        """Return how many meetings of the ranks there are before it is known."""
        return self._levels.get(var, 0)

    def take(self, node: Apply, value: Value) -> None:
        """Take a node of the user's graph as it is, with what its outputs are."""
        for var in node.outputs:
            self.values[var] = value
            self._levels[var] = int(is_collective(node))
            if isinstance(node.op, (Shape, Shape_i)):
                self.asserted[var] = value
                self.of_rows.add(var)

    def of(self, graph: Variable) -> Variable:
        """Take an expression of placed variables; return its result among them."""
        node = graph.owner
        if node is None or graph in self.values:
            return graph
        return self.anew(graph, [self.of(var) for var in node.inputs])

    def again(self, node: Apply, inputs: Sequence[Variable]) -> Apply:
        """Take a node with other inputs; those of another type are converted."""
        if _are_same(inputs, node.inputs):
            self.add_as_it_is(node)
            return node
        equals, key = self._equals(node.op), self._key_of(inputs)
        if key in equals:
            return equals[key]
        made = with_inputs(node, inputs)
        if _are_same(inputs, made.inputs):
            return self._added(made, equals, key)
        converted = [self.of(var) for var in made.inputs]
        if _are_same(converted, made.inputs):
            return self.add(made)
        return self.again(made, converted)

    def anew(self, var: Variable, inputs: Sequence[Variable]) -> Variable:
        """Return what stands for a variable if its node has other inputs."""
        node = var.owner
        assert node is not None
        return self.again(node, inputs).outputs[node.outputs.index(var)]

    def known_as(self, graph: Variable, value: Value) -> Variable:
        """Take an expression of which more is known than the rules can tell."""
        found = self.of(graph)
        self.values[found] = self.asserted[found] = value
        self.of_rows.add(found)
        return found

    def first_of(self, var: Variable) -> Variable:
        """Return the first of the equal variables of which this is one."""
        return self._equal.get(var, var)


def _are_same(inputs: Sequence[Variable], others: Sequence[Variable]) -> bool:
    return all(map(operator.is_, inputs, others))


def _key(var: Variable) -> Any:
    if var.owner is not None:
        return var
    if isinstance(var, Constant) and isinstance(var.type, DenseTensorType):
        data = np.asarray(var.data)
        if data.size <= 16:
            return data.dtype, data.shape, data.tobytes()
    return var


@dataclass
class CallVariables:
    """Integers, and lengths; no rows."""

    total: Variable
    """The number of rows on all ranks, to compute with."""
    first: Variable
    """How many rows come before the first of this rank's, or of this slice's."""
    as_long: Variable
    """An array as long as all rows are, of rows without elements: shapes that follow
    from its shape JAX knows when it compiles, and those from `total` it does not."""
    none_of: dict[int, Variable] = field(default_factory=dict)
    """By the number of an input with rows, an array of none of its rows, from whose
    shape ranks without any know how long the other axes are."""

    @classmethod
    def new(cls) -> CallVariables:
        """Make the variables."""
        as_long = pt.tensor("as_long_as_all_rows", shape=(None, 0), dtype="int8")
        return cls(pt.lscalar("rows_of_all_ranks"), pt.lscalar("first_row"), as_long)

    def none(self, i: int, like: Variable) -> Any:
        """Return an array of none of an input's rows."""
        if i not in self.none_of:
            shape = 0, *like.type.shape[1:]
            # Not `pt.tensor`, to which a name such as "<Matrix(int8)>" may be a dtype.
            self.none_of[i] = pt.TensorType("int8", shape)(f"none_of_{like}")
        return self.none_of[i]

    def variables(self) -> list[Variable]:
        """Return all of them."""
        return [self.total, self.first, self.as_long, *self.none_of.values()]

    @property
    def length(self) -> Any:
        """The number of rows on all ranks, as a length."""
        as_long: Any = self.as_long
        return as_long.shape[0]
