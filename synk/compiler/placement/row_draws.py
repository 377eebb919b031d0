"""Placing random draws for rows, with the serial run's numbers: see `synk.draws`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytensor.tensor as pt
import pytensor.tensor.random.basic as ptr
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import io_toposort
from pytensor.scan.op import Scan
from pytensor.tensor.random.op import RandomVariable
from pytensor.tensor.type_other import NoneTypeT

from ...draws import (
    OF_ANY_PARAMETERS,
    SKIPPED,
    Passed,
    is_one_by_one,
    is_one_coin,
)
from ..cloning import inner_graph_of, scan_of, with_inputs
from ..domain import (
    IN_ORDER,
    OwnStream,
    Refused,
    Replicated,
    Sharded,
    Unknown,
    Value,
    is_replicated,
    unlisted,
)
from ..rules.base import is_stream
from ..rules.inner import step_of, values_within
from ..rules.randomness import may_be_by_place, rows_drawn
from ..walk import apply_rule, infer
from .whole import Whole


def drawn_for_rows(
    graph: Sequence[Variable], known: Mapping[Variable, Value]
) -> list[Variable]:
    """Return the variables of an unplaced graph that are drawn for each row."""
    if not any(isinstance(n.op, RandomVariable) for n in io_toposort([], graph)):
        return []  # without `infer`, which takes long
    return [
        var
        for var, value in infer(graph, known).items()
        if isinstance(value, Sharded)
        and var.owner is not None
        and isinstance(var.owner.op, RandomVariable)
    ]


class PlacedDraw(NamedTuple):
    """A draw for rows, in the user's graph or in a graph within an Op."""

    node: Apply
    skips: bool
    """Whether a rank skips other ranks' numbers in the stream; else it draws them."""
    is_early: bool
    """Whether it can be drawn before anything is computed from rows: it has one entry
    for each row, along the first axis, and parameters that are equal on all ranks."""


class RowDraws:
    """Places draws for rows.

    `are_compiled`: numba or JAX compiles the function; there each coin toss takes one
    number of the stream. `placed` has the drawn variables with their draws.
    """

    def __init__(self, whole: Whole, are_compiled: bool) -> None:
        self._whole, self._are_compiled = whole, are_compiled
        self.placed: list[tuple[Variable, PlacedDraw]] = []

    def place(self, node: Apply, inputs: Sequence[Variable]) -> list[Variable] | None:
        """Return the placed outputs of a node that draws for rows; None if it does not.

        `inputs` are placed operands with common streams. The outputs are new states of
        these, and values for this rank's rows.
        """
        whole = self._whole
        values = [OwnStream() if is_stream(v) else whole.value(v) for v in inputs]
        if isinstance(node.op, Scan):
            return self._in_steps(node, inputs, values)
        rows = rows_drawn(node, values)
        if rows is None:
            return None
        if not (rows.is_counted and rows.in_order):
            raise Refused("draws for rows that are not one after the other")
        rows = replace(rows, layout=IN_ORDER)
        alike = all(is_replicated(unlisted(value)) for value in values[2:])
        is_free = self._are_free(node.op) or (is_one_by_one(node.op) and alike)
        is_passed = rows.axis == 0 and is_free
        made = (self._passing if is_passed else self._cut)(node, inputs, rows)
        skips = is_passed and self._skips(node)
        is_early = rows.axis == 0 and rows.length == "n" and alike
        self.placed.append((made[1], PlacedDraw(node, skips, is_early)))
        return made

    def _takes_one(self, draw: Any) -> bool:
        """Return whether each draw takes one number of the stream, in any case."""
        is_tossed = self._are_compiled and isinstance(draw, ptr.BernoulliRV)
        return is_tossed or isinstance(draw, SKIPPED)

    def _are_free(self, draw: Any) -> bool:
        """Return whether parameters do not change how many numbers a draw takes."""
        return type(draw) in OF_ANY_PARAMETERS or self._takes_one(draw)

    def _passing(
        self, node: Apply, inputs: Sequence[Variable], rows: Sharded
    ) -> list[Variable]:
        """Place a draw: pass over the rows before this rank's, then draw for its rows.

        The new state of the stream is that after all rows' draws.
        """
        whole, draw, stream = self._whole, node.op, inputs[0]
        own, size = _lengths(node, inputs, rows)
        before: Any = pt.cast(whole.call.first, "int64")
        if rows.length != "n":  # a multiple of n
            before = before * (own // whole.n)
            total: Any = whole.scaled(whole.add_graph(own), -1)
        elif may_be_by_place(node):
            total = pt.cast(whole.call.total, "int64")
        else:  # JAX draws all of it, and has to know the length
            total = whole.call.length
        here = whole.add_graph(pt.stack([before, *size[1:]]))
        lengths = map(whole.on_all_ranks, map(whole.add_graph, [total, *size[1:]]))
        every = whole.add_graph(pt.stack(list(lengths)))
        params = self._passed_params(draw, inputs[2:])
        before_own = self._passed(draw, "before")
        at_rows = before_own.make_node(stream, here, every, *params).outputs[0]
        at_rows = whole.add_asserted(at_rows, OwnStream())
        _, drawn = whole.remake(node, [at_rows, *inputs[1:]]).outputs
        everywhere = [whole.on_all_ranks(whole.whole(var)) for var in params]
        after = self._passed(draw, "all").make_node(stream, every, every, *everywhere)
        return [whole.add_graph(after.outputs[0]), whole.add_asserted(drawn, rows)]

    def _skips(self, node: Apply) -> bool:
        return isinstance(node.op, SKIPPED) or is_one_coin(node.op, node.inputs[2:])

    def _passed(self, draw: Any, where: str) -> Passed:
        return Passed(draw, where, self._takes_one(draw))

    def _passed_params(self, draw: Any, params: Sequence[Variable]) -> list[Variable]:
        """Return the parameters with which draws are passed over."""
        if self._takes_one(draw):
            return []
        if type(draw) in OF_ANY_PARAMETERS:
            return [
                self._whole.add_graph(pt.as_tensor_variable(value))
                for value in OF_ANY_PARAMETERS[type(draw)]
            ]
        return list(params)

    def _cut(
        self, node: Apply, inputs: Sequence[Variable], rows: Sharded
    ) -> list[Variable]:
        """Place a draw: draw for all rows on every rank, and take this rank's."""
        whole = self._whole
        given = [whole.on_all_ranks(whole.gathered(var)) for var in inputs[1:]]
        led_on, drawn = whole.remake(node, [inputs[0], *given]).outputs
        if not is_replicated(whole.value(drawn)):
            raise Refused("draws for rows that are not known on every rank")
        own, _ = _lengths(node, inputs, rows)
        return [led_on, whole.own_part(drawn, rows, own)]

    # -- in a loop

    def _in_steps(
        self, node: Apply, inputs: Sequence[Variable], values: list[Value]
    ) -> list[Variable] | None:
        """Place a scan whose steps draw for rows, with the serial run's states.

        None if no step does.
        """
        op: Any = node.op
        inner, outputs = inner_graph_of(node)
        step = step_of(outputs, _drawn_or_alike)
        found, results = values_within(node, inner, outputs, values, step)
        if not any(isinstance(value, Sharded) for value in found.values()):
            return None
        if op.info.as_while or any(isinstance(value, Unknown) for value in results):
            raise Refused("is a loop that is not understood")
        whole = self._whole
        places = _RowPlaces(*[pt.lscalar() for _ in _RowPlaces._fields])
        new: dict[Variable, Variable] = {}
        draws: list[PlacedDraw] = []
        for each in io_toposort(inner, outputs):
            given = [new.get(var, var) for var in each.inputs]
            made = with_inputs(each, given).outputs if given != each.inputs else None
            if any(map(is_stream, each.inputs)):
                made = self._step_drawn(each, given, found, places)
                if isinstance(found[each.outputs[-1]], Sharded):
                    draws.append(PlacedDraw(each, self._skips(each), is_early=False))
            new.update(zip(each.outputs, made or each.outputs, strict=True))
        news = [new.get(var, var) for var in outputs]
        info = replace(op.info, n_non_seqs=op.info.n_non_seqs + len(places))
        scan = scan_of(op, [*inner, *places], news, info)
        known: Any = _RowPlaces(whole.call.first, whole.n, whole.call.total)
        outer = [pt.cast(number, "int64") for number in known]
        made = whole.add(scan.make_node(*inputs, *map(whole.add_graph, outer))).outputs
        self.placed += [(made[-1], draw) for draw in draws]
        alike = [Replicated() if isinstance(v, OwnStream) else v for v in results]
        pairs = zip(made, alike, strict=True)
        return [whole.add_asserted(var, value) for var, value in pairs]

    def _step_drawn(
        self,
        node: Apply,
        inputs: Sequence[Variable],
        found: Mapping[Variable, Value],
        places: _RowPlaces,
    ) -> list[Variable]:
        """Return the placed outputs of a node that draws in a step of a scan."""
        draw: Any = node.op
        if not isinstance(draw, RandomVariable):
            raise Refused("draws within a loop by what is made of other graphs")
        rows = rows_drawn(node, [found[var] for var in node.inputs])
        if rows is None:
            return with_inputs(node, inputs).outputs
        is_passed = rows.axis == 0 and rows.is_counted and rows.in_order
        if not (is_passed and self._are_free(draw)):
            raise Refused("draws for rows in a loop, and not one after the other")
        own, size = _lengths(node, inputs, rows)
        each = own // places.n
        before, total = places.first * each, places.total * each
        every = pt.stack([total, *size[1:]])
        params = self._passed_params(draw, inputs[2:])

        def passed(where: str, stream: Any, count: Any) -> Variable:
            here = pt.stack([count, *size[1:]])
            made = self._passed(draw, where).make_node(stream, here, every, *params)
            return made.outputs[0]

        at_rows = passed("before", inputs[0], before)
        behind, drawn = with_inputs(node, [at_rows, *inputs[1:]]).outputs
        return [passed("behind", behind, total - before - own), drawn]


class _RowPlaces(NamedTuple):
    """The number of rows before a rank's, of the rank's own rows, and of all rows."""

    first: Any
    n: Any
    total: Any


def _drawn_or_alike(node: Apply, values: list[Value]) -> list[Value]:
    """Return the values of a step's node; draws not for rows are replicated."""
    if isinstance(node.op, RandomVariable):
        with contextlib.suppress(Refused):
            if rows_drawn(node, values) is None:
                return [OwnStream(), Replicated()]
    return apply_rule(node, values)


def _lengths(
    node: Apply, inputs: Sequence[Variable], rows: Sharded
) -> tuple[Any, list[Any]]:
    """Return the length of a rank's draws along the rows' axis, and along each axis."""
    size: Any = inputs[1]
    draw: Any = node.op
    axes = range(node.outputs[1].type.ndim - draw.ndim_supp)
    if not isinstance(size.type, NoneTypeT):
        lengths = [size[i] for i in axes]
    else:
        cores = zip(inputs[2:], draw.ndims_params, strict=True)
        params = [(var, var.type.ndim - core) for var, core in cores]
        lengths = [_length(params, i - len(axes)) for i in axes]
    lengths = [pt.cast(length, "int64") for length in lengths]
    return lengths[rows.axis], lengths


def _length(params: Sequence[tuple[Any, int]], axis: int) -> Any:
    """Return the length of a batch axis, counted from the last, of draws.

    `params` are the parameters with their numbers of batch axes.
    """
    for var, batch in params:
        if batch >= -axis and var.type.shape[batch + axis] != 1:
            return var.shape[batch + axis]
    return pt.constant(1)
