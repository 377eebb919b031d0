"""Placing the collectives of a function: of its outputs and of its updates."""

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
from ..domain import Partial, Refused, Sharded, Value, is_replicated
from ..lengths import cached_lengths
from ..proof import are_rows, ops_of, rows_of
from ..rules.base import is_stream
from ..spec import Need, PlacedSpec, Taker
from .local_statistics import OwnStatistics
from .placer import Placer, is_users
from .row_draws import RowDraws, drawn_for_rows
from .streams import CommonStream, Streams
from .whole import Whole


@dataclass
class Known:
    """The facts about a function's graph that its settling uses."""

    values: dict[Variable, Value]
    """Of all placed variables, also those that were tried and are not used."""
    nodes: list[Apply] = field(default_factory=list)
    """The nodes of the placed graph, in the order of computation."""
    written: list[Apply] = field(default_factory=list)
    """The user's nodes that the placed ones stand for."""
    of_rows: set[Variable] = field(default_factory=set)
    """The variables that depend on a rank's own rows."""


def place(spec: PlacedSpec) -> tuple[PlacedSpec, Known]:
    """Return a function with the collectives that the serial run's numbers need.

    Outputs and updates whose op the user named stay as they are. PyTensor stabilises,
    say, the logarithm of a sum of exponentials only if no collective cuts it. So if
    collectives were placed in a graph with exponentials, `place` stabilises the graph
    first and places it again.
    """
    outputs, updates = spec.unplaced_outputs, spec.unplaced_updates
    graph = [var for i, var in enumerate(spec.outputs) if i not in outputs]
    graph += [new for i, (_, new) in enumerate(spec.updates) if i not in updates]
    written = io_toposort([], graph)
    placed, known = _Placing(spec, written, graph).done()
    exponentials = (ps.Exp, ps.Expm1)
    scalars = [getattr(node.op, "scalar_op", None) for node in written]
    if placed.needs and any(type(scalar) in exponentials for scalar in scalars):
        stable = stabilised(graph)
        placed, known = _Placing(spec, io_toposort([], stable), stable).done()
    known.written = written
    return placed, known


class _Placing:
    """Places the graph of one function; `graph` may be a stabilised copy of it."""

    def __init__(
        self, spec: PlacedSpec, nodes: list[Apply], graph: list[Variable]
    ) -> None:
        self.spec, self.plain = spec, graph
        self.outputs, self.updates = list(spec.outputs), list(spec.updates)
        n, m = len(self.outputs), len(self.updates)
        self.output_places = [i for i in range(n) if i not in spec.unplaced_outputs]
        self.update_places = [i for i in range(m) if i not in spec.unplaced_updates]
        known = rows_of(spec.counted, spec.uncounted)
        self.whole = Whole(known)
        self.own = OwnStatistics(self.whole, spec.keeps_statistics)
        left = [var for node in nodes if is_users(node) for var in node.outputs]
        left = [*spec.unplaced(), *left]
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
        """Return the placed function, and the facts about its graph."""
        with cached_lengths(self.spec.counted):
            self._place()
        drawn = list(self.placer.drawn.values())
        made = [self.outputs[i] for i in self.output_places]
        shareds = [self.updates[i][0] for i in self.update_places]
        news = [self.updates[i][1] for i in self.update_places]
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
        n = len(self.output_places)
        for i, pair in zip(self.output_places, pairs[:n], strict=True):
            self.outputs[i] = _combinable(*pair, self.whole)
        for i, (new, plain) in zip(self.update_places, pairs[n:], strict=True):
            shared, written = self.updates[i]
            if is_stream(shared):
                new = self.streams.of_update(written, plain)
            else:
                in_parts = shared in self.spec.sliceable
                new = _serial(shared, new, plain, self.whole, in_parts)
            self.updates[i] = shared, new
        if self.placer.drawn:
            left = clone_replace(self.spec.unplaced(), self.placer.drawn)
            made = replace(self.spec, outputs=self.outputs, updates=self.updates)
            made = made.with_unplaced(left)
            self.outputs, self.updates = made.outputs, made.updates

    def _spec(
        self, nodes: list[Apply], used: set[Variable], streams: list[CommonStream]
    ) -> PlacedSpec:
        """Return the function with `used` variables, and why collectives are there."""
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
        early = [var for var, draw in in_use if draw.is_early]
        is_first = all(_is_drawn_first(node, early, whole) for node in nodes)
        return replace(
            spec,
            row_draws=[draw for _, draw in in_use],
            early_draws=early if is_first else None,
        )

    def _needs(self, nodes: list[Apply], used: set[Variable]) -> dict[Variable, Need]:
        """Return, by result of a placed collective, what in the user's graph takes it.

        That is the first node below it that stands for one of the user's, or an output
        or update. Nodes between, such as factors of n / N, are the placer's.
        """
        users, found = self.placer.users(), dict[Variable, Need]()
        of_users = {
            node: users[var]
            for node in nodes
            for var in reversed(node.outputs)
            if var in users
        }
        met = used.intersection(self.whole.inserted)

        seen: set[Variable] = set()  # collectives above these are noted already

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
        for i in self.output_places:
            note([self.outputs[i]], "output", self.spec.outputs[i])
        for i in self.update_places:
            shared, new = self.updates[i]
            note([new], "update", shared)
        return found


def _with_streams(
    updates: list[tuple[SharedVariable, Variable]], streams: list[CommonStream]
) -> list[tuple[SharedVariable, Variable]]:
    """Return the updates with those of common streams.

    The update of a common stream replaces that of the user's variable, or is appended
    if each rank draws from the variable, too.
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


def _is_drawn_first(node: Apply, early: list[Variable], whole: Whole) -> bool:
    """Return whether a node draws nothing, or can draw before any row is needed."""
    if not any(map(is_stream, node.inputs)) or isinstance(node.op, Passed):
        return True
    of_rows = whole.of_rows.intersection(node.outputs).difference(early)
    return all(map(is_stream, of_rows))


def _combinable(var: Variable, plain: Variable, whole: Whole) -> Variable:
    """Return an output in a form that an op combines; as it is if there is none."""
    value = whole.value(var)
    if ops_of(value):
        early = whole.in_fewer_meetings(var) if isinstance(value, Partial) else None
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
    """Return the serial run's new value of a variable, for all ranks.

    With `in_parts`, each rank has its own rows of the variable, and updates these.
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


_EXCLUDED = (
    # They remove marks and collectives, which are views to PyTensor.
    *("remove_collective", "local_view_op"),
    # PyTensor 2.38 rewrites zeros divided by rows to new such zeros, without end.
    "local_zero_div",
    # It asserts that a filled array has length 1 if that length is no constant yet.
    "local_merge_alloc",
)


def stabilised(graph: Sequence[Variable]) -> list[Variable]:
    """Return a canonicalised and stabilised copy of a graph, safe from overflow.

    Replacements keep the user's lines of what they replace.
    """
    copied: Any = FunctionGraph(outputs=list(graph), clone=True, copy_inputs=False)
    copied.attach_feature(_LineKeeper())
    rewrite_graph(copied, include=("canonicalize", "stabilize"), exclude=_EXCLUDED)
    _fix_lengths(copied)
    return list(copied.outputs)


def _fix_lengths(graph: Any) -> None:
    """Make lengths of filled arrays constants where the arrays' types fix them."""
    for node in graph.toposort():
        if isinstance(node.op, Alloc):
            for i, fixed in enumerate(node.outputs[0].type.shape, 1):
                length = node.inputs[i]
                if fixed is not None and not isinstance(length, Constant):
                    known = pt.constant(fixed, dtype=length.type.dtype)
                    graph.change_node_input(node, i, known)


class _LineKeeper(Feature):
    """Gives a replacement the user's line of what it replaces; not all rewrites do."""

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
