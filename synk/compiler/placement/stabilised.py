"""Stabilising a graph before it is cut, such that lines of the user's stay known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytensor.graph.basic import Apply, Variable
from pytensor.graph.features import Feature
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.utils import rewrite_graph

from ...user_frames import hand_on_line, made_in


def stabilised(graph: Sequence[Variable]) -> list[Variable]:
    """Return a copy of a graph that PyTensor has made safe from overflow.

    What stands in the place of something says that it was made in the same line.
    """
    copied: Any = FunctionGraph(outputs=list(graph), clone=True, copy_inputs=False)
    copied.attach_feature(_Lines())
    rewrite_graph(
        copied,
        include=("canonicalize", "stabilize"),
        # A word of the user's that is a view is no view to the compiler. And of zeros
        # divided by rows PyTensor 2.38 makes zeros as long as themselves, for ever.
        exclude=("remove_collective", "local_view_op", "local_zero_div"),
    )
    return list(copied.outputs)


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
