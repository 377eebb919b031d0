"""Settling a function: placing collectives, and choosing the ops of its outputs.

`settle` places the collectives that the serial run's numbers need. The proof then tells
by which op the ranks' values of each output combine. Ops that the user named stay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

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
from .as_written import AsWritten, has_marks
from .domain import Listed, Partial, Replicated, Sharded, is_replicated
from .gathering import repeated, rows_exchanged
from .lengths import cached_lengths
from .placement.function import Known, place
from .placement.streams import own_streams
from .proof import (
    Finding,
    are_rows,
    ops_of,
    prove,
    refusal,
    rows_of,
    warn_or_raise,
    warn_user,
    why_not,
)
from .rules.base import literal, name
from .spec import UNNAMED, Asked, FunctionSpec, PlacedSpec
from .walk import infer_nodes


def settle(asked: Asked) -> FunctionSpec:
    """Return the function with placed collectives and an op for each output and update.

    A sliceable variable may have another number of rows on a rank than the inputs. If
    the function numbers its rows, as ``p[arange(y.shape[0]), y]`` does, and can only be
    computed if the numbers are equal, it is settled so, and calls check that
    (`Asked.are_paired`).
    """
    others, numbers = set(asked.uncounted), list[Variable]()
    if others and not asked.is_local:
        for node in io_toposort([], asked.plain_graph):
            if isinstance(node.op, ARange):
                numbers += node.inputs
    if others.isdisjoint(ancestors(numbers)):
        return _settled(asked)
    for are_paired in (False, True):
        with contextlib.suppress(SplitError):
            spec = _settled(replace(asked, are_paired=are_paired))
            if not spec.refused:
                return spec
    return _settled(asked)  # refused, or with the error, as if they need not be equal


def _settled(asked: Asked) -> FunctionSpec:
    """Place collectives and choose ops, with `are_paired` as it is in `asked`."""
    with without_collection(), cached_lengths(asked.counted):
        spec = PlacedSpec.as_written(asked)
        known = Known(rows_of(asked.counted, asked.uncounted))
        if not asked.is_local:
            spec, known = _placed(spec)
        placed = [var for node in known.nodes for var in node.outputs]
        if has_marks(io_toposort(placed, spec.graph)):
            spec = _write_out(spec)
        known.nodes = [*known.nodes, *io_toposort(placed, spec.graph)]
        known.of_rows = spec.row_values_of([*known.written, *known.nodes])
        infer_nodes(known.nodes, known.values, spec.asserted)
        roots = {var: literal(var) for var in spec.graph if var.owner is None}
        known.values = roots | known.values
        return _combined(spec, known)


def _placed(spec: PlacedSpec) -> tuple[PlacedSpec, Known]:
    """Place collectives; warn of, or with `is_strict` raise for, costly ones."""
    spec, known = place(spec)
    own = own_streams(spec.graph, spec.streams) if spec.streams else ()
    if own:
        spec = replace(spec, early_draws=None)
    for stream in spec.streams:
        stream.is_split = stream.source in own
    if spec.repeated:
        warn_user(repeated(spec), spec.is_strict)
    if spec.is_strict and (exchanged := rows_exchanged(spec)):
        warn_user(exchanged, spec.is_strict)
    return spec, known


def _write_out(spec: PlacedSpec) -> PlacedSpec:
    """Replace marks by collectives in the graphs that stay as they are written."""
    made = AsWritten(rows_of(spec.counted, spec.uncounted), spec.call)
    spec = spec.with_unplaced(made.write(spec.unplaced()))
    used = set(ancestors(spec.graph))
    return replace(
        spec,
        asserted={**spec.asserted, **made.asserted},
        call_variables=[var for var in spec.call.variables() if var in used],
    )


# -- how the ranks' values combine


def _combined(spec: PlacedSpec, known: Known) -> FunctionSpec:
    """Return the function with ops in place of `UNNAMED`, and what the proof shows."""
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
            warn_user(refused, spec.is_strict)
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
            if i not in spec.unplaced_updates
            and plain in of_rows
            and new not in of_rows
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
        passed_on=_passed_on(known),
        refused=refused,
    )
    warn_or_raise(_wrong_reductions(spec, known), spec.is_strict, _REDUCE_IT)
    return made


def _wrong_reductions(spec: PlacedSpec, known: Known) -> Iterator[Finding]:
    """Yield findings on the user's collectives that do not give the serial result.

    Of all with `is_strict`; else only of those that :func:`synk.grad` wrote.
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
    """Return what the proof shows of each output."""
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
    """Return `FunctionSpec.sums`: variables, and the op that combines blocks' values.

    The op is None if all blocks have the same value.
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


def _passed_on(known: Known) -> dict[Variable, Literal["gather", "stack"]]:
    """Return `FunctionSpec.passed_on`."""
    found: dict[Variable, Literal["gather", "stack"]] = {}
    made = (var for node in known.nodes for var in node.outputs)
    for var in filter(known.of_rows.__contains__, made):
        value = known.values[var]
        if isinstance(value, Sharded):
            if value.axis == 0 and value.length == "n" and value.in_order:
                found[var] = "gather"
        elif isinstance(value, Partial | Replicated | Listed):
            found[var] = "stack"
    return found


def _reduced_along(
    outputs: list[Variable], ops: list[OutputOp], nodes: list[Apply]
) -> tuple[list[Variable], list[OutputOp]]:
    """Return outputs and wire ops, with scalar floats reduced by the stages.

    So losses travel with the gradients. Only if the graph has a collective anyway.
    """
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
