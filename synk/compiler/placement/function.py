"""Placing the reductions of a function: of outputs, and of new values of variables."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytensor.tensor as pt
from pytensor import scalar as ps
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.features import Feature
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import io_toposort, walk
from pytensor.tensor.basic import Alloc
from pytensor.tensor.type import DenseTensorType

from ...draws import Passed
from ...user_frames import hand_on_line, made_in
from ..as_written import has_words
from ..domain import Partial, Refused, Sharded, Value, is_replicated
from ..lengths import remembered
from ..proof import are_rows, ops_of, rows_of
from ..rules.base import is_stream
from ..spec import Need, PlacedSpec, Taker
from .local_statistics import OwnStatistics
from .nodes import CallVariables
from .placer import Placer, is_users
from .row_draws import RowDraws, drawn_for_rows
from .streams import CommonStream, Streams
from .whole import Whole


@dataclass
class Known:
    """What is known of the values of a graph while it is settled."""

    values: dict[Variable, Value]
    """Of what was placed, and tried on the way, by what the rules say of it."""
    nodes: list[Apply] = field(default_factory=list)
    """In the order of computation."""
    written: list[Apply] = field(default_factory=list)
    """Those of the script's in place of which others were placed."""
    of_rows: set[Variable] = field(default_factory=set)
    """What follows from a rank's rows."""


def place(spec: PlacedSpec) -> tuple[PlacedSpec, Known]:
    """Put in the reductions that the serial numbers need.

    What the user has named an op for stays as it is. What stabilises a graph, as the
    logarithm of a sum of exponentials, PyTensor sees in one piece only. Where a
    reduction cuts one, that is done before.
    """
    graph = [var for i, var in enumerate(spec.outputs) if i not in spec.left_outputs]
    pairs = [pair for i, pair in enumerate(spec.updates) if i not in spec.left_updates]
    graph += [new for _, new in pairs]
    written = io_toposort([], graph)
    placed, known = _Placing(spec, written, graph).done()
    if placed.needs and any(map(_may_overflow, written)):
        stable = stabilised(graph)
        placed, known = _Placing(spec, io_toposort([], stable), stable).done()
    known.written = written
    return placed, known


class _Placing:
    """Places a graph, which may be a copy of the user's, in a function."""

    def __init__(
        self, spec: PlacedSpec, nodes: list[Apply], graph: list[Variable]
    ) -> None:
        self.spec, self.plain = spec, graph
        self.outputs, self.updates = list(spec.outputs), list(spec.updates)
        self.which = [i for i in range(len(self.outputs)) if i not in spec.left_outputs]
        self.of_which = [
            i for i in range(len(self.updates)) if i not in spec.left_updates
        ]
        known = rows_of(spec.counted, spec.others)
        call, rows = CallVariables.new(), [*spec.counted, *spec.others]
        self.whole = Whole(rows, known, call, has_words(nodes))
        self.own = OwnStatistics(self.whole, spec.keeps_statistics)
        left = [var for node in nodes if is_users(node) for var in node.outputs]
        left = [*spec.left(), *left]
        self.draws: RowDraws | None = None
        self.drawn: list[Variable] = []
        if not spec.has_own_streams:
            self.draws = RowDraws(self.whole, spec.are_compiled)
            self.drawn = drawn_for_rows(left, known)
        if self.drawn:
            left = clone_replace(left, {var: var.type() for var in self.drawn})
        self.streams = Streams(self.whole, left, self.draws)
        self.placer = Placer(self.whole, self.own, self.streams)

    def done(self) -> tuple[PlacedSpec, Known]:
        """Return the function with what is placed, and what is known of that."""
        with remembered(self.spec.counted):
            self._place()
        drawn = list(self.placer.drawn.values())
        made = [self.outputs[i] for i in self.which]
        shareds = [self.updates[i][0] for i in self.of_which]
        news = [self.updates[i][1] for i in self.of_which]
        tensors = [new for new in news if not is_stream(new)]
        plain = zip(shareds, self.plain[len(made) :], strict=True)
        streams = self.streams.commons(plain, [*made, *tensors, *drawn])
        states = [stream.new for stream in streams if stream.new is not None]
        graph = [*made, *news, *states, *drawn]
        nodes = io_toposort([], graph)
        used = {var for node in nodes for var in (*node.inputs, *node.outputs)}
        used.update(graph)
        return self._spec(nodes, used, streams), Known(self.whole.values, nodes)

    def _place(self) -> None:
        self.placer.draw(self.drawn)
        found = self.placer.place(self.plain)
        pairs = list(zip(found, self.plain, strict=True))
        n = len(self.which)
        for i, pair in zip(self.which, pairs[:n], strict=True):
            self.outputs[i] = _combinable(*pair, self.whole)
        for i, (new, plain) in zip(self.of_which, pairs[n:], strict=True):
            shared, written = self.updates[i]
            if is_stream(shared):
                new = self.streams.of_update(written, plain)
            else:
                in_parts = shared in self.spec.sliceable
                new = _serial(shared, new, plain, self.whole, in_parts)
            self.updates[i] = shared, new
        if self.placer.drawn:
            left = clone_replace(self.spec.left(), self.placer.drawn)
            made = replace(self.spec, outputs=self.outputs, updates=self.updates)
            made = made.with_left(left)
            self.outputs, self.updates = made.outputs, made.updates

    def _spec(
        self, nodes: list[Apply], used: set[Variable], streams: list[CommonStream]
    ) -> PlacedSpec:
        """Say of what was placed what of it is in use, and what it is for."""
        whole, placer = self.whole, self.placer
        updates = _with_streams(self.updates, streams)
        more = len(updates) - len(self.updates)
        spec = replace(
            self.spec,
            outputs=self.outputs,
            updates=updates,
            update_ops=[*self.spec.update_ops, *[None] * more],
            streams=streams,
            call=whole.call,
            call_variables=[var for var in whole.call.variables() if var in used],
            asserted=whole.asserted,
            needs=self._needs(nodes, used),
            repeated=[
                node for node, made in placer.repeated if not used.isdisjoint(made)
            ],
            own_statistics=[var for var in self.own.met if var in used],
        )
        if self.draws is None:
            return spec
        in_use = [pair for pair in self.draws.placed if pair[0] in used]
        apart = [var for var, draw in in_use if draw.is_apart]
        is_first = all(_is_drawn_first(node, apart, whole) for node in nodes)
        return replace(
            spec,
            row_draws=[draw for _, draw in in_use],
            apart=apart if is_first else None,
        )

    def _needs(self, nodes: list[Apply], used: set[Variable]) -> dict[Variable, Need]:
        """Return for each collective what of the user's needs it.

        What is made between the two, such as factors of n / N, is not the user's.
        """
        users, found = self.placer.users(), dict[Variable, Need]()
        of_users = {
            node: users[var]
            for node in nodes
            for var in reversed(node.outputs)
            if var in users
        }
        met = used.intersection(self.whole.inserted)

        seen: set[Variable] = set()  # what is behind these has found who needs it

        def before(var: Variable) -> list[Variable] | None:
            if var in seen or var.owner is None or var.owner in of_users:
                return None
            seen.add(var)
            return var.owner.inputs

        def note(given: list[Variable], taker: Taker, variable: Variable) -> None:
            for var in walk(given, before):
                if var in met and var not in found:
                    was_alike = is_replicated(self.whole.value(var.owner.inputs[0]))  # type: ignore[union-attr]
                    found[var] = Need(taker, variable, was_alike)

        for node, user in of_users.items():
            note(node.inputs, "op", user)
        for i in self.which:
            note([self.outputs[i]], "output", self.spec.outputs[i])
        for i in self.of_which:
            shared, new = self.updates[i]
            note([new], "update", shared)
        return found


def _with_streams(
    updates: list[tuple[SharedVariable, Variable]], streams: list[CommonStream]
) -> list[tuple[SharedVariable, Variable]]:
    """Have the streams updated that all ranks have alike.

    Each is in the place of the user's variable, or beside it if that is drawn from too.
    """
    places = {shared: i for i, (shared, _) in enumerate(updates)}
    made = list(updates)
    for stream in streams:
        if stream.new is None:
            continue
        pair, i = (stream.common, stream.new), places[stream.source]
        if made[i][1] is stream.source:
            made[i] = pair
        else:
            made.append(pair)
    return made


def _is_drawn_first(node: Apply, apart: list[Variable], whole: Whole) -> bool:
    """Tell whether a node draws nothing, or before anything is computed of rows."""
    if not any(map(is_stream, node.inputs)) or isinstance(node.op, Passed):
        return True
    of_rows = [var for var in node.outputs if var in whole.of_rows and var not in apart]
    return all(map(is_stream, of_rows))


def _combinable(var: Variable, plain: Variable, whole: Whole) -> Variable:
    """Return an output in a form that some op combines, if it has one."""
    value = whole.value(var)
    if ops_of(value):
        early = whole.earlier(var) if isinstance(value, Partial) else None
        return var if early is None else whole.on_all_ranks(early)
    with contextlib.suppress(Refused):
        if isinstance(value, Sharded) and value.power and not value.axis:
            var = whole.scaled(var, -value.power)
            if ops_of(whole.value(var)):
                return var
        return whole.gathered(var)
    with contextlib.suppress(Refused):
        return whole.of_all_rows(plain)
    return var


def _serial(
    shared: SharedVariable,
    new: Variable,
    plain: Variable,
    whole: Whole,
    in_parts: bool,
) -> Variable:
    """Return the new value of a variable that the serial run computes, on all ranks.

    Of a variable that lies `in_parts` on the ranks, each keeps its own part.
    """
    if not isinstance(shared.type, DenseTensorType):
        return new
    if in_parts and are_rows(whole.value(new)):
        return new
    for form, var in ((whole.gathered, new), (whole.of_all_rows, plain)):
        with contextlib.suppress(Refused):
            made = whole.on_all_ranks(form(var))
            return shared.type.filter_variable(made, allow_convert=True)
    return new


def _may_overflow(node: Apply) -> bool:
    """Tell whether a node is an exponential, whose sums PyTensor stabilises."""
    return type(getattr(node.op, "scalar_op", None)) in (ps.Exp, ps.Expm1)


_LATER = (
    # A word of the user's that is a view is no view to the compiler.
    *("remove_collective", "local_view_op"),
    # Of zeros divided by rows PyTensor 2.38 makes others as long as they are, for ever.
    "local_zero_div",
    # Of a length of 1 that is no constant yet it asserts that what is filled has that.
    "local_merge_alloc",
)


def stabilised(graph: Sequence[Variable]) -> list[Variable]:
    """Return a copy of a graph that PyTensor has made safe from overflow.

    What stands in the place of something says that it was made in the same line.
    """
    copied: Any = FunctionGraph(outputs=list(graph), clone=True, copy_inputs=False)
    copied.attach_feature(_LineKeeper())
    rewrite_graph(copied, include=("canonicalize", "stabilize"), exclude=_LATER)
    _fix_lengths(copied)
    return list(copied.outputs)


def _fix_lengths(graph: Any) -> None:
    """Have lengths of filled arrays that types tell be constants, for what follows."""
    for node in graph.toposort():
        if isinstance(node.op, Alloc):
            for i, fixed in enumerate(node.outputs[0].type.shape, 1):
                length = node.inputs[i]
                if fixed is not None and not isinstance(length, Constant):
                    known = pt.constant(fixed, dtype=length.type.dtype)
                    graph.change_node_input(node, i, known)


class _LineKeeper(Feature):
    """Hands on the lines of what is replaced, which not all rewrites do."""

    def on_change_input(
        self,
        fgraph: FunctionGraph,
        node: Apply,
        i: int,
        var: Variable,
        new_var: Variable,
        reason: Any = None,
    ) -> None:
        """Take note of a replacement; PyTensor calls it after each."""
        if made_in(var) is None:
            return
        todo = [new_var]
        while todo:
            owner = todo.pop().owner
            if owner is not None and made_in(owner.outputs[0]) is None:
                hand_on_line(var, owner.outputs)
                todo += owner.inputs
