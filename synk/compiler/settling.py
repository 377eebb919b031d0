"""Settling how outputs and updates of a function come about on several ranks.

Reductions are placed where the serial numbers need them, and the proof then says of
every output how the ranks' values combine. What the user has named is left alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from pytensor.graph.basic import Apply, Variable
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.tensor.basic import ARange
from pytensor.tensor.type import DenseTensorType

from ..errors import SplitError
from ..ops import AllGather, AllReduce, is_collective
from ..reduce_ops import REDUCE_OPS, OutputOp, ReduceOp, check_dtype
from ..signals import without_collection
from ..user_frames import made_in
from .as_written import AsWritten, has_words
from .domain import Partial, Replicated, is_replicated
from .gathering import repeated, rows_exchanged
from .lengths import remembered
from .placement.function import Known, place
from .placement.streams import own_streams
from .proof import (
    Finding,
    are_rows,
    ops_of,
    prove,
    refusal,
    rows_of,
    say,
    warn_or_raise,
    why_not,
)
from .rules.base import literal, name
from .spec import UNNAMED, Asked, FunctionSpec, PlacedSpec
from .walk import infer_nodes


def settle(asked: Asked) -> FunctionSpec:
    """Place the reductions of a function, and find the ops that were not named.

    Sliceable variables may have other rows than those that ranks are weighed by. Where
    the function numbers rows by them, as ``p[arange(y.shape[0]), y]`` does, and cannot
    be computed unless they are as many, calls check that they are.
    """
    others, numbers = set(asked.others), list[Variable]()
    if others and not asked.is_local:
        for node in io_toposort([], asked.plain_graph):
            if isinstance(node.op, ARange):
                numbers += node.inputs
    if others.isdisjoint(ancestors(numbers)):
        return _settled(asked)
    error = None
    try:
        spec = _settled(asked)
    except SplitError as raised:
        error = raised
    if error is None and not spec.refused:
        return spec
    with contextlib.suppress(SplitError):
        paired = _settled(replace(asked, are_paired=True))
        if not paired.refused:
            return paired
    if error is not None:
        raise error
    return spec


def _settled(asked: Asked) -> FunctionSpec:
    """Place, and find ops, by what is known of the rows."""
    with without_collection(), remembered(asked.counted):
        spec = PlacedSpec.as_written(asked)
        known = Known(rows_of(asked.counted, asked.others))
        if not asked.is_local:
            spec, known = _placed(spec)
        placed = [var for node in known.nodes for var in node.outputs]
        if has_words(io_toposort(placed, spec.graph)):
            spec = _write_out(spec)
        known.nodes = [*known.nodes, *io_toposort(placed, spec.graph)]
        known.of_rows = spec.row_values_of([*known.written, *known.nodes])
        infer_nodes(known.nodes, known.values, spec.asserted)
        roots = {var: literal(var) for var in spec.graph if var.owner is None}
        known.values = roots | known.values
        return _combined(spec, known)


def _placed(spec: PlacedSpec) -> tuple[PlacedSpec, Known]:
    """Put in the reductions that the serial numbers need; say what is notable there."""
    spec, known = place(spec)
    own = own_streams(spec.graph, spec.streams) if spec.streams else ()
    if own:
        spec = replace(spec, apart=None)
    for stream in spec.streams:
        stream.is_split = stream.source in own
    if spec.repeated:
        say(repeated(spec), spec.is_strict)
    if spec.is_strict and (exchanged := rows_exchanged(spec)):
        say(exchanged, spec.is_strict)
    return spec, known


def _write_out(spec: PlacedSpec) -> PlacedSpec:
    """Put the collectives where the user's words are, in what is left as written."""
    made = AsWritten(rows_of(spec.counted, spec.others), spec.call)
    spec = spec.with_left(made.write(spec.left()))
    used = set(ancestors(spec.graph))
    return replace(
        spec,
        asserted={**spec.asserted, **made.asserted},
        call_variables=[var for var in spec.call.variables() if var in used],
    )


# -- how the ranks' values combine


def _combined(spec: PlacedSpec, known: Known) -> FunctionSpec:
    """Choose the ops that the user did not name."""
    values, of_rows = known.values, known.of_rows
    findings = _findings(spec, known)
    weak = [found for found in findings if not found.agrees and not found.named]
    update_ops, not_in_slices = list(spec.update_ops), []
    for i, (shared, new) in enumerate(spec.updates):
        if update_ops[i] != UNNAMED:
            continue
        value, is_tensor = values[new], isinstance(new.type, DenseTensorType)
        finding = prove(f"the new value of {shared}", new, value, None, False)
        update_ops[i] = None
        if new in of_rows and is_tensor:
            update_ops[i] = "gather" if are_rows(value) else finding.op
            if not (are_rows(value) or finding.agrees):
                not_in_slices.append(why_not(finding))
        is_own = shared in spec.sliceable or not is_tensor
        if spec.is_strict and not (spec.is_local or is_own or is_replicated(value)):
            weak.append(finding)
    refused = None
    if spec.is_local:
        warn_or_raise(weak, spec.is_strict, _NAME_IT)
    elif weak:
        refused = refusal(weak[0])
        if spec.is_strict:
            say(refused, spec.is_strict)
    sums: list[tuple[Variable, ReduceOp | None]] = []
    if not (spec.is_local or spec.own_statistics):
        sums = _sums(spec.graph, known)
    output_ops = [found.op for found in findings]
    outputs, wire_ops = _reduced_along(spec.outputs, output_ops, known.nodes)
    ops = {"output_ops": output_ops, "update_ops": update_ops}
    pairs = zip(spec.plain_updates, spec.updates, strict=False)
    made = FunctionSpec(
        **vars(spec) | ops | {"outputs": outputs},
        findings=findings,
        wire_ops=wire_ops,
        made_whole=[
            shared
            for i, ((shared, plain), (_, new)) in enumerate(pairs)
            if i not in spec.left_updates and plain in of_rows and new not in of_rows
        ],
        own_updates=[
            i
            for i, (_, new) in enumerate(spec.updates)
            if new in of_rows or not is_replicated(values[new])
        ],
        row_updates=[
            i
            for i, (shared, new) in enumerate(spec.updates)
            if shared in spec.sliceable and are_rows(values[new])
        ],
        not_in_slices=not_in_slices,
        sums=sums,
        refused=refused,
    )
    warn_or_raise(_wrong_reductions(spec, known), spec.is_strict, _REDUCE_IT)
    return made


def _wrong_reductions(spec: PlacedSpec, known: Known) -> Iterator[Finding]:
    """Yield reductions of the script's own that are not those of the serial run.

    Only with `is_strict` all; those of :func:`synk.grad` in any case.
    """
    for node in known.nodes:
        if not isinstance(node.op, (AllReduce, AllGather)):
            continue
        (var,), wrt, op = node.inputs, node.op.gradient, node.op.op
        if wrt is None and not spec.is_strict:
            continue
        collective = "all_gather" if op == "gather" else "all_reduce"
        what = f"the gradient of {wrt}" if wrt else f"{collective} of {name(var)}"
        value = known.values.get(var) or literal(var)
        finding = prove(what, var, value, op, True, made_in(node.outputs[0]))
        if not finding.agrees:
            yield finding


def _findings(spec: PlacedSpec, known: Known) -> list[Finding]:
    """Return what can be shown of each output."""
    findings = []
    for i, (var, op) in enumerate(zip(spec.outputs, spec.output_ops, strict=True)):
        finding = prove(
            f"output {i} ({name(spec.plain_outputs[i])})",
            var,
            known.values[var] if var in known.of_rows else Replicated(),
            "avg" if op == UNNAMED else op,
            named=op != UNNAMED,
        )
        if spec.is_local and not finding.agrees and not finding.named:
            check_tensor(var, "avg")
        findings.append(finding)
    return findings


def check_tensor(var: Variable, op: ReduceOp) -> None:
    """Raise unless an output can be reduced by an op."""
    if not isinstance(var.type, DenseTensorType):
        raise TypeError(f"output {var} is a {var.type}: it cannot be reduced by {op!r}")
    check_dtype(op, var.type.numpy_dtype, f"output {var}")


_NAME_IT = (
    "If that is meant, name the op: (variable, op). If a statistic over the rows is in"
    " the way, put synk.ops.all_reduce around it."
)

_REDUCE_IT = (
    "Leave it out, and the compiler places the right one. In a local function a"
    " gradient wants op='avg' if the cost is a mean over the rows, 'sum' if it is a"
    " sum; statistics want synk.ops.all_reduce around them."
)


def _sums(
    graph: list[Variable], known: Known
) -> list[tuple[Variable, ReduceOp | None]]:
    """Return how parts of the rows come together in what is made or reduced of them.

    None stands for what is the same of any rows.
    """
    reduced = [node.inputs[0] for node in known.nodes if is_collective(node)]
    found: list[tuple[Variable, ReduceOp | None]] = []
    for var in dict.fromkeys([*graph, *reduced]):
        value = known.values.get(var)
        if var not in known.of_rows or not isinstance(var.type, DenseTensorType):
            continue
        if isinstance(value, Partial | Replicated):
            kind, ops = np.dtype(var.type.dtype).kind, ops_of(value)[:1]
            # An average of integers is of another type, and sums of bools are none.
            left_out = {"f": (), "i": ("avg",), "u": ("avg",)}.get(kind, REDUCE_OPS)
            found += [(var, op) for op in ops if op not in left_out]  # type: ignore[misc]
    return found


def _reduced_along(
    outputs: list[Variable], ops: list[OutputOp], nodes: list[Apply]
) -> tuple[list[Variable], list[OutputOp]]:
    """Have losses and the like reduced with the gradients, if the graph reduces any."""
    outputs, wire_ops = list(outputs), list(ops)
    if not any(map(is_collective, nodes)):
        return outputs, wire_ops
    for i, (var, op) in enumerate(zip(outputs, ops, strict=True)):
        if not isinstance(var.type, DenseTensorType) or op not in ("avg", "sum"):
            continue
        if var.type.ndim == 0 and var.type.dtype in ("float32", "float64"):
            outputs[i] = AllReduce(op).make_node(var).outputs[0]
            wire_ops[i] = None
    return outputs, wire_ops
