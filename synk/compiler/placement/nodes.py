"""The nodes of a placed graph: their values (see `domain`) and their levels.

A variable is *placed* once it has a `Value`. Its *level* is the number of meetings of
the ranks, one for each collective, on the longest way to it.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
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
    """The placed variables of one graph; equal nodes are merged.

    `known` has the values of the inputs with a rank's own rows, and `as_long` the first
    members of the attribute of that name.
    """

    def __init__(
        self, known: dict[Variable, Value], as_long: Iterable[Variable]
    ) -> None:
        self.values = dict(known)
        self.of_rows = set(known)
        """The variables that depend on a rank's own rows, other than by collectives."""
        self.as_long = set(as_long)
        """Variables that may be as long as all rows, where the user's graph has one
        that is as long as a rank's own."""
        self.asserted: dict[Variable, Value] = {}
        """Values that follow from how a variable was made, not from a rule."""
        # By Op and operands, the node that was added first; see `_equals`, `_key_of`.
        self._same: dict[Op, dict[tuple, Apply]] = {}
        # By variable of another equal node, that of the first.
        self._equal: dict[Variable, Variable] = {}
        self._levels: dict[Variable, int] = {}

    def value(self, var: Variable) -> Value:
        """Return the `Value` of a placed variable."""
        if var not in self.values:
            assert var.owner is None, f"{var} was not placed"
            self.values[var] = literal(var)
        return self.values[var]

    def add(self, node: Apply) -> Apply:
        """Add a node of placed variables; return it, or an equal one added before."""
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
        """Return the nodes of an Op, by operands; a hash of the Op takes long."""
        found = self._same.get(op)
        if found is None:
            found = self._same[op] = {}
        return found

    def _key_of(self, inputs: Sequence[Variable]) -> tuple:
        return tuple([_key(self._equal.get(var, var)) for var in inputs])

    def add_unmerged(self, node: Apply) -> None:
        """Add a node of the user's graph, also if an equal one has been added.

        So nodes below it need not be remade; PyTensor merges the two later. Reductions
        are made of the first one only (`first_of`).
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
        """Return how many meetings of the ranks are needed before `var` is known."""
        return self._levels.get(var, 0)

    def add_known(self, node: Apply, value: Value) -> None:
        """Add a node of the user's graph as it is, with the value of its outputs."""
        for var in node.outputs:
            self.values[var] = value
            self._levels[var] = int(is_collective(node))
            if isinstance(node.op, (Shape, Shape_i)):
                self.asserted[var] = value
                self.of_rows.add(var)

    def add_graph(self, graph: Variable) -> Variable:
        """Add an expression of placed variables; return its placed result."""
        node = graph.owner
        if node is None or graph in self.values:
            return graph
        return self.remake_output(graph, [self.add_graph(var) for var in node.inputs])

    def remake(self, node: Apply, inputs: Sequence[Variable]) -> Apply:
        """Add a node with other inputs, which are converted if their types differ."""
        if _are_same(inputs, node.inputs):
            self.add_unmerged(node)
            return node
        equals, key = self._equals(node.op), self._key_of(inputs)
        if key in equals:
            return equals[key]
        made = with_inputs(node, inputs)
        if _are_same(inputs, made.inputs):
            return self._added(made, equals, key)
        converted = [self.add_graph(var) for var in made.inputs]
        if _are_same(converted, made.inputs):
            return self.add(made)
        return self.remake(made, converted)

    def remake_output(self, var: Variable, inputs: Sequence[Variable]) -> Variable:
        """Return the output in place of `var` if its node has other inputs."""
        node = var.owner
        assert node is not None
        return self.remake(node, inputs).outputs[node.outputs.index(var)]

    def add_asserted(self, graph: Variable, value: Value) -> Variable:
        """Add an expression whose `Value` is asserted; return its placed result."""
        found = self.add_graph(graph)
        self.values[found] = self.asserted[found] = value
        self.of_rows.add(found)
        return found

    def first_of(self, var: Variable) -> Variable:
        """Return the variable equal to `var` that was added first."""
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


class CallVariables:
    """Inputs of the placed graph that the master fills in for each call."""

    def __init__(self) -> None:
        self.total = pt.lscalar("rows_of_all_ranks")
        """The number of rows on all ranks, to compute with."""
        self.first = pt.lscalar("first_row")
        """How many of all rows come before this rank's, or before this slice's."""
        self.as_long = pt.tensor("as_long_as_all_rows", shape=(None, 0), dtype="int8")
        """An array with an empty row for each of all rows. JAX knows a shape that
        follows from its shape when it compiles, but not one that follows from
        `total`."""
        self.none_of: dict[int, Variable] = {}
        """By index of an input with rows: an array with none of its rows. Its shape
        tells ranks without rows the length of the other axes."""

    def none(self, i: int, like: Variable) -> Any:
        """Return the variable of `none_of` for input `i`, shaped like `like`."""
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
        return self.as_long.shape[0]
