"""Copies of nodes and graphs with other inputs, or made of simpler Ops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.traversal import io_toposort
from pytensor.scan.op import Scan
from pytensor.tensor.basic import Alloc
from pytensor.tensor.special import LogSoftmax, Softmax

from ..user_frames import hand_on_line
from .rules.base import PUTTING


def with_inputs(node: Apply, inputs: Sequence[Variable]) -> Apply:
    """Return a node of the same Op with other inputs.

    Its outputs have the names and tags of the old ones. If inputs have other types,
    outputs may as well, and the Op may convert inputs.
    """
    if not hasattr(node, "clone_with_new_inputs"):
        # PyTensor 3.3 freezes graphs within Ops.
        return node.op.make_node(*inputs)
    return node.clone_with_new_inputs(list(inputs), strict=False)


def with_inner(nodes: Iterable[Apply]) -> Iterator[Apply]:
    """Yield nodes, and the nodes of graphs within their Ops."""
    for node in nodes:
        yield node
        if isinstance(node.op, HasInnerGraph):
            yield from with_inner(node.op.fgraph.apply_nodes)


def inner_graph_of(node: Apply) -> tuple[list[Variable], list[Variable]]:
    """Return the inputs and outputs of the graph within an Op; a copy if frozen."""
    graph = node.op.fgraph  # type: ignore[attr-defined]
    if hasattr(graph, "unfreeze"):  # since PyTensor 3.3
        graph = graph.unfreeze()
    return list(graph.inputs), list(graph.outputs)


def scan_of(
    op: Any, inputs: Sequence[Variable], outputs: Sequence[Variable], info: Any
) -> Scan:
    """Return a scan with the options of `op` and another step."""
    words = "mode", "truncate_gradient", "name", "profile", "allow_gc", "strict"
    how = {word: getattr(op, word) for word in words}
    return Scan(list(inputs), list(outputs), info, **how)


def inlined(node: Apply, inputs: Sequence[Variable] | None = None) -> list[Variable]:
    """Return the outputs of a node as a copy of the graph within its Op.

    The copy has the node's user line. `inputs`, if given, replace the node's, and may
    have other lengths than the graph was made for.
    """
    op: Any = node.op
    inputs = node.inputs if inputs is None else inputs
    inside = dict(zip(op.inner_inputs, inputs, strict=True))
    for inner in io_toposort(list(inside), op.inner_outputs):
        given = [inside.get(var, var) for var in inner.inputs]
        made = with_inputs(inner, given).outputs
        inside.update(zip(inner.outputs, made, strict=True))
        hand_on_line(node.outputs[0], made)
    return [inside.get(var, var) for var in op.inner_outputs]


def lowered(
    node: Apply, inputs: Sequence[Variable] | None = None
) -> list[Variable] | None:
    """Return the outputs of a node as a graph of simpler Ops; None if it has none.

    `inputs`, if given, replace the node's, and may be of other types. (An Op with a
    graph would convert them to its own types, even to the length of all rows.)
    """
    op: Any = node.op
    inputs = node.inputs if inputs is None else inputs
    if isinstance(op, OpFromGraph):
        return inlined(node, inputs)
    if isinstance(op, (Softmax, LogSoftmax)):
        x: Any = inputs[0]
        shifted = x - x.max(axis=op.axis, keepdims=True)
        odds = pt.exp(shifted)
        total = odds.sum(axis=op.axis, keepdims=True)
        is_log = isinstance(op, LogSoftmax)
        return [shifted - pt.log(total) if is_log else odds / total]
    if isinstance(op, PUTTING) and not op.set_instead_of_inc:
        # PyTensor adds the gradients of a prior and of grouped rows in such a node.
        base: Any = inputs[0]
        is_filled = base.owner is not None and isinstance(base.owner.op, Alloc)
        with_what = base.owner.inputs[0] if is_filled else base
        if not isinstance(with_what, Constant) or np.any(with_what.data):
            zeros = pt.alloc(np.zeros((), base.dtype), *base.shape)
            return [base + op.make_node(zeros, *inputs[1:]).outputs[0]]
    return None
