"""Placing the reductions of a function: of outputs, and of new values of variables."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytensor.tensor as pt
from pytensor import scalar as ps
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.features import Feature
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import clone_replace
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import io_toposort
from pytensor.tensor.basic import Alloc
from pytensor.tensor.type import DenseTensorType

from ...draws import Passed
from ...user_frames import hand_on_line, made_in
from ..as_written import has_words
from ..domain import Partial, Refused, Sharded, Value, is_replicated
from ..lengths import remembered
from ..proof import are_rows, ops_of, rows_of
from ..rules.base import is_stream
from ..spec import Asked, Need, Taker
from .local_statistics import OwnStatistics
from .nodes import CallVariables
from .placer import Placer, is_users
from .row_draws import RowDraw, RowDraws, drawn_for_rows
from .streams import CommonStream, Streams
from .whole import Whole


@dataclass
class Placed:
    """Graphs with the reductions that they need.

    Attributes
    ----------
    outputs : list of Variable
    updates : list of Variable
        New values; each is the serial one, where that could be had.
    call_variables : list of Variable
        What of `CallVariables` they take.
    call : CallVariables
    collectives : list of Variable
        The results of the all-reduces and gathers that were inserted.
    repeated : list of Apply
        What every rank computes from all rows, of the user's graph or made of it.
    values : dict of Variable to Value
        What the variables are that have been placed, and what was tried on the way.
    asserted : dict of Variable to Value
        What of that is known by how it was made, and no rule can tell.
    own : list of Variable
        Statistics of a rank's own rows that meet these again.
    needs : dict of Variable to Need
        Why each collective was inserted.
    nodes : list of Apply
        In the order in which they are computed.
    written : list of Apply
        Those of the user's graph, likewise.
    streams : list of CommonStream
        The random streams that all ranks have alike; they take the place of variables
        of the user's.
    drawn : dict of Variable to Variable
        Of what is left as it is written, draws for rows, and what stands for them.
    row_draws : list of RowDraw
        All draws for rows.
    apart : list of Variable or None
        What is drawn for rows, if all that is drawn can be before anything is computed
        of rows.
    """

    outputs: list[Variable]
    updates: list[Variable]
    call: CallVariables
    values: dict[Variable, Value]
    call_variables: list[Variable] = field(default_factory=list)
    collectives: list[Variable] = field(default_factory=list)
    repeated: list[Apply] = field(default_factory=list)
    asserted: dict[Variable, Value] = field(default_factory=dict)
    own: list[Variable] = field(default_factory=list)
    needs: dict[Variable, Need] = field(default_factory=dict)
    nodes: list[Apply] = field(default_factory=list)
    written: list[Apply] = field(default_factory=list)
    streams: list[CommonStream] = field(default_factory=list)
    drawn: dict[Variable, Variable] = field(default_factory=dict)
    row_draws: list[RowDraw] = field(default_factory=list)
    apart: list[Variable] | None = None


def place(
    asked: Asked,
    outputs: Sequence[Variable],
    updates: Sequence[tuple[SharedVariable, Variable]],
    left: Sequence[Variable] = (),
) -> Placed:
    """Place the reductions of a function.

    Parameters
    ----------
    asked : Asked
        The function.
    outputs : sequence of Variable
        Of its outputs, and of its updates, those that are to be placed.
    updates : sequence of (SharedVariable, Variable)
    left : sequence of Variable
        What else the function computes, as it is written.

    Notes
    -----
    What stabilises a graph, as the logarithm of a sum of exponentials, PyTensor sees in
    one piece only. Where a reduction cuts one, that is done before.
    """
    graph = [*outputs, *(new for _, new in updates)]
    written = io_toposort([], graph)
    given = asked, outputs, updates, left
    made = _placed(*given, graph, written)
    if made.collectives and any(map(_may_overflow, written)):
        stable = stabilised(graph)
        made = _placed(*given, stable, io_toposort([], stable))
    made.written = written
    return made


def _placed(
    asked: Asked,
    outputs: Sequence[Variable],
    updates: Sequence[tuple[SharedVariable, Variable]],
    left: Sequence[Variable],
    graph: list[Variable],
    nodes: list[Apply],
) -> Placed:
    """Place the reductions of a graph, which may be a copy of the user's."""
    call = CallVariables.new()
    known = rows_of(asked.counted, asked.others)
    rows = [*asked.counted, *asked.others]
    whole = Whole(rows, known, call, has_words(nodes))
    own = OwnStatistics(whole, asked.keeps_statistics)
    reduced = [var for node in nodes if is_users(node) for var in node.outputs]
    left, drawn, draws = [*left, *reduced], list[Variable](), None
    if not asked.has_own_streams:
        draws, drawn = RowDraws(whole, asked.are_compiled), drawn_for_rows(left, known)
    if drawn:
        left = clone_replace(left, {var: var.type() for var in drawn})
    placer = Placer(whole, own, streams := Streams(whole, left, draws))
    with remembered(asked.counted):
        placer.draw(drawn)
        found = placer.place(graph)
        n = len(outputs)
        made = [
            _combinable(var, plain, whole)
            for var, plain in zip(found[:n], graph[:n], strict=True)
        ]
        news = [
            streams.of_update(written, plain)
            if is_stream(shared)
            else _serial(shared, new, plain, whole, in_parts=shared in asked.sliceable)
            for (shared, written), new, plain in zip(
                updates, found[n:], graph[n:], strict=True
            )
        ]
    shareds = [shared for shared, _ in updates]
    placed = Placed(made, news, call, whole.values, asserted=whole.asserted)
    tensors = [new for new in news if not is_stream(new)]
    plain_updates = zip(shareds, graph[n:], strict=True)
    placed.drawn = placer.drawn
    drawn = list(placed.drawn.values())
    placed.streams = streams.commons(plain_updates, [*made, *tensors, *drawn])
    used = _tell(placed, whole, own, placer, outputs, shareds)
    if draws is not None:
        in_use = [pair for pair in draws.placed if pair[0] in used]
        placed.row_draws = [draw for _, draw in in_use]
        apart = [var for var, draw in in_use if draw.is_apart]
        if all(_is_drawn_first(node, apart, whole) for node in placed.nodes):
            placed.apart = apart
    return placed


def _tell(
    placed: Placed,
    whole: Whole,
    own: OwnStatistics,
    placer: Placer,
    outputs: Sequence[Variable],
    shareds: Sequence[SharedVariable],
) -> set[Variable]:
    """Say of what was placed what of it is in use, and what it is for.

    Returns
    -------
    set of Variable
        What is in use.
    """
    states = [stream.new for stream in placed.streams if stream.new is not None]
    graph = [*placed.outputs, *placed.updates, *states, *placed.drawn.values()]
    placed.nodes = io_toposort([], graph)
    used = {
        *graph,
        *(var for node in placed.nodes for var in (*node.inputs, *node.outputs)),
    }
    placed.call_variables = [var for var in whole.call.variables() if var in used]
    placed.collectives = [var for var in whole.inserted if var in used]
    placed.repeated = [
        node for node, made in placer.repeated if not used.isdisjoint(made)
    ]
    placed.own = [var for var in own.met if var in used]
    placed.needs = needs(
        {var: _was_alike(var, whole) for var in placed.collectives},
        placer.users(),
        placed.nodes,
        list(zip(placed.outputs, outputs, strict=True)),
        list(zip(placed.updates, shareds, strict=True)),
    )
    return used


def _is_drawn_first(node: Apply, apart: list[Variable], whole: Whole) -> bool:
    """Tell whether a node draws nothing, or before anything is computed of rows."""
    if not any(map(is_stream, node.inputs)) or isinstance(node.op, Passed):
        return True
    of_rows = [var for var in node.outputs if var in whole.of_rows and var not in apart]
    return all(map(is_stream, of_rows))


def _was_alike(var: Variable, whole: Whole) -> bool:
    """Tell whether the ranks that have rows had a collective's result before it."""
    return is_replicated(whole.value(var.owner.inputs[0]))  # type: ignore[union-attr]


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


def needs(
    collectives: Mapping[Variable, bool],
    users: Mapping[Variable, Variable],
    nodes: Iterable[Apply],
    outputs: Sequence[tuple[Variable, Variable]],
    updates: Sequence[tuple[Variable, Variable]],
) -> dict[Variable, Need]:
    """Return for each collective what needs it.

    Parameters
    ----------
    collectives : mapping of Variable to bool
        The results of those that were placed, and whether all ranks that have rows had
        the value before.
    users : mapping of Variable to Variable
        Of placed variables those of the user's graph that they stand for. What is made
        between a collective and these, such as factors of n / N, is not the user's.
    nodes : iterable of Apply
        The placed graph, in the order in which it is computed.
    outputs : sequence of (Variable, Variable)
        As placed, and as the user has them.
    updates : sequence of (Variable, Variable)
        New values as placed, and the shared variables.
    """
    found: dict[Variable, Need] = {}
    # Of a variable the collectives that lead to it, with none of `users` between.
    leading: dict[Variable, dict[Variable, None]] = {}

    def note(given: Variable, taker: Taker, variable: Variable) -> None:
        for var in leading.get(given, ()):
            found.setdefault(var, Need(taker, variable, collectives[var]))

    for node in nodes:
        user = next((users[var] for var in node.outputs if var in users), None)
        if user is not None:
            for given in node.inputs:
                if given in leading:
                    note(given, "op", user)
        here = {var: None for var in node.outputs if var in collectives}
        if user is None:
            for given in node.inputs:
                here |= leading.get(given, {})
        if here:
            leading.update((var, here) for var in node.outputs)
    for var, output in outputs:
        note(var, "output", output)
    for var, shared in updates:
        note(var, "update", shared)
    return found


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
    copied.attach_feature(_Lines())
    rewrite_graph(
        copied,
        include=("canonicalize", "stabilize"),
        exclude=_LATER,
    )
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


class _Lines(Feature):
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
