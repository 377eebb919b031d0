"""Placing the reductions of a function: of outputs, and of new values of variables."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from pytensor import scalar as ps
from pytensor.compile import SharedVariable
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.type import DenseTensorType

from ..domain import Partial, Refused, Sharded, Value, is_replicated
from ..lengths import remembered
from ..proof import ops_of, rows_of
from ..rules.streams import is_stream
from .call_variables import CallVariables
from .gathered import Gathered
from .needs import Need, needs
from .own import OwnStatistics
from .placer import Placer, is_users
from .stabilised import stabilised
from .streams import CommonStream, Streams


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
    streams : list of CommonStream
        The random streams that all ranks have alike; they take the place of variables
        of the user's.
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
    streams: list[CommonStream] = field(default_factory=list)


def place(
    inputs: Sequence[Variable],
    stand_ins: Sequence[Variable],
    outputs: Sequence[Variable],
    updates: Sequence[tuple[SharedVariable, Variable]],
    own_statistics: bool = False,
    left: Sequence[Variable] = (),
) -> Placed:
    """Place the reductions of a function.

    Parameters
    ----------
    inputs, stand_ins : sequence of Variable
        The scattered inputs, and those that stand in for sliceable shared variables.
    outputs : sequence of Variable
    updates : sequence of (SharedVariable, Variable)
    own_statistics : bool
        Leave what meets rows again a rank's own.
    left : sequence of Variable
        What else the function computes, as it is written.

    Notes
    -----
    What stabilises a graph, as the logarithm of a sum of exponentials, PyTensor sees in
    one piece only. Where a reduction cuts one, that is done before.
    """
    graph = [*outputs, *(new for _, new in updates)]
    made = _placed(inputs, stand_ins, outputs, updates, graph, own_statistics, left)
    if made.collectives and _may_overflow(graph):
        stable, options = stabilised(graph), (own_statistics, left)
        made = _placed(inputs, stand_ins, outputs, updates, stable, *options)
    return made


def _placed(
    inputs: Sequence[Variable],
    stand_ins: Sequence[Variable],
    outputs: Sequence[Variable],
    updates: Sequence[tuple[SharedVariable, Variable]],
    graph: list[Variable],
    own_statistics: bool,
    left: Sequence[Variable],
) -> Placed:
    call = CallVariables.new()
    with remembered(inputs):
        whole = Gathered([*inputs, *stand_ins], rows_of(inputs, stand_ins), call)
        own = OwnStatistics(whole, own_statistics)
        streams = Streams(whole, [*left, *_left_in(graph)])
        placer = Placer(whole, own, streams)
        found = placer.place(graph)
        n = len(outputs)
        made = [
            _combinable(var, plain, whole)
            for var, plain in zip(found[:n], graph[:n], strict=True)
        ]
        news = [
            streams.of_update(written, plain)
            if is_stream(shared)
            else _serial(shared, new, plain, whole)
            for (shared, written), new, plain in zip(
                updates, found[n:], graph[n:], strict=True
            )
        ]
        plain_updates = zip((shared for shared, _ in updates), graph[n:], strict=True)
        tensors = [var for var in news if not is_stream(var)]
        commons = streams.commons(plain_updates, set(ancestors([*made, *tensors])))
        states = [stream.new for stream in commons if stream.new is not None]
        used = set(ancestors([*made, *news, *states]))
        collectives = [var for var in whole.inserted if var in used]
        return Placed(
            made,
            news,
            call,
            whole.values,
            [var for var in call.variables() if var in used],
            collectives,
            [node for node, made in placer.repeated if not used.isdisjoint(made)],
            whole.asserted,
            [var for var in own.met if var in used],
            needs(
                {var: _was_alike(var, whole) for var in collectives},
                placer.users(),
                list(zip(made, outputs, strict=True)),
                [(new, shared) for new, (shared, _) in zip(news, updates, strict=True)],
            ),
            commons,
        )


def _was_alike(var: Variable, whole: Gathered) -> bool:
    """Tell whether the ranks that have rows had a collective's result before it."""
    return is_replicated(whole.value(var.owner.inputs[0]))  # type: ignore[union-attr]


def _left_in(graph: Sequence[Variable]) -> list[Variable]:
    """Return what of a graph is left as it is written: what the user has reduced."""
    return [var for var in ancestors(graph) if var.owner and is_users(var.owner)]


def _combinable(var: Variable, plain: Variable, whole: Gathered) -> Variable:
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
    shared: SharedVariable, new: Variable, plain: Variable, whole: Gathered
) -> Variable:
    """Return the new value of a variable that the serial run computes, on all ranks."""
    if not isinstance(shared.type, DenseTensorType):
        return new
    for form, var in ((whole.gathered, new), (whole.of_all_rows, plain)):
        with contextlib.suppress(Refused):
            made = whole.on_all_ranks(form(var))
            return shared.type.filter_variable(made, allow_convert=True)
    return new


def _may_overflow(graph: Sequence[Variable]) -> bool:
    """Tell whether a graph has an exponential, whose sums PyTensor stabilises."""
    return any(
        var.owner is not None
        and type(getattr(var.owner.op, "scalar_op", None)) in (ps.Exp, ps.Expm1)
        for var in ancestors(graph)
    )
