"""Settling how outputs and updates of a function come about on several ranks.

Reductions are placed where the serial numbers need them, and the proof then says of
every output how the ranks' values combine. What the user has named is left alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container
from dataclasses import replace
from typing import Any

from pytensor.compile import SharedVariable
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.tensor.basic import ARange
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.type import DenseTensorType

from ..errors import SplitError
from ..garbage import without_collection
from ..ops import AllReduce, is_collective
from ..reduce_ops import OutputOp, ReduceOp, check_dtype
from .as_written import AsWritten, has_words
from .domain import Partial, Replicated, Value, is_replicated
from .gathering import repeated, rows_exchanged
from .lengths import remembered
from .placement.function import Placed, place
from .placement.streams import CommonStream, own_streams
from .proof import (
    are_rows,
    ops_of,
    prove,
    reductions,
    refusal,
    rows_of,
    say,
    warn_or_raise,
    why_not,
)
from .rules.base import literal, name
from .spec import FunctionSpec
from .walk import infer_nodes

UNNAMED: Any = "unnamed"
"""Stands for an op until it is settled: None is an op of its own."""


def settle(spec: FunctionSpec, strict: bool, local: bool, own_statistics: bool) -> None:
    """Place the reductions of a function, and find the ops that were not named.

    Parameters
    ----------
    spec : FunctionSpec
        Ops that were not named are `UNNAMED`.
    strict : bool
        Raise for what is not shown to be as in the serial run.
    local : bool
        Place nothing: every rank runs the graph as it is, on its own rows.
    own_statistics : bool
        Place nothing for statistics that meet rows again: these are a rank's own.

    Notes
    -----
    Sliceable variables may have other rows than those that ranks are weighed by. Where
    the function numbers rows by them, as ``p[arange(y.shape[0]), y]`` does, and cannot
    be computed unless they are as many, calls check that they are.
    """
    asked = strict, local, own_statistics
    paired = _copied(spec) if not local and _counts_others(spec) else None
    error = None
    try:
        _settle(spec, *asked)
    except SplitError as raised:
        error = raised
    if paired is not None and (error or spec.refused):
        paired.are_paired = True
        with contextlib.suppress(SplitError):
            _settle(paired, *asked)
            if not paired.refused:
                vars(spec).update(vars(paired))
                return
    if error is not None:
        raise error


def _counts_others(spec: FunctionSpec) -> bool:
    """Tell whether rows are numbered by as many as there are of what does not weigh."""
    others = set(spec.others)
    if not others:
        return False
    graph = [*spec.outputs, *(new for _, new in spec.updates)]
    numbers = [
        var
        for node in io_toposort([], graph)
        if isinstance(node.op, ARange)
        for var in node.inputs
    ]
    return not others.isdisjoint(ancestors(numbers))


def _copied(spec: FunctionSpec) -> FunctionSpec:
    """Return a specification that is settled by itself."""
    given: dict[str, Any] = {
        key: list(of) for key, of in vars(spec).items() if isinstance(of, list)
    }
    return replace(spec, **given)


def _settle(
    spec: FunctionSpec, strict: bool, local: bool, own_statistics: bool
) -> None:
    """Place, and find ops, by what is known of the rows."""
    spec.plain_outputs, spec.plain_updates = list(spec.outputs), list(spec.updates)
    spec.is_local, spec.is_strict = local, strict
    left = spec.left_outputs, spec.left_updates = _left(spec, local)
    with without_collection(), remembered(spec.counted):
        values = rows_of(spec.counted, spec.others)
        written: list[Apply] = []
        nodes: list[Apply] = []
        if not local:
            placed = _place(spec, strict, own_statistics, *left)
            values, written, nodes = placed.values, placed.written, placed.nodes
        rest = _rest(spec, nodes)
        if has_words(rest):
            _write_out(spec, *left)
            rest = _rest(spec, nodes)
        nodes = [*nodes, *rest]
        of_rows = spec.row_values_of([*written, *nodes])
        spec.made_whole = _made_whole(spec, of_rows, left[1])
        _settle_ops(spec, strict, local, nodes, of_rows, values)
        _reduce_along(spec, nodes)


def _rest(spec: FunctionSpec, placed: list[Apply]) -> list[Apply]:
    """Return the nodes that were not placed, in the order of computation."""
    made = [var for node in placed for var in node.outputs]
    return io_toposort(made, [*spec.outputs, *(new for _, new in spec.updates)])


def _made_whole(
    spec: FunctionSpec, of_rows: Container[Variable], left: Container[int]
) -> list[SharedVariable]:
    """Return what is updated by values of all rows, in place of those of a rank's."""
    pairs = zip(spec.plain_updates, spec.updates, strict=False)
    return [
        shared
        for i, ((shared, plain), (_, new)) in enumerate(pairs)
        if i not in left and plain in of_rows and new not in of_rows
    ]


def _left(spec: FunctionSpec, local: bool) -> tuple[list[int], list[int]]:
    """Return which outputs and which updates are left as they are written."""
    outputs = [i for i, op in enumerate(spec.output_ops) if local or op != UNNAMED]
    updates = [i for i, op in enumerate(spec.update_ops) if local or op != UNNAMED]
    return outputs, updates


def _write_out(spec: FunctionSpec, outputs: list[int], updates: list[int]) -> None:
    """Put the collectives where the user's words are, in what is left as written."""
    graph = [spec.outputs[i] for i in outputs]
    graph += [spec.updates[i][1] for i in updates]
    made = AsWritten(rows_of(spec.counted, spec.others), spec.call)
    written = made.write(graph)
    for i, var in zip(outputs, written, strict=False):
        spec.outputs[i] = var
    for i, var in zip(updates, written[len(outputs) :], strict=True):
        spec.updates[i] = spec.updates[i][0], var
    spec.asserted = {**spec.asserted, **made.asserted}
    used = set(ancestors([*spec.outputs, *(new for _, new in spec.updates)]))
    spec.call_variables = [var for var in spec.call.variables() if var in used]


def check_tensor(var: Variable, op: ReduceOp) -> None:
    """Raise unless an output can be reduced by an op."""
    if not isinstance(var.type, DenseTensorType):
        raise TypeError(f"output {var} is a {var.type}: it cannot be reduced by {op!r}")
    check_dtype(op, var.type.numpy_dtype, f"output {var}")


def _place(
    spec: FunctionSpec,
    strict: bool,
    own_statistics: bool,
    left_outputs: list[int],
    left_updates: list[int],
) -> Placed:
    """Put in the reductions that the serial numbers need.

    What the user has named an op for stays as it is.
    """
    outputs = [i for i in range(len(spec.outputs)) if i not in left_outputs]
    updates = [i for i in range(len(spec.updates)) if i not in left_updates]
    placed = place(
        spec.counted,
        spec.others,
        [spec.outputs[i] for i in outputs],
        [spec.updates[i] for i in updates],
        own_statistics,
        [
            *(spec.outputs[i] for i in left_outputs),
            *(spec.updates[i][1] for i in left_updates),
        ],
        spec.sliceable,
    )
    for i, var in zip(outputs, placed.outputs, strict=True):
        spec.outputs[i] = var
    for i, new in zip(updates, placed.updates, strict=True):
        spec.updates[i] = spec.updates[i][0], new
    _take_streams(spec, placed.streams)
    spec.call, spec.call_variables = placed.call, placed.call_variables
    spec.asserted, spec.needs = placed.asserted, placed.needs
    spec.repeated, spec.own_statistics = placed.repeated, placed.own
    if spec.repeated:
        say(repeated(spec), strict)
    if strict and (exchanged := rows_exchanged(spec)):
        say(exchanged, strict)
    return placed


def _take_streams(spec: FunctionSpec, streams: list[CommonStream]) -> None:
    """Have the streams updated that all ranks have alike.

    Each is in the place of the user's variable, or beside it if that is drawn from too.
    """
    places = {shared: i for i, (shared, _) in enumerate(spec.updates)}
    for stream in streams:
        if stream.new is None:
            continue
        i = places[stream.source]
        pair = stream.common, stream.new
        if spec.updates[i][1] is stream.source:
            spec.updates[i] = pair
        else:
            spec.updates.append(pair)
            spec.update_ops.append(None)
    spec.streams = streams
    if streams:
        graph = [*spec.outputs, *(new for _, new in spec.updates)]
        own = own_streams(graph, streams)
        for stream in streams:
            stream.is_split = stream.source in own


def _settle_ops(
    spec: FunctionSpec,
    strict: bool,
    local: bool,
    nodes: list[Apply],
    of_rows: Container[Variable],
    values: dict[Variable, Value],
) -> None:
    """Choose the ops that the user did not name.

    The rules are asked of what is not in `values`: what was left as it is written. What
    was placed was placed by what they say of it.
    """
    graph = [*spec.outputs, *(new for _, new in spec.updates)]
    infer_nodes(nodes, values, spec.asserted)
    values = {var: literal(var) for var in graph if var.owner is None} | values
    for i, (var, op) in enumerate(zip(spec.outputs, spec.output_ops, strict=True)):
        finding = prove(
            f"output {i} ({name(spec.plain_outputs[i])})",
            var,
            values[var] if var in of_rows else Replicated(),
            "avg" if op == UNNAMED else op,
            named=op != UNNAMED,
        )
        if local and not finding.agrees and not finding.named:
            check_tensor(var, "avg")
        spec.output_ops[i] = finding.op
        spec.findings.append(finding)
    weak = [found for found in spec.findings if not found.agrees and not found.named]
    for i, (shared, new) in enumerate(spec.updates):
        if spec.update_ops[i] != UNNAMED:
            continue
        value = values[new]
        spec.update_ops[i] = _slices_op(spec, i, value if new in of_rows else None)
        is_own = shared in spec.sliceable or not isinstance(new.type, DenseTensorType)
        if strict and not (local or is_own or is_replicated(value)):
            weak.append(prove(f"the new value of {shared}", new, value, None, False))
    if local:
        warn_or_raise(weak, strict, _NAME_IT)
    elif weak:
        spec.refused = refusal(weak[0])
        if strict:
            say(spec.refused, strict)
    if not local and all(map(_is_shape, spec.asserted)):
        spec.sums = _sums(graph, nodes, values)
    spec.own_updates = [
        i
        for i, (_, new) in enumerate(spec.updates)
        if new in of_rows or not is_replicated(values[new])
    ]
    spec.row_updates = [
        i
        for i, (shared, new) in enumerate(spec.updates)
        if shared in spec.sliceable and are_rows(values[new])
    ]
    reduced = reductions(nodes, values)
    weak = [
        found
        for of_gradient, found in reduced
        if not found.agrees and (of_gradient or strict)
    ]
    warn_or_raise(weak, strict, _REDUCE_IT)


_NAME_IT = (
    "If that is meant, name the op: (variable, op). If a statistic over the rows is in"
    " the way, put synk.ops.all_reduce around it."
)

_REDUCE_IT = (
    "Leave it out, and the compiler places the right one. In a local function a"
    " gradient wants op='avg' if the cost is a mean over the rows, 'sum' if it is a"
    " sum; statistics want synk.ops.all_reduce around them."
)


def _is_shape(var: Variable) -> bool:
    """Tell whether a value was asserted that is true of any rows, as shapes are.

    Others are of a rank's rows, as squares about their mean.
    """
    return var.owner is not None and isinstance(var.owner.op, (Shape, Shape_i))


def _sums(
    graph: list[Variable], nodes: list[Apply], values: dict[Variable, Value]
) -> list[tuple[Variable, ReduceOp]]:
    """Return what is a sum or an average over rows, of what is made or reduced."""
    reduced = [node.inputs[0] for node in nodes if is_collective(node)]
    found: list[tuple[Variable, ReduceOp]] = []
    for var in dict.fromkeys([*graph, *reduced]):
        value = values.get(var)
        if isinstance(value, Partial) and var.type.dtype in ("float32", "float64"):  # type: ignore[attr-defined]
            found += [(var, op) for op in ops_of(value)[:1] if op in ("sum", "avg")]
    return found


def _slices_op(spec: FunctionSpec, i: int, value: Value | None) -> OutputOp:
    """Choose how the slices' values of an update are combined."""
    shared, new = spec.updates[i]
    if value is None or not isinstance(new.type, DenseTensorType):
        return None
    finding = prove(f"the new value of {shared}", new, value, None, named=False)
    if are_rows(value):
        return "gather"
    if not finding.agrees:
        spec.not_in_slices.append(why_not(finding))
    return finding.op


def _reduce_along(spec: FunctionSpec, nodes: list[Apply]) -> None:
    """Have losses and the like reduced with the gradients, if the graph reduces any."""
    spec.wire_ops = list(spec.output_ops)
    if not any(map(is_collective, nodes)):
        return
    for i, (var, op) in enumerate(zip(spec.outputs, spec.output_ops, strict=True)):
        is_scalar = isinstance(var.type, DenseTensorType) and var.type.ndim == 0
        if (
            op in ("avg", "sum")
            and is_scalar
            and var.type.dtype in ("float32", "float64")
        ):
            spec.outputs[i] = AllReduce(op).make_node(var).outputs[0]
            spec.wire_ops[i] = None
