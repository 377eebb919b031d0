"""Making values whole: what the serial run computes, on every rank.

A *placed* value is one of which the rules know what it is (see `domain`). Here are the
graphs that lead from there to the serial value: an all-reduce of what is partial, the
number of all rows for that of a rank's own, and powers of both.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.type import DenseTensorType

from ...ops import COLLECTIVES, AllGather, AllReduce, AllStack
from ...reduce_ops import ReduceOp, check_dtype
from ..domain import (
    IN_ORDER,
    Count,
    Listed,
    Partial,
    Position,
    Refused,
    Replicated,
    Sharded,
    Value,
    is_replicated,
)
from ..rules.base import literal
from ..walk import apply_rule
from .earlier import (
    is_sum,
    spread,
    squared_difference,
    terms_of,
    without_axes,
)
from .row_lengths import RowLengths


@dataclass
class CallVariables:
    """What a rank is told of a call besides its arguments: integers, without rows.

    Attributes
    ----------
    total : Variable
        The number of rows on all ranks, to compute with.
    first : Variable
        How many rows come before the first of this rank's, or of this slice's.
    as_long : Variable
        An array as long as all rows are, of rows without elements: shapes that follow
        from its shape JAX knows when it compiles, and those from `total` it does not.
    """

    total: Variable
    first: Variable
    as_long: Variable

    @classmethod
    def new(cls) -> CallVariables:
        """Make the variables."""
        as_long = pt.tensor("as_long_as_all_rows", shape=(None, 0), dtype="int8")
        return cls(pt.lscalar("rows_of_all_ranks"), pt.lscalar("first_row"), as_long)

    @property
    def length(self) -> Any:
        """The number of rows on all ranks, as a length."""
        as_long: Any = self.as_long
        return as_long.shape[0]


class Whole:
    """The placed variables of one graph: what they are, and their whole values.

    Parameters
    ----------
    rows : sequence of Variable
        The inputs that are cut into rows. Ranks are weighed by those of the first.
    known : dict of Variable to Value
        What these are.
    call : CallVariables

    Attributes
    ----------
    values : dict of Variable to Value
    of_rows : set of Variable
        What is a function of a rank's own rows, and was not reduced.
    as_long : set of Variable
        What may be as long as all rows are, where the user's graph has a rank's own.
    inserted : list of Variable
        The results of the collectives that were placed.
    asserted : dict of Variable to Value
        What is known not by a rule, but by how it was made.
    """

    def __init__(
        self,
        rows: Sequence[Variable],
        known: dict[Variable, Value],
        call: CallVariables,
    ) -> None:
        self._rows, self.call = rows, call
        self.values = dict(known)
        self.of_rows = set(rows)
        self.as_long: set[Variable] = {call.total, call.first, call.as_long}
        self.inserted: list[Variable] = []
        self.asserted: dict[Variable, Value] = {}
        self._wholes: dict[Variable, Variable] = {}
        self._full: dict[Variable, Variable] = {}
        self._everywhere: dict[Variable, Variable] = {}
        self._same: dict[tuple, Apply] = {}
        self._equal: dict[Variable, Variable] = {}
        self._levels: dict[Variable, int] = {}
        self.shape_of_inputs = RowLengths(known).shape

    # -- nodes

    def value(self, var: Variable) -> Value:
        """Return what a placed variable is."""
        if var not in self.values:
            assert var.owner is None, f"{var} was not placed"
            self.values[var] = literal(var)
        return self.values[var]

    def add(self, node: Apply) -> Apply:
        """Take a node of placed variables, or the equal one that is there already."""
        key = self._key(node)
        found = self._same.get(key)
        if found is not None:
            return found
        values = apply_rule(node, [self.value(var) for var in node.inputs])
        self._same[key] = node
        is_meeting = isinstance(node.op, COLLECTIVES)
        here = not is_meeting and not self.of_rows.isdisjoint(node.inputs)
        if isinstance(node.op, AllGather) or not self.as_long.isdisjoint(node.inputs):
            self.as_long.update(node.outputs)
        level = max(map(self.level, node.inputs), default=0) + is_meeting
        for var, value in zip(node.outputs, values, strict=True):
            self.values[var] = value
            self._levels[var] = level
            if here:
                self.of_rows.add(var)
        return node

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

    def _key(self, node: Apply) -> tuple:
        return node.op, *(_key(self._equal.get(var, var)) for var in node.inputs)

    def level(self, var: Variable) -> int:
        """Return how many meetings of the ranks there are before it is known."""
        return self._levels.get(var, 0)

    def take(self, node: Apply, value: Value) -> None:
        """Take a node of the user's graph as it is, with what its outputs are."""
        for var in node.outputs:
            self.values[var] = value
            self._levels[var] = int(isinstance(node.op, COLLECTIVES))
            if isinstance(node.op, (Shape, Shape_i)):
                self.asserted[var] = value
                self.of_rows.add(var)

    def of(self, graph: Variable) -> Variable:
        """Take an expression of placed variables; return its result among them."""
        node = graph.owner
        if node is None or graph in self.values:
            return graph
        made = self.again(node, [self.of(var) for var in node.inputs])
        return made.outputs[node.outputs.index(graph)]

    def again(self, node: Apply, inputs: Sequence[Variable]) -> Apply:
        """Take a node with other inputs; those of another type are converted."""
        if all(a is b for a, b in zip(inputs, node.inputs, strict=True)):
            self.add_as_it_is(node)
            return node
        while any(a is not b for a, b in zip(inputs, node.inputs, strict=True)):
            node = node.clone_with_new_inputs(list(inputs), strict=False)
            inputs = [self.of(var) for var in node.inputs]
        return self.add(node)

    # -- whole values

    @property
    def n(self) -> Variable:
        """The number of this rank's rows."""
        rows: Any = self._rows[0]
        return self.of(rows.shape[0])

    def whole(self, var: Variable, by: AllReduce | None = None) -> Variable:
        """Return what the serial run computes for a variable, on every rank.

        Parameters
        ----------
        var : Variable
        by : AllReduce, optional
            The user's all-reduce of it: it stays in its place, by the op that is right.

        Raises
        ------
        Refused
            If that takes more than a reduction.
        """
        var = self._equal.get(var, var)
        found = self._wholes.get(var)
        if found is None:
            found = self._made_whole(var, by)
            self._wholes[var] = self._wholes[found] = found
        return found

    def _made_whole(self, var: Variable, by: AllReduce | None) -> Variable:
        value = self.value(var)
        if isinstance(value, Partial):
            return self._reduced(var, value, by)
        if isinstance(value, Replicated):
            if not value.power:
                return var
            if value.exact and not var.type.ndim:
                return self.of(pt.cast(self.call.length, var.type.dtype))
            return self._of_number(var, value.power)
        if isinstance(value, Count):
            length = self.call.length + value.offset
            return self.of(pt.cast(length, var.type.dtype))
        if isinstance(value, Listed):
            return self._whole_shape(var, value)
        raise Refused("has no whole value that a reduction gives")

    def on_all_ranks(self, var: Variable) -> Variable:
        """Return a value that all ranks have alike, for those without rows as well.

        They do not compute what follows from rows, be it no more than a shape. So what
        is first known to be alike comes to them from the others.
        """
        todo = [(var, False)]
        while todo:
            made, is_ready = todo.pop()
            if made in self._everywhere or made not in self.of_rows:
                continue
            assert made.owner is not None
            node = made.owner
            here = [given for given in node.inputs if given in self.of_rows]
            if not all(is_replicated(self.value(given)) for given in here):
                self._everywhere[made] = self._inserted(made, "max")
            elif is_ready:
                inputs = [self._everywhere.get(given, given) for given in node.inputs]
                again = self.again(node, inputs)
                self._everywhere[made] = again.outputs[node.outputs.index(made)]
            else:
                todo.append((made, True))
                todo += [(given, False) for given in here]
        return self._everywhere.get(var, var)

    def gathered(self, var: Variable) -> Variable:
        """Return what the serial run computes, row-wise values included.

        Raises
        ------
        Refused
            If rows lie as they cannot be gathered.
        """
        value = self.value(var)
        if isinstance(value, Position):
            return self._all_numbers(var, value)
        if not isinstance(value, Sharded):
            return self.whole(var)
        var = self._equal.get(var, var)
        found = self._wholes.get(var)
        if found is None:
            found = self._wholes[var] = self._gathered(var, value)
            self._wholes[found] = found
        return found

    def _gathered(self, var: Any, value: Sharded) -> Variable:
        if value.length == "?" or not (value.in_order or _is_reversed(value)):
            raise Refused("has rows that are not one after the other")
        var = self.scaled(var, -(value.power or 0))
        others = [i for i in range(var.type.ndim) if i != value.axis]
        first = var.dimshuffle([value.axis, *others]) if value.axis else var
        if not value.in_order:
            first = first[::-1]
        rows = self.of(first)
        made: Any = self.add(AllGather().make_node(rows)).outputs[0]
        self.inserted.append(made)
        if not value.in_order:
            made = made[::-1]
        if value.axis:
            order = list(range(1, var.type.ndim))
            order.insert(value.axis, 0)
            made = made.dimshuffle(order)
        return self.of(made)

    def of_all_rows(self, var: Variable) -> Variable:
        """Return a variable of the user's graph as computed from all rows.

        Raises
        ------
        Refused
            If it depends on random draws, of which each rank has its own.
        """
        for row in self._rows:
            if row not in self._full:
                with contextlib.suppress(Refused):
                    self._full[row] = self.gathered(row)
        for node in io_toposort(list(self._full), [var]):
            if all(made in self._full for made in node.outputs):
                continue
            inputs = [self._full.get(given, given) for given in node.inputs]
            if isinstance(node.op, COLLECTIVES):
                made = inputs
            else:
                made = self.again(node, inputs).outputs
            self._full.update(zip(node.outputs, made, strict=True))
        found = self._full.get(var, var)
        if not is_replicated(self.value(found)):
            raise Refused("depends on what is not known of all rows")
        return found

    def _all_numbers(self, var: Variable, value: Position) -> Variable:
        """Return the numbers of all ranks' rows."""
        if value.length != "n":
            raise Refused("counts entries of rows")
        numbers = pt.arange(self.call.length, dtype=var.type.dtype)
        order: list[Any] = ["x"] * var.type.ndim
        order[value.axis] = 0
        return self.of(numbers.dimshuffle(order))

    def numbered(self, var: Any, value: Position) -> Variable:
        """Return the numbers of this rank's rows among all."""
        if value.length != "n":
            raise Refused("counts entries of rows")
        found: Any = var + pt.cast(self.call.first, var.type.dtype)
        return self._as(found, Sharded(value.axis))

    def local(self, var: Variable, axis: int) -> Variable:
        """Return this rank's rows of a whole value that has one for each row."""
        places = pt.arange(self.n) + self.call.first
        found = pt.take(var, places, axis=axis)
        return self._as(found, Sharded(axis))

    def _as(self, graph: Variable, value: Value) -> Variable:
        """Take an expression of which more is known than the rules can tell."""
        found = self.of(graph)
        self.values[found] = self.asserted[found] = value
        self.of_rows.add(found)
        return found

    def _of_number(self, var: Variable, power: int) -> Variable:
        """Make what depends on the number of rows alone depend on that of all ranks'.

        Where nothing but numbers of rows goes in, by the same Op of whole values.
        """
        node = var.owner
        if node is not None and all(
            isinstance(self.value(given), (Replicated, Listed, Count))
            for given in node.inputs
        ):
            inputs = [self.whole(given) for given in node.inputs]
            made = self.again(node, inputs)
            found = made.outputs[node.outputs.index(var)]
            if is_replicated(self.value(found)):
                return found
        return self.scaled(var, -power)

    def _whole_shape(self, var: Any, value: Listed) -> Variable:
        if all(map(is_replicated, value.entries)):
            return var
        entries = [
            self.call.length
            if isinstance(entry, Replicated) and entry.exact
            else self.scaled(self.of(var[i]), -(entry.power or 0))
            if isinstance(entry, Replicated)
            else self.whole(self.of(var[i]))
            for i, entry in enumerate(value.entries)
        ]
        return self.of(pt.stack(entries).astype(var.type.dtype))

    def scaled(self, var: Any, power: int) -> Variable:
        """Return a variable times (n / N)**power, where N is the rows of all ranks."""
        if not power:
            return var
        dtype, value = var.type.dtype, self.value(var)
        mine: Any = self.n
        total: Any = self.call.total
        if var.type.numpy_dtype.kind in "iu":
            if power > 0:
                raise Refused("divides integers by the number of rows")
            for _ in range(-power):  # multiples of the number of rows: this is exact
                var = pt.cast(var // pt.maximum(mine, 1) * total, dtype)
            known: Value = Replicated()
            if isinstance(value, Sharded):
                known = replace(value, power=0)
            return self._as(var, known)
        if var.type.numpy_dtype.kind not in "fc":
            raise Refused("has no powers of the number of rows")
        mine, total = pt.cast(mine, dtype), pt.cast(total, dtype)
        for _ in range(abs(power)):
            var = var * (mine / total if power > 0 else total / mine)
        return self.of(var)

    def _reduced(self, var: Variable, value: Partial, by: AllReduce | None) -> Variable:
        if by is None:
            for way in (self.earlier, self._above):
                if (made := way(var)) is not None:
                    return made
        if value.op != "sum":
            return self._inserted(var, value.op, by)
        if value.power == -1:
            return self._inserted(var, "avg", by)
        # Zeros, of no power, are the sum of zeros.
        return self._inserted(self.scaled(var, -(value.power or 0)), "sum", by)

    def _inserted(
        self, var: Variable, op: ReduceOp, by: AllReduce | None = None
    ) -> Variable:
        try:
            check_dtype(op, var.type.numpy_dtype, str(var))
        except TypeError as error:
            raise Refused(str(error)) from error
        placed = AllReduce(op) if by is None else AllReduce(op, by.gradient)
        found = self.add(placed.make_node(var)).outputs[0]
        if by is None and found not in self.inserted:
            self.inserted.append(found)
        return found

    def _above(self, var: Variable) -> Variable | None:
        """Return the whole value as a function of whole values above, if that is less.

        What goes elementwise from one partial value and from whole ones is computed
        from that one's whole value. So the gradient is reduced, and no moment of it.
        """
        partial = self._partial_operands(var)
        if partial is None or len(self._sources(var)) > 1:
            return None
        node = var.owner
        assert node is not None
        inputs = [
            self.whole(given) if given in partial else given for given in node.inputs
        ]
        made = self.again(node, inputs)
        return made.outputs[node.outputs.index(var)]

    def earlier(self, var: Variable) -> Variable | None:
        """Return the whole value by fewer meetings than before it and its own, if any.

        What it takes that turns out to be of no use is not computed.
        """
        node = var.owner
        if not self.level(var) or node is None or var in self.asserted:
            return None
        made = None
        if isinstance(node.op, (Elemwise, DimShuffle)):
            made = self._of_operands(node)
        elif is_sum(node) and len(node.outputs) == 1:
            made = self._taken_apart(node)
            if made is None:
                made = self._merged(node)
        return (
            made if made is not None and self.level(made) <= self.level(var) else None
        )

    def _of_operands(self, node: Apply) -> Variable | None:
        """Compute a node from the whole values of what it is computed from."""
        if any(isinstance(self.value(var), (Sharded, Position)) for var in node.inputs):
            return None
        with contextlib.suppress(Refused):
            (made,) = self.again(node, [self.whole(var) for var in node.inputs]).outputs
            if is_replicated(self.value(made)):
                return made
        return None

    def _taken_apart(self, node: Apply) -> Variable | None:
        """Multiply sums of rows by what is whole, in place of the rows."""
        terms = terms_of(self, node)
        if terms is None:
            return None
        with contextlib.suppress(Refused):
            total: Any = 0
            for factors, row in terms:
                made: Any = self.whole(self.of(row.sum(axis=node.op.axis)))
                for factor in factors:
                    made = made * without_axes(factor, node)
                total = total + made
            return self.of(total)
        return None

    def _merged(self, node: Apply) -> Variable | None:
        """Sum squares about what is whole by those about each rank's own mean."""
        found = squared_difference(self, node)
        if found is None:
            return None
        rows, middle = found
        count, mean, squares = spread(rows, node)
        counts, means = self._of_each_rank(count), self._of_each_rank(mean)
        order = [0, *["x"] * mean.type.ndim]
        away = pt.sqr(means - without_axes(middle, node))
        between = (counts.dimshuffle(order) * away).sum(axis=0)
        within = self._as(squares, Partial("sum"))
        return self.of(self.whole(within) + between)

    def _of_each_rank(self, graph: Any) -> Any:
        """Return an expression of a rank's own as all ranks have it; zeros of idle."""
        own = self._as(graph, Partial("sum"))
        made: Any = self.add(AllStack().make_node(own)).outputs[0]
        self.inserted.append(made)
        return made

    def _sources(self, var: Variable) -> set[Variable]:
        """Return what partial values are to be reduced for one; two of them do."""
        found: set[Variable] = set()
        seen, todo = {var}, [var]
        while todo and len(found) < 2:
            var = todo.pop()
            if self._equal.get(var, var) in self._wholes:
                continue
            partial = self._partial_operands(var)
            if partial is None:
                found.add(var)
            else:
                todo += [given for given in partial if given not in seen]
                seen.update(partial)
        return found

    def _partial_operands(self, var: Variable) -> set[Variable] | None:
        """Return which operands are partial, if the others are whole; elementwise."""
        node = var.owner
        if node is None or not isinstance(node.op, (Elemwise, DimShuffle)):
            return None
        if var in self.asserted:
            return None
        partial = {var for var in node.inputs if isinstance(self.value(var), Partial)}
        others = [given for given in node.inputs if given not in partial]
        if not all(is_replicated(self.value(given)) for given in others):
            return None
        if any(given in self.of_rows for given in others):
            return None
        return partial or None


def _is_reversed(value: Sharded) -> bool:
    layout = value.layout
    return layout is not None and layout == replace(IN_ORDER, reverse=True)


def _key(var: Variable) -> Any:
    if isinstance(var, Constant) and isinstance(var.type, DenseTensorType):
        data = np.asarray(var.data)
        if data.size <= 16:
            return data.dtype, data.shape, data.tobytes()
    return var
