"""Graphs made anew, node by node, with other inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.scan.op import Scan
from pytensor.tensor.type import DenseTensorType

from ..compiler.cloning import inlined, scan_of, step_of, with_inputs

Visit = Callable[[Apply, list[Variable]], list[Variable] | None]
"""Makes the outputs of a node from other inputs, or leaves it to `remade`."""


def rebuilt(
    graph: Sequence[Variable],
    visit: Visit,
    stands: Mapping[Variable, Variable] | None = None,
) -> list[Variable]:
    """Return graphs made anew, node by node; in them others may stand for variables."""
    made = dict(stands or {})
    for node in io_toposort([], list(graph)):
        inputs = [made.get(var, var) for var in node.inputs]
        outputs = visit(node, inputs)
        if outputs is None:
            outputs = remade(node, inputs)
        made.update(zip(node.outputs, outputs, strict=True))
    return [made.get(var, var) for var in graph]


def remade(node: Apply, inputs: list[Variable]) -> list[Variable]:
    """Return what a node's Op makes of other inputs, which may be of other types."""
    op: Any = node.op
    if all(new is old for new, old in zip(inputs, node.inputs, strict=True)):
        return node.outputs
    if [var.type for var in inputs] == [var.type for var in node.inputs]:
        return with_inputs(node, inputs).outputs
    if isinstance(op, OpFromGraph):
        if type(op) is OpFromGraph:
            return inlined(node, inputs)
        made = op(*inputs)  # of PyTensor 3.3: it builds its graph for these types
        return made if isinstance(made, list) else [made]
    scan = _opened(node, inputs) if isinstance(op, Scan) else None
    outputs = (scan or op).make_node(*inputs).outputs
    for new, old in zip(outputs, node.outputs, strict=True):
        new.name = old.name
    return outputs


# -- scans


def _opened(node: Apply, inputs: Sequence[Variable]) -> Scan | None:
    """Return a scan whose step fixes no lengths but those that its inputs fix.

    Its step is made for rows that lie beside each other, as subjects do in each trial.
    None where the step has such a length in it, as ``pt.arange(31)``: it cannot be made
    for other rows.
    """
    op: Any = node.op
    inner, outputs = step_of(node)
    outer_of = op.get_oinp_iinp_iout_oout_mappings()["outer_inp_from_inner_inp"]
    # What a step gives for a state is the state of the next.
    opened: set[tuple[int, int]] = set()
    for i, var in enumerate(inner):
        outer: Any = inputs[outer_of[i]]
        opened |= {(i, axis) for axis in _axes_opened(var, outer)}
    lengths = {inner[i].type.shape[axis] for i, axis in opened}  # type: ignore[attr-defined]
    if not lengths or _names_one(outputs, inner, lengths):
        return None
    for _ in range(len(inner)):
        step = [_with_open(var, i, opened) for i, var in enumerate(inner)]
        made = dict(zip(inner, step, strict=True))
        for each in io_toposort(inner, outputs):
            given = [made.get(var, var) for var in each.inputs]
            made.update(zip(each.outputs, remade(each, given), strict=True))
        results = [made.get(var, var) for var in outputs]
        found = _opened_states(op, step, results)
        if not found - opened:
            return scan_of(op, step, results, op.info)
        opened |= found
    return None


def _axes_opened(var: Any, outer: Any) -> list[int]:
    """Return the axes of what a step sees whose lengths its outer input leaves open."""
    if not isinstance(var.type, DenseTensorType):
        return []
    before = outer.type.ndim - var.type.ndim
    return [
        axis
        for axis, length in enumerate(var.type.shape)
        if length is not None and outer.type.shape[axis + before] is None
    ]


def _with_open(var: Any, i: int, opened: set[tuple[int, int]]) -> Variable:
    if not isinstance(var.type, DenseTensorType):
        return var.type(name=var.name)
    shape = [
        None if (i, axis) in opened else length
        for axis, length in enumerate(var.type.shape)
    ]
    return var.type.clone(shape=tuple(shape))(name=var.name)


def _opened_states(
    op: Any, inner: Sequence[Any], outputs: Sequence[Any]
) -> set[tuple[int, int]]:
    """Return axes of states that a step gives of any length, and takes of one."""
    found = set()
    mapping = op.get_oinp_iinp_iout_oout_mappings()["inner_inp_from_inner_out"]
    for k, places in mapping.items():
        for i in places:
            if not isinstance(inner[i].type, DenseTensorType):
                continue
            pairs = zip(inner[i].type.shape, outputs[k].type.shape, strict=True)
            found |= {
                (i, axis)
                for axis, (taken, given) in enumerate(pairs)
                if taken is not None and given is None
            }
    return found


def _names_one(
    graph: Sequence[Variable], inner: Sequence[Variable], lengths: set[int]
) -> bool:
    """Tell whether a step is made for a length: a number in it, or a constant's."""
    for var in set(ancestors(list(graph), blockers=list(inner))):
        if not isinstance(var, Constant) or not isinstance(var.type, DenseTensorType):
            continue
        data = np.asarray(var.data)
        if not lengths.isdisjoint(data.shape):
            return True
        if data.dtype.kind in "iu" and np.isin(data, list(lengths)).any():
            return True
    return False
