"""`theano.gof`: variables, nodes, Ops, types; ``pytensor.graph``."""

from pytensor.graph import Apply, Constant, FunctionGraph, Op, Type, Variable
from pytensor.graph.rewriting.basic import node_rewriter as local_optimizer
from pytensor.graph.traversal import (
    ancestors,
    graph_inputs,
    io_toposort,
)
from pytensor.graph.utils import MethodNotDefined
from pytensor.link.c.op import COp
from pytensor.link.c.type import CType, Generic, generic

from ..forwarding import forward

__all__ = [
    "Apply",
    "COp",
    "CType",
    "Constant",
    "FunctionGraph",
    "Generic",
    "MethodNotDefined",
    "Op",
    "Type",
    "Variable",
    "ancestors",
    "generic",
    "graph_inputs",
    "inputs",
    "io_toposort",
    "local_optimizer",
]

inputs = graph_inputs
"""Older name of `graph_inputs`."""

__getattr__, __dir__ = forward(
    __name__,
    "pytensor.graph",
    "pytensor.graph.basic",
    "pytensor.graph.traversal",
    "pytensor.graph.rewriting.basic",
)
