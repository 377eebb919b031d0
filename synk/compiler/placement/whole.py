"""Making values whole: graphs for the serial run's value, on every rank.

They all-reduce partial values, gather sharded ones, and replace the number of a rank's
rows, and powers of it, by those of all rows.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.op import Op
from pytensor.graph.traversal import io_toposort
from pytensor.scalar import ScalarType
from pytensor.tensor import basic as ptb
from pytensor.tensor.elemwise import DimShuffle, Elemwise

from ...ops import COLLECTIVES, AllGather, AllReduce, AllStack
from ...reduce_ops import ReduceOp, check_dtype
from ..as_written import AsWritten
from ..domain import (
    Layout,
    Listed,
    OwnStream,
    Partial,
    Position,
    Refused,
    Replicated,
    Sharded,
    Value,
    is_n,
    is_replicated,
)
from ..lengths import entries_of, value_of
from ..rules.base import is_stream
from ..sizes import RowLengths
from .nodes import CallVariables, Nodes
from .reassociate import is_sum, spread, squared_difference, terms_of, without_axes


class Whole(Nodes):
    """The placed variables of one graph, and their whole values.

    The number of rows of the first of `known` is the weight of a rank.
    """

    def __init__(self, known: dict[Variable, Value]) -> None:
        self.call = call = CallVariables()
        super().__init__(known, [call.total, call.first, call.as_long])
        self._rows = list(known)
        self.inserted: list[Variable] = []
        """The results of the placed collectives."""
        self.drawn: dict[Apply, list[Variable]] = {}
        """By node of the user's graph that draws, the placed outputs."""
        self.lengths = RowLengths(known)
        # By placed variable: its whole value, and the result of `on_all_ranks`.
        self._wholes: dict[Variable, Variable] = {}
        self._everywhere: dict[Variable, Variable] = {}
        # By variable of the user's graph, its value computed from all ranks' rows.
        self._of_all: dict[Variable, Variable] = {}
        self._written = AsWritten(known, call)

    @property
    def n(self) -> Variable:
        """The number of this rank's rows."""
        rows: Any = self._rows[0]
        return self.add_graph(rows.shape[0])

    def whole(self, var: Variable, by: AllReduce | None = None) -> Variable:
        """Return the serial run's value of a placed variable, on every rank.

        `by` is an all-reduce of `var` by `synk.grad`, to be replaced by the right one.
        Raises `Refused` if no reduction gives the value.
        """
        var = self.first_of(var)
        if var not in self._wholes:
            found = self._wholes[var] = self._made_whole(var, by)
            self._wholes[found] = found
        return self._wholes[var]

    def _made_whole(self, var: Variable, by: AllReduce | None) -> Variable:
        value = self.value(var)
        if isinstance(value, Partial):
            return self._reduced(var, value, by)
        if isinstance(value, Listed):
            return self._whole_shape(var, value)
        if not isinstance(value, Replicated):
            raise Refused("has no whole value that a reduction gives")
        if not value.power:
            return var
        if value.exact and not var.type.ndim:
            return self.add_graph(pt.cast(self.call.length, var.type.dtype))
        node = var.owner
        if node is not None and all(
            isinstance(self.value(given), (Replicated, Listed)) for given in node.inputs
        ):  # of numbers of rows alone: made of lengths, which JAX knows
            found = self.remake_output(var, list(map(self.whole, node.inputs)))
            if is_replicated(self.value(found)):
                return found
        return self.scaled(var, -value.power)

    def on_all_ranks(self, var: Variable) -> Variable:
        """Return a replicated value in a form that ranks without rows have as well.

        They compute nothing that depends on rows, not even shapes. So the first
        replicated values on the way to `var` come to them by an all-reduce.
        """
        todo = [(var, False)]
        while todo:
            made, is_ready = todo.pop()
            if made in self._everywhere or made not in self.of_rows:
                continue
            assert made.owner is not None
            node = made.owner
            here = [given for given in node.inputs if given in self.of_rows]
            alike = all(is_replicated(self.value(given)) for given in here)
            if not alike or any(map(is_stream, here)):
                found = self._known_length(made)
                if found is None:
                    found = self._inserted(made, "max")
                self._everywhere[made] = found
            elif is_ready:
                inputs = [self._everywhere.get(given, given) for given in node.inputs]
                self._everywhere[made] = self.remake_output(made, inputs)
            else:
                todo.append((made, True))
                todo += [(given, False) for given in here]
        return self._everywhere.get(var, var)

    def _known_length(self, var: Variable) -> Variable | None:
        """Return integers computed from lengths that ranks without rows know.

        None if `var` is no product of such lengths, or no vector of such products.
        """
        if var.type.numpy_dtype.kind not in "iu" or var.type.ndim > 1:
            return None
        if None in var.type.shape:
            return None
        lengths = entries_of(var) if var.type.ndim else [value_of(var)]
        made = []
        for length in lengths:
            product: Any = pt.constant(length.number, dtype="int64")
            for (of, axis), many in length.symbols:
                if not isinstance(axis, int):
                    return None
                if of in self._rows and axis:  # another axis than the rows'
                    known: Any = self.call.none(self._rows.index(of), of)
                elif of not in self.of_rows and is_replicated(self.value(of)):
                    known = of
                else:
                    return None
                product = product * known.shape[axis] ** many
            made.append(product)
        found: Any = pt.stack(made) if var.type.ndim else made[0]
        return self.add_graph(found.astype(var.type.dtype))

    def _whole_shape(self, var: Any, value: Listed) -> Variable:
        if all(map(is_replicated, value.entries)):
            return var
        entries = [
            self.call.length
            if is_n(entry)
            else self.scaled(self.add_graph(var[i]), -(entry.power or 0))
            if isinstance(entry, Replicated)
            else self.whole(self.add_graph(var[i]))
            for i, entry in enumerate(value.entries)
        ]
        return self.add_graph(pt.stack(entries).astype(var.type.dtype))

    def scaled(self, var: Any, power: int) -> Variable:
        """Return a variable times (n / N)**power; N is the number of all rows."""
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
            return self.add_asserted(var, known)
        if var.type.numpy_dtype.kind not in "fc":
            raise Refused("has no powers of the number of rows")
        mine, total = pt.cast(mine, dtype), pt.cast(total, dtype)
        for _ in range(abs(power)):
            var = var * (mine / total if power > 0 else total / mine)
        return self.add_graph(var)

    # -- reductions

    def _reduced(self, var: Variable, value: Partial, by: AllReduce | None) -> Variable:
        if by is None:
            for way in (self.in_fewer_meetings, self._from_partial_operand):
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
        if isinstance(var.type, ScalarType):  # a number in an index
            tensor = self.add(ptb.tensor_from_scalar.make_node(var)).outputs[0]
            whole = self._inserted(tensor, op, by)
            return self.add(ptb.scalar_from_tensor.make_node(whole)).outputs[0]
        try:
            check_dtype(op, var.type.numpy_dtype, str(var))
        except TypeError as error:
            raise Refused(str(error)) from error
        placed = AllReduce(op) if by is None else AllReduce(op, by.gradient)
        return self._met(placed, var, is_users=by is not None)

    def _met(self, op: Op, var: Variable, is_users: bool = False) -> Any:
        """Return the result of a collective of `var`."""
        found = self.add(op.make_node(var)).outputs[0]
        if not is_users and found not in self.inserted:
            self.inserted.append(found)
        return found

    def in_fewer_meetings(self, var: Variable) -> Variable | None:
        """Return the whole value by fewer meetings than to reduce `var`; None if none.

        Variables that this adds in vain are not used, and so not computed.
        """
        node = var.owner
        if not self.level(var) or node is None or var in self.asserted:
            return None
        made = None
        if isinstance(node.op, (Elemwise, DimShuffle)):
            made = self._of_operands(node)
        elif is_sum(node):
            made = self._taken_apart(node)
            if made is None:
                made = self._merged(node)
        is_earlier = made is not None and self.level(made) <= self.level(var)
        return made if is_earlier else None

    def _of_operands(self, node: Apply) -> Variable | None:
        """Return a node's output computed from its operands' whole values, or None."""
        if any(isinstance(self.value(var), (Sharded, Position)) for var in node.inputs):
            return None
        with contextlib.suppress(Refused):
            (made,) = self.remake(node, list(map(self.whole, node.inputs))).outputs
            if is_replicated(self.value(made)):
                return made
        return None

    def _taken_apart(self, node: Apply) -> Variable | None:
        """Return a linear sum as whole sums of rows times whole factors, or None."""
        terms = terms_of(self, node)
        if terms is None:
            return None
        with contextlib.suppress(Refused):
            total: Any = 0
            for factors, row in terms:
                made: Any = self.whole(self.add_graph(row.sum(axis=node.op.axis)))
                for factor in factors:
                    made = made * without_axes(factor, node)
                total = total + made
            return self.add_graph(total)
        return None

    def _merged(self, node: Apply) -> Variable | None:
        """Return a sum of squares about a whole value, or None.

        Ranks sum squares about their own means, and add the distances of the means.
        """
        found = squared_difference(self, node)
        if found is None:
            return None
        rows, middle = found
        count, mean, squares = spread(rows, node)
        # Stacks of all ranks' counts and means; zeros for ranks without rows.
        counts, means = (
            self._met(AllStack(), self.add_asserted(own, Partial("sum")))
            for own in (count, mean)
        )
        order = [0, *["x"] * mean.type.ndim]
        away = pt.sqr(means - without_axes(middle, node))
        between = (counts.dimshuffle(order) * away).sum(axis=0)
        within = self.add_asserted(squares, Partial("sum"))
        return self.add_graph(self.whole(within) + between)

    def _from_partial_operand(self, var: Variable) -> Variable | None:
        """Return the whole value computed from that of one partial operand, or None.

        Possible if `var` follows elementwise from one partial value and whole ones. So
        ranks reduce a gradient, and not also the momentum that follows from it.
        """
        if self._partial_operands(var) is None or len(self._sources(var)) > 1:
            return None
        assert var.owner is not None
        return self.remake_output(var, list(map(self.whole, var.owner.inputs)))

    def _sources(self, var: Variable) -> set[Variable]:
        """Return partial values that `var` follows from elementwise; at most two."""
        found: set[Variable] = set()
        seen, todo = {var}, [var]
        while todo and len(found) < 2:
            var = todo.pop()
            if self.first_of(var) in self._wholes:
                continue
            partial = self._partial_operands(var)
            if partial is None:
                found.add(var)
            else:
                todo += [given for given in partial if given not in seen]
                seen.update(partial)
        return found

    def _partial_operands(self, var: Variable) -> set[Variable] | None:
        """Return the partial operands of an elementwise node.

        None if it has none, is not elementwise, or has operands neither partial nor
        whole.
        """
        node = var.owner
        if node is None or not isinstance(node.op, (Elemwise, DimShuffle)):
            return None
        if var in self.asserted:
            return None
        partial = {var for var in node.inputs if isinstance(self.value(var), Partial)}
        for given in node.inputs:
            is_whole = is_replicated(self.value(given)) and given not in self.of_rows
            if given not in partial and not is_whole:
                return None
        return partial or None

    # -- all rows, and this rank's of them

    def gathered(self, var: Variable) -> Variable:
        """Return the serial run's value, also of sharded values and `Position`."""
        value = self.value(var)
        if isinstance(value, Position):
            return self._all_numbers(var, value)
        if not isinstance(value, Sharded):
            return self.whole(var)
        var = self.first_of(var)
        if var not in self._wholes:
            found = self._wholes[var] = self._gathered(var, value)
            self._wholes[found] = found
        return self._wholes[var]

    def _gathered(self, var: Any, value: Sharded) -> Variable:
        is_reversed = value.layout == Layout(reverse=True)
        if not value.is_counted or not (value.in_order or is_reversed):
            raise Refused("has rows that are not one after the other")
        node = var.owner
        if node is not None and isinstance(node.op, DimShuffle):
            # So that x and x.T are gathered once, and the rows of an input, which need
            # no meeting, are gathered as they are.
            return self.remake_output(var, [self.gathered(node.inputs[0])])
        first: Any = self.scaled(var, -(value.power or 0))
        if value.axis:
            first = pt.moveaxis(first, value.axis, 0)
        if is_reversed:
            first = first[::-1]
        made = self._met(AllGather(), self.add_graph(first))
        if is_reversed:
            made = made[::-1]
        if value.axis:
            made = pt.moveaxis(made, 0, value.axis)
        return self.add_graph(made)

    def of_all_rows(self, var: Variable) -> Variable:
        """Return a variable of the user's graph computed from all ranks' rows.

        Random draws for rows are gathered from the ranks that made them.
        """
        for row in self._rows:
            if row not in self._of_all:
                with contextlib.suppress(Refused):
                    self._of_all[row] = self.gathered(row)
        for node in io_toposort(list(self._of_all), [var]):
            if all(made in self._of_all for made in node.outputs):
                continue
            inputs = [self._of_all.get(given, given) for given in node.inputs]
            if isinstance(node.op, COLLECTIVES):
                made = inputs
            elif node in self.drawn:
                made = [
                    new
                    if isinstance(self.value(new), OwnStream)
                    else self.gathered(new)
                    for new in self.drawn[node]
                ]
            else:
                made = self.remake(node, inputs).outputs
            self._of_all.update(zip(node.outputs, made, strict=True))
        found = self._of_all.get(var, var)
        if not is_replicated(self.value(found)):
            raise Refused("depends on what is not known of all rows")
        return found

    def all_rows(self, var: Variable) -> Variable:
        """Return the gathered rows for a mark of `synk.ops.all_gather`.

        A value without rows along axis 0, or whose rows cannot be gathered, stays as it
        is: the mark does not change the serial run's value.
        """
        value, before = self.value(var), len(self.inserted)
        if not isinstance(value, Sharded) or value.axis:
            return var
        with contextlib.suppress(Refused):
            found = self.gathered(var)
            self.inserted[before:] = []  # not by the compiler
            return found
        return var

    def own_rows(self, var: Variable, like: Variable) -> Variable:
        """Return this rank's rows of `var`, if it has an entry for each of all rows.

        It has if `like` is sharded along axis 0: in the serial run, the two are of
        equal length. Other values stay as they are.
        """
        rows = self.value(like)
        if not isinstance(rows, Sharded) or rows.axis or rows.length != "n":
            return var
        if rows.in_order and isinstance(self.value(var), (Partial, Replicated)):
            with contextlib.suppress(Refused):
                return self.cut_own_rows(self.whole(var), 0)
        return var

    def as_written(self, node: Apply) -> Apply:
        """Return a collective of the user's, with marks above it as collectives."""
        (made,) = self._written.write(node.outputs)
        self.asserted.update(self._written.asserted)
        assert made.owner is not None
        return made.owner

    def _all_numbers(self, var: Variable, value: Position) -> Variable:
        """Return 0, 1, ... for all ranks' rows."""
        if value.length != "n":
            raise Refused("counts entries of rows")
        numbers = pt.arange(self.call.length, dtype=var.type.dtype)
        order: list[Any] = ["x"] * var.type.ndim
        order[value.axis] = 0
        return self.add_graph(numbers.dimshuffle(order))

    def numbered(self, var: Any) -> Variable:
        """Return a `Position` plus the number of rows on the ranks before this one."""
        value = self.value(var)
        assert isinstance(value, Position)
        if value.length != "n":
            raise Refused("counts entries of rows")
        found: Any = var + pt.cast(self.call.first, var.type.dtype)
        return self.add_asserted(found, Sharded(value.axis))

    def cut_own_rows(self, var: Variable, axis: int) -> Variable:
        """Return this rank's rows of a whole value with an entry for each of all rows.

        A call raises if the axis has another length, as the serial run would.
        """
        lengths: list[Any] = [None] * var.type.ndim
        lengths[axis] = self.call.length
        return self.own_part(pt.specify_shape(var, lengths), Sharded(axis), self.n)

    def own_part(self, var: Any, rows: Sharded, own: Any) -> Variable:
        """Return this rank's entries of a value that all ranks have.

        `rows` is the `Value` of the result, and `own` its length along the rows' axis:
        a multiple of this rank's rows.
        """
        before: Any = self.call.first
        if rows.length != "n":
            before = before * (own // self.n)
        places = pt.arange(own) + before
        return self.add_asserted(pt.take(var, places, axis=rows.axis), rows)
