"""Graphs that stay as the user wrote them: collectives in place of `all_gather` marks.

Where the compiler places collectives, the marks `AllRows` and `OwnRows` are the
identity, as in the serial run. Under a named op, under a user's all-reduce and with
``local=True`` every rank computes from its own rows. There `AllRows` becomes a gather
of the ranks' rows, and `OwnRows`, its gradient, this rank's rows of the sum over ranks.

The cotangent of a mean over a rank's n rows has a power p of n, here -1. A rank divides
what it adds by its n**p, and multiplies its rows of the sum by its n**p. So all
cotangents on a rank, of its rows or of others', are relative to the same n.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Variable

from ..errors import SplitError
from ..ops import AllGather, AllReduce, AllRows, OwnRows
from ..user_frames import hand_on_line, where_made
from .cloning import with_inner, with_inputs
from .domain import Partial, Power, Replicated, Sharded, Unknown, Value
from .lengths import size
from .placement.nodes import CallVariables
from .rules.base import name, op_name
from .walk import infer


def has_marks(nodes: Collection[Apply]) -> bool:
    """Return whether marks are among nodes, or in graphs within their Ops."""
    # Classes are fewer than nodes, and to ask PyTensor's abstract ones takes long.
    classes = {type(node.op) for node in with_inner(nodes)}
    return any(issubclass(cls, (AllRows, OwnRows)) for cls in classes)


class AsWritten:
    """Puts collectives in the place of marks, in graphs of one function.

    A mark that several of the graphs share becomes one collective.

    `rows` are the function's inputs with rows. `asserted` has values of new variables
    that no rule can tell.
    """

    def __init__(self, rows: Mapping[Variable, Value], call: CallVariables) -> None:
        self._rows, self._call = rows, call
        self._seen: set[Apply] = set()
        self._new: dict[Variable, Variable] = {}
        self.asserted: dict[Variable, Value] = {}

    def write(self, graph: Sequence[Variable]) -> list[Variable]:
        """Return a graph with collectives in place of marks; other variables stay.

        Raises `SplitError` if a gathered value is not shown to have a rank's number of
        rows, or if a mark is in a graph within an Op, where ranks cannot meet.
        """
        todo = [(var.owner, False) for var in graph if var.owner]
        while todo:
            node, is_ready = todo.pop()
            if is_ready:
                self._visit(node)
            elif node not in self._seen:
                self._seen.add(node)
                todo.append((node, True))
                todo += [(var.owner, False) for var in node.inputs if var.owner]
        return [self._new.get(var, var) for var in graph]

    def _visit(self, node: Apply) -> None:
        inputs = [self._new.get(var, var) for var in node.inputs]
        if isinstance(node.op, AllRows):
            self._check_rows(inputs[0])
            made = AllGather().make_node(*inputs).outputs
        elif isinstance(node.op, OwnRows):
            made = [self._own_rows(*inputs)]
        elif has_marks([node]):  # in a graph within it, which a rank runs in one piece
            raise SplitError(
                f"all_gather inside of {op_name(node.op)}{where_made(node.outputs[0])},"
                " in a graph that is left as it is written: the ranks would have to"
                " wait for one another within a compiled graph; gather before or after"
                " it"
            )
        elif any(a is not b for a, b in zip(inputs, node.inputs, strict=True)):
            made = with_inputs(node, inputs).outputs
        else:
            return
        hand_on_line(node.outputs[0], made)
        for old, var in zip(node.outputs, made, strict=True):
            var.name = var.name or old.name
            self._new[old] = var

    def _own_rows(self, cotangent: Any, like: Variable) -> Variable:
        self._check_rows(like)
        value = infer([cotangent], self._rows, self.asserted)[cotangent]
        power: Power = 0
        if isinstance(value, Partial) and value.op == "sum":
            power = value.power
        elif isinstance(value, Replicated) and value.power is not None:
            power = value.power - 1  # a replicated value is a mean of itself
        first: Any = next(iter(self._rows))
        n = first.shape[0]
        op = AllReduce("sum", f"all_gather of {name(like)}", of_gather=True)
        total: Any = op.make_node(_times(cotangent, n, -(power or 0))).outputs[0]
        found = pt.take(total, pt.arange(n) + self._call.first, axis=0)
        found = _times(found, n, power or 0)
        known = isinstance(value, (Partial, Replicated))
        self.asserted[found] = Sharded(0, power) if known else value
        return found

    def _check_rows(self, var: Variable) -> None:
        """Raise unless a variable is as long along axis 0 as the rank's rows."""
        counted = [row for row, value in self._rows.items() if value == Sharded(0)]
        length: Any = size(var, 0)
        if any(length == size(row, 0) for row in counted):
            return
        value = infer([var], self._rows, self.asserted)[var]
        if isinstance(value, Sharded) and value.axis == 0 and value.length == "n":
            return
        why = f": {value}" if isinstance(value, Unknown) else ""
        raise SplitError(
            f"all_gather of {name(var)}{where_made(var)} is in a graph that is left as"
            " it is written, where it joins the rows that the ranks have computed; and"
            f" its length along axis 0 is not shown to be the number of rows{why}."
            " Gather what has a row for each row of the inputs, and compute the rest"
            " from it."
            " Or have the reductions placed, which makes it the serial run's value:"
            " without local=True, a named op or an all_reduce on top of it."
        )


def _times(var: Any, n: Any, power: int) -> Any:
    """Return a variable times n**power, as products, which the rules know."""
    n = pt.cast(n, var.type.dtype)
    for _ in range(abs(power)):
        var = var * n if power > 0 else var / n
    return var
