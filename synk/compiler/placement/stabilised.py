"""Stabilising a graph before it is cut, such that lines of the user's stay known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.features import Feature
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.tensor.basic import Alloc

from ...user_frames import hand_on_line, made_in

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
