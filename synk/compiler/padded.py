"""Rewriting a graph for padded rows, so that the padding does not change the result.

The inputs have N rows, of which the first n, the *real* ones, are the call's; the
others are copies of one of these. Let A be the real rows and B the copies. The `Value`
of a variable (see `domain`) tells what becomes of it:

``Sharded``, *padded*
    v(AB) is v(A) and v(B), concatenated: the variable has the entries of the real rows
    as they would be without the copies. The entries of copies are not used.
``Replicated``, *exact*
    The value is the same as without the copies.
``Replicated`` with the power 1, and shapes: *a size*
    It is exact. A second variable, *long*, is its value if all N rows were real. n is
    an argument, and used where it divides a sum, say; N, which JAX knows when it
    compiles, is used where it is the length of an array.
``Partial``
    No variable is. A node that reduces over rows has copies replaced by a neutral
    value, such as zero in a sum, and is exact. They are replaced and not multiplied by
    zero, as zero times infinity is NaN.

A node with a value for each row is kept as it is. The table has a rule (`padded`) only
for nodes that have to be rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable

from .cloning import with_inputs
from .domain import (
    IN_ORDER,
    REPLICATED,
    Layout,
    Listed,
    OwnStream,
    Partial,
    Position,
    Refused,
    Replicated,
    Sharded,
    Unknown,
    Value,
    is_replicated,
)
from .lengths import Symbol, cached_lengths
from .rules.base import any_function, name, op_name
from .table import ask, entry_of
from .walk import apply_rule, infer


class Padded(NamedTuple):
    """How the entries of N rows lie along an axis: in blocks.

    Each block has entries of all rows, those of the real rows first.
    """

    axis: int
    blocks: int | None  # the number of blocks; None if only `each` is known
    each: int | None  # a row's entries in one block; None if only `blocks` is known

    def each_of(self, length: Any, rows: Any) -> Any:
        """Return the number of a row's entries in a block.

        `length` is that of the axis, and `rows` the number of rows, N.
        """
        if self.each is not None:
            return self.each
        return length // rows if self.blocks == 1 else length // (rows * self.blocks)


def is_padded(value: Value) -> bool:
    """Return whether a variable of this value has entries for each of N rows."""
    return isinstance(value, (Sharded, Position))


def as_rows(value: Value) -> Value:
    """Return `Position` as `Sharded`, and other values as they are."""
    if isinstance(value, Position):
        return Sharded(value.axis, 0, value.length)
    return value


def without_powers(value: Value) -> Value:
    """Return a value without its power of the number of rows.

    The graph receives the real number of rows, like a parameter. So any function of it
    is exact.
    """
    if isinstance(value, Sharded):
        return value if value.power is None else replace(value, power=0)
    return value if isinstance(value, Position) or is_replicated(value) else REPLICATED


def plain(value: Value) -> Value:
    """Return a value as `Sharded` without a power if it is padded; else as exact."""
    return as_rows(without_powers(value))


class CannotPad(Refused):
    """A graph cannot be padded; the text names the Op and the reason."""


class Made(NamedTuple):
    """A rewritten node: its new outputs, and their values."""

    new: list[Variable]
    values: list[Value]


class Padder:
    """Rewrites graphs of one function for inputs `rows` with N rows; `real` is n.

    For a graph within an Op, `rows` is empty, and `facts` the padder of the graph
    around it. `facts` may also be one that has gone through the whole graph already.
    """

    def __init__(
        self, rows: Sequence[Variable], real: Variable, facts: Padder | None = None
    ) -> None:
        self.real = real
        # By variable of the given graphs: the padded variable, its value and, of sizes,
        # the long variable.
        self.new: dict[Variable, Any] = {var: var for var in rows}
        self.values: dict[Variable, Value] = {var: Sharded(0) for var in rows}
        self.long: dict[Variable, Variable] = {}
        self.inlined: dict[Apply, list[Variable]] = facts.inlined if facts else {}
        self._facts = facts
        self._rows = list(rows)
        self._masked: dict[tuple, Variable] = {}

    def walk(self, graph: Iterable[Variable]) -> None:
        """Rewrite a graph, except for variables that are rewritten already."""
        graph = list(graph)
        with cached_lengths(self._rows):
            infer(graph, dict(self.values), rule=self._rewrite)
        self._know(graph)

    def _know(self, variables: Iterable[Variable]) -> None:
        for var in variables:
            if var.owner is None:
                self.new.setdefault(var, var)
                self.values.setdefault(var, REPLICATED)

    def _rewrite(self, node: Apply, given: list[Value]) -> list[Value]:
        self._know(node.inputs)
        # The rule of a draw tells which draws are for rows.
        given = [REPLICATED if isinstance(v, OwnStream) else v for v in given]
        try:
            made = self._made(node, given)
            for value in made.values:
                _check(value)
        except CannotPad:
            raise
        except Refused as refused:
            op, where = op_name(node.op), name(node.outputs[0])
            if not where.startswith(op):
                where = f"{op}, in {where},"
            raise CannotPad(f"{where} {refused}") from None
        self.new.update(zip(node.outputs, made.new, strict=True))
        self.values.update(zip(node.outputs, made.values, strict=True))
        return made.values

    def _made(self, node: Apply, given: list[Value]) -> Made:
        if not (any(map(is_padded, given)) or self._sizes(node.inputs)):
            new = self.made(node, [self.new[var] for var in node.inputs])
            return Made(new, _exact(apply_rule(node, given)))
        rule = entry_of(node.op).padded
        return (rule and ask(rule, self, node, given)) or self.kept(node, given)

    # -- rewriting nodes

    def made(self, node: Apply, inputs: Sequence[Variable]) -> list[Variable]:
        """Return the outputs of a node with other inputs."""
        if all(a is b for a, b in zip(node.inputs, inputs, strict=True)):
            return node.outputs
        return with_inputs(node, inputs).outputs

    def exact(self, node: Apply, inputs: Sequence[Variable] | None = None) -> Made:
        """Return a node with exact outputs, by default of the rewritten inputs."""
        if inputs is None:
            inputs = [self.new[var] for var in node.inputs]
        return Made(self.made(node, inputs), [REPLICATED] * len(node.outputs))

    def kept(self, node: Apply, given: Sequence[Value]) -> Made:
        """Return a node as it is, with rewritten inputs; raise if that is not right."""
        found = self._placed(node, given)
        lengths, entry = _lengths(node), entry_of(node.op)
        if not entry.makes_sizes:
            others = (v for i, v in enumerate(node.inputs) if i not in lengths)
            self.check_no_sizes(others)
        inputs = [
            self.long_of(var) if i in lengths else self.new[var]
            for i, var in enumerate(node.inputs)
        ]
        made = self.made(node, inputs)
        if any(map(is_padded, given)):
            if not all(map(is_padded, found)):
                raise Refused("makes one thing of what has a value for each row")
        elif not any(map(is_padded, found)) and self._sizes(node.inputs):
            return self._of_sizes(node, made, found)
        return Made(made, found)

    def instead(self, node: Apply, graph_of: Callable) -> Made:
        """Return the rewritten outputs of ``graph_of(node)``, a graph for the node.

        The graph is made once, so that parts of the function have the same one.
        """
        outputs = self.inlined.get(node)
        if outputs is None:
            outputs = self.inlined[node] = graph_of(node)
        self.walk(outputs)
        for var, inside in zip(node.outputs, outputs, strict=True):
            if inside in self.long:
                self.long[var] = self.long[inside]
        return Made(
            [self.new[var] for var in outputs], [self.values[var] for var in outputs]
        )

    def _placed(self, node: Apply, given: Sequence[Value]) -> list[Value]:
        """Return the values of a node's outputs, by its rule.

        First with powers of the number of rows, by which lengths are known. If the rule
        refuses these: without them except in lengths; and last with row numbers as any
        sharded values. A replicated result of sizes is then exact, but unknown as a
        length.
        """
        lengths = _lengths(node)

        def same(value: Value) -> Value:
            return value

        forms = (same, same), (without_powers, same), (plain, as_rows)
        for of_values, of_lengths in forms:
            given = [
                (of_lengths if i in lengths else of_values)(value)
                for i, value in enumerate(given)
            ]
            found = apply_rule(node, given)
            unknown = [value for value in found if isinstance(value, Unknown)]
            if not unknown:
                break
        else:
            raise CannotPad(str(unknown[0]))
        if of_values is same or not self._sizes(node.inputs):
            return found
        why = "gives a length that may follow from the number of rows"
        return [
            Unknown(op_name(node.op), name(var), why)
            if isinstance(value, Replicated)
            else value
            for var, value in zip(node.outputs, found, strict=True)
        ]

    def folded(self, node: Apply, given: Sequence[Value], neutral: Any) -> Made | None:
        """Return a node that reduces over rows, with `neutral` in place of copies.

        None if it does not reduce over rows.
        """
        values = [plain(value) for value in given]
        # Not `apply_rule`, which refuses sums over ranks that may wrap around.
        found = ask(entry_of(node.op).placement or any_function, node, values)
        found = found if isinstance(found, list) else [found]
        if not any(isinstance(value, Partial) for value in found):
            return None
        # An operand whose rows are all equal has the layout of the others.
        layouts = [v.layout for v in given if isinstance(v, Sharded) and v.layout]
        layout = layouts[0] if layouts else IN_ORDER
        return self.exact(
            node, [self.masked(var, neutral, layout) for var in node.inputs]
        )

    # -- sizes

    def long_of(self, var: Variable) -> Variable:
        """Return the long variable of a size; the rewritten one of others."""
        return self.long.get(var, self.new[var])

    def check_no_sizes(self, variables: Iterable[Variable]) -> None:
        """Raise if an integer is a size, which JAX does not know when it compiles."""
        for var in variables:
            if var in self.long and is_integer(var):
                raise Refused("takes a number that follows from that of the rows")

    def _sizes(self, variables: Iterable[Variable]) -> bool:
        return any(var in self.long for var in variables)

    def _of_sizes(self, node: Apply, made: list[Variable], found: list[Value]) -> Made:
        """Return a node of exact values; note its long outputs."""
        if not entry_of(node.op).makes_sizes:
            return Made(made, _exact(found))
        longs = self.made(node, [self.long_of(var) for var in node.inputs])
        new = list(made)
        for i, (var, long) in enumerate(zip(node.outputs, longs, strict=True)):
            if is_integer(var) and _is_free(found[i]):
                new[i] = long  # equal: x.shape[1], say, taken from the vector x.shape
            elif is_integer(var) or not var.type.ndim:  # not for a tensor divided by n
                self.long[var] = long
        return Made(new, found)

    # -- real rows and copies

    @property
    def padded_rows(self) -> Any:
        """N, as the shape of an input."""
        for var in self._rows:
            return self.new[var].shape[0]
        for var, value in self.values.items():  # in a step of a scan
            if isinstance(value, Sharded) and value.length == "n":
                return self.new[var].shape[value.axis]
        raise Refused("has rows whose number is known outside of a scan only")

    def padded(self, var: Variable) -> Padded | None:
        """Return how a variable is padded; None if it is exact."""
        value = as_rows(self.values[var])
        return self._lies(value) if isinstance(value, Sharded) else None

    def _lies(self, rows: Sharded) -> Padded:
        layout = rows.layout or IN_ORDER
        if rows.length == "n":
            return Padded(rows.axis, 1, 1)
        if not layout.blocks.symbols:
            return Padded(rows.axis, layout.blocks.number, None)
        if layout.block is not None:
            symbols = list(layout.block.symbols)  # is it a number times n?
            if len(symbols) == 1 and symbols[0][1] == 1 and self._is_n(symbols[0][0]):
                return Padded(rows.axis, None, layout.block.number)
        raise Refused("has rows in blocks of several entries each")

    def _is_n(self, symbol: Symbol) -> bool:
        var, which = symbol
        if self._rows and symbol == (self._rows[0], 0):
            return True
        value = self.values.get(var)
        if isinstance(value, Sharded) and value.axis == which and value.length == "n":
            return True
        return self._facts is not None and self._facts._is_n(symbol)

    def real_places(self, length: Any, rows: Sharded) -> Any:
        """Return a mask of the real rows' entries along an axis of a given length."""
        places: Any = pt.arange(length)
        lies = self._lies(rows)
        if lies.blocks == 1:
            if lies.each == 1:
                return places < self.real
            return places < self.real * lies.each_of(length, self.padded_rows)
        rows_of_all = self.padded_rows
        places = places // lies.each_of(length, rows_of_all)
        return places % rows_of_all < self.real

    def masked(self, var: Variable, instead: Any, layout: Layout = IN_ORDER) -> Any:
        """Return a variable with its copies' entries replaced by the number `instead`.

        `layout` is where the copies lie if the variable's own layout is None.
        """
        rows, new = as_rows(self.values[var]), self.new[var]
        if not isinstance(rows, Sharded):
            return new
        rows = Sharded(rows.axis, 0, rows.length, rows.layout or layout)
        key = (var, float(instead), rows)
        if key not in self._masked:
            order: list[Any] = ["x"] * new.type.ndim
            order[rows.axis] = 0
            real = self.real_places(new.shape[rows.axis], rows).dimshuffle(order)
            instead = np.asarray(instead, new.type.dtype)
            self._masked[key] = pt.switch(real, new, instead)
        return self._masked[key]


def is_integer(var: Variable) -> bool:
    """Return whether a variable has integers or bools, and so may be lengths."""
    return str(getattr(var.type, "dtype", ""))[:3] in ("int", "uin", "boo")


def _lengths(node: Apply) -> Sequence[int]:
    """Return the indices of the inputs that are lengths."""
    first = entry_of(node.op).lengths_from
    return range(len(node.inputs))[first:] if first is not None else ()


def _exact(found: Sequence[Value]) -> list[Value]:
    """Return values of a node with exact inputs: exact where they are unknown."""
    return [REPLICATED if isinstance(v, Unknown) else v for v in found]


def _is_free(value: Value) -> bool:
    """Return whether a size does not depend on the number of rows after all."""
    if isinstance(value, Listed):
        return all(map(_is_free, value.entries))
    return is_replicated(value)


def _check(value: Value) -> None:
    """Raise for rows in an order, or of a number, that padding cannot have."""
    if not isinstance(value, Sharded):
        return
    if value.length == "some":
        raise Refused("selects by a mask")
    if value.layout is not None and value.layout.reverse:
        raise Refused("takes some of the rows, or another order of them")
