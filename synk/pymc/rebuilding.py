"""Graphs rebuilt node by node, with some variables or nodes replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import ancestors, io_toposort
from pytensor.scan.op import Scan
from pytensor.tensor.type import DenseTensorType

from ..compiler.cloning import inlined, inner_graph_of, scan_of, with_inputs

Visit = Callable[[Apply, list[Variable]], list[Variable] | None]
"""Returns a node's new outputs for its new inputs, or None for those of `remade`."""


def rebuilt(
    graph: Sequence[Variable],
    visit: Visit | None = None,
    replace: Mapping[Variable, Variable] | None = None,
) -> list[Variable]:
    """Return graphs with variables replaced by `replace`, and nodes by `visit`."""
    made = dict(replace or {})
    for node in io_toposort(list(made), list(graph)):
        inputs = [made.get(var, var) for var in node.inputs]
        outputs = None if visit is None else visit(node, inputs)
        if outputs is None:
            outputs = remade(node, inputs)
        made.update(zip(node.outputs, outputs, strict=True))
    return [made.get(var, var) for var in graph]


def remade(node: Apply, inputs: list[Variable]) -> list[Variable]:
    """Return the outputs of a node's Op for other inputs, of possibly other types."""
    op: Any = node.op
    if all(new is old for new, old in zip(inputs, node.inputs, strict=True)):
        return node.outputs
    if [var.type for var in inputs] == [var.type for var in node.inputs]:
        return with_inputs(node, inputs).outputs
    if isinstance(op, OpFromGraph):
        if type(op) is OpFromGraph:
            return inlined(node, inputs)
        made = op(*inputs)  # in PyTensor 3.3 it builds its graph for these types
        return made if isinstance(made, list) else [made]
    scan = _with_open_lengths(node, inputs) if isinstance(op, Scan) else None
    outputs = (scan or op).make_node(*inputs).outputs
    for new, old in zip(outputs, node.outputs, strict=True):
        new.name = old.name
    return outputs


# -- scans


def _with_open_lengths(node: Apply, inputs: Sequence[Variable]) -> Scan | None:
    """Return a scan whose step leaves lengths open that the new inputs leave open.

    The step computes several rows at once, such as the subjects of a trial. Returns
    None if no length is open, or if the step contains such a length as a number, as in
    ``pt.arange(31)``, and so cannot compute another number of rows.
    """
    op: Any = node.op
    inner, outputs = inner_graph_of(node)
    outer_of = op.get_oinp_iinp_iout_oout_mappings()["outer_inp_from_inner_inp"]
    lengths: set[int] = set()
    for i, var in enumerate(inner):
        fixed = _shape(var)
        # The outer input may have one axis more, of the steps, which comes first.
        given = _shape(inputs[outer_of[i]])[-len(fixed) :] if fixed else ()
        pairs = zip(fixed, given, strict=True)
        lengths |= {n for n, now in pairs if n is not None and now is None}
    if not lengths or _names_one(outputs, inner, lengths):
        return None
    # All inner inputs, as a state's type must be that of its new value.
    step = [_open(var, lengths) for var in inner]
    results = rebuilt(outputs, replace=dict(zip(inner, step, strict=True)))
    return scan_of(op, step, results, op.info)


def _shape(var: Any) -> tuple[int | None, ...]:
    return var.type.shape if isinstance(var.type, DenseTensorType) else ()


def _open(var: Any, lengths: set[int]) -> Variable:
    """Return a stand-in for `var` whose type leaves these lengths open."""
    if not isinstance(var.type, DenseTensorType):
        return var.type(name=var.name)
    shape = tuple(None if length in lengths else length for length in var.type.shape)
    return var.type.clone(shape=shape)(name=var.name)


def _names_one(
    graph: Sequence[Variable], inner: Sequence[Variable], lengths: set[int]
) -> bool:
    """Return whether a step contains one of `lengths`, as a number or in a shape."""
    for var in set(ancestors(list(graph), blockers=list(inner))):
        if not isinstance(var, Constant) or not isinstance(var.type, DenseTensorType):
            continue
        data = np.asarray(var.data)
        if not lengths.isdisjoint(data.shape):
            return True
        if data.dtype.kind in "iu" and np.isin(data, list(lengths)).any():
            return True
    return False
