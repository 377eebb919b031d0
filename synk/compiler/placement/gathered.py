"""Gathering rows: what needs all at once, every rank computes from all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.elemwise import DimShuffle

from ...ops import COLLECTIVES, AllGather
from ..as_written import AsWritten
from ..domain import (
    IN_ORDER,
    OwnStream,
    Partial,
    Position,
    Refused,
    Replicated,
    Sharded,
    Value,
    is_replicated,
)
from .call_variables import CallVariables
from .whole import Whole


class Gathered(Whole):
    """The placed variables of one graph, and those that stand for all ranks' rows.

    Parameters
    ----------
    rows, known, call
        As of `Whole`.
    has_words : bool
        Whether the user has said in the graph which rows are to be where.

    Attributes
    ----------
    drawn : dict of Apply to list of Variable
        What stands for the random draws of the user's graph.
    """

    def __init__(
        self,
        rows: Sequence[Variable],
        known: dict[Variable, Value],
        call: CallVariables,
        has_words: bool,
    ) -> None:
        super().__init__(rows, known, call)
        self._has_words = has_words
        self._full: dict[Variable, Variable] = {}
        self._users: dict[Variable, Variable] = {}
        self._written = AsWritten(known, call)
        self.drawn: dict[Apply, list[Variable]] = {}

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
        var = self.first_of(var)
        found = self._wholes.get(var)
        if found is None:
            found = self._wholes[var] = self._gathered(var, value)
            self._wholes[found] = found
        return found

    def _gathered(self, var: Any, value: Sharded) -> Variable:
        if not value.is_counted or not (value.in_order or _is_reversed(value)):
            raise Refused("has rows that are not one after the other")
        node = var.owner
        if node is not None and isinstance(node.op, DimShuffle):
            # The rows of an input need no meeting, and those of x and x.T are the same.
            return self.anew(var, [self.gathered(node.inputs[0])])
        var = self.scaled(var, -(value.power or 0))
        others = [i for i in range(var.type.ndim) if i != value.axis]
        first = var.dimshuffle([value.axis, *others]) if value.axis else var
        if not value.in_order:
            first = first[::-1]
        made = self._met(AllGather(), self.of(first))
        if not value.in_order:
            made = made[::-1]
        if value.axis:
            order = list(range(1, var.type.ndim))
            order.insert(value.axis, 0)
            made = made.dimshuffle(order)
        return self.of(made)

    def of_all_rows(self, var: Variable) -> Variable:
        """Return a variable of the user's graph as computed from all rows.

        Random draws for rows are those that the rows' ranks have made.

        Raises
        ------
        Refused
            If it depends on what is not known of all rows.
        """
        for row in self._rows:
            if row not in self._full:
                with contextlib.suppress(Refused):
                    self._full[row] = self.gathered(row)
        self._fill_in(var)
        for node in io_toposort(list(self._full), [var]):
            if all(made in self._full for made in node.outputs):
                continue
            inputs = [self._full.get(given, given) for given in node.inputs]
            if isinstance(node.op, COLLECTIVES):
                made = inputs
            elif node in self.drawn:
                made = list(map(self._drawn_for_all, self.drawn[node]))
            else:
                made = self.again(node, inputs).outputs
            self._full.update(zip(node.outputs, made, strict=True))
        found = self._full.get(var, var)
        if not is_replicated(self.value(found)):
            raise Refused("depends on what is not known of all rows")
        return found

    def stand_for(self, placed: Sequence[Variable], users: Sequence[Variable]) -> None:
        """Note what operands were placed for, of a node whose Op's graph is placed.

        That graph computes with the placed ones, which are of a rank's rows and lead to
        what is this rank's own. From all rows the user's are computed.
        """
        for new, old in zip(placed, users, strict=True):
            if new is not old:
                self._users[new] = old

    def _fill_in(self, var: Variable) -> None:
        """Have what placed operands in a graph stand for computed from all rows."""
        known = [*self._full, *self._users]
        nodes = io_toposort(known, [var])
        met = {given for node in nodes for given in node.inputs} | {var}
        for new in met & self._users.keys() - self._full.keys():
            self._full[new] = self.of_all_rows(self._users[new])

    def all_rows(self, var: Variable) -> Variable:
        """Return the rows of all ranks, where the user has said that they are needed.

        What has no rows along axis 0, or such as are not gathered, stays as it is: it
        stands for the serial value, which the user's word does not change.
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
        """Return this rank's rows of what has one for each of all, if that is so.

        Parameters
        ----------
        var : Variable
            As long as the serial run's value of `like`.
        like : Variable
        """
        rows = self.value(like)
        if not isinstance(rows, Sharded) or rows.axis or rows.length != "n":
            return var
        if rows.in_order and isinstance(self.value(var), (Partial, Replicated)):
            with contextlib.suppress(Refused):
                return self.local(self.whole(var), 0)
        return var

    def as_written(self, node: Apply) -> Apply:
        """Return a collective of the user's, with those that it is computed from."""
        if not self._has_words:
            return node
        (made,) = self._written.write(node.outputs)
        self.asserted.update(self._written.asserted)
        assert made.owner is not None
        return made.owner

    def _drawn_for_all(self, var: Variable) -> Variable:
        """Return what was drawn, for all rows; streams stay as they are."""
        return var if isinstance(self.value(var), OwnStream) else self.gathered(var)

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
        return self.known_as(found, Sharded(value.axis))

    def local(self, var: Variable, axis: int) -> Variable:
        """Return this rank's rows of a whole value that has one for each row.

        It is an error if it has not: the serial run cannot combine it with all rows.
        """
        as_long: Any = self.call.as_long
        lengths: list[Any] = [None] * var.type.ndim
        lengths[axis] = as_long.shape[0]
        whole = pt.specify_shape(var, lengths)
        return self._part(whole, Sharded(axis), self.n, self.call.first)

    def own_part(self, var: Any, rows: Sharded, own: Any) -> Variable:
        """Return this rank's entries of what all ranks have: as many for each row.

        Parameters
        ----------
        var : Variable
        rows : Sharded
            What the entries are.
        own : Variable
            How many entries this rank has along the axis.
        """
        return self._part(var, rows, own, self.call.first * (own // self.n))

    def _part(self, var: Any, rows: Sharded, own: Any, before: Any) -> Variable:
        places = pt.arange(own) + before
        return self.known_as(pt.take(var, places, axis=rows.axis), rows)


def _is_reversed(value: Sharded) -> bool:
    layout = value.layout
    return layout is not None and layout == replace(IN_ORDER, reverse=True)
