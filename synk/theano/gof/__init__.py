"""`theano.gof`: variables, nodes, Ops, types; ``pytensor.graph``."""

from pytensor.graph import Apply, Constant, FunctionGraph, Op, Type
from pytensor.graph.rewriting.basic import node_rewriter as local_optimizer
from pytensor.graph.traversal import graph_inputs, io_toposort
from pytensor.graph.utils import MethodNotDefined
from pytensor.link.c.op import COp
from pytensor.link.c.type import CType, Generic, generic

from ..forwarding import forward
from .comparing import is_same_graph
from .searches import ancestors, inputs
from .variables import Variable

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
    "is_same_graph",
    "local_optimizer",
]

__getattr__, __dir__ = forward(
    __name__,
    "pytensor.graph",
    "pytensor.graph.basic",
    "pytensor.graph.traversal",
    "pytensor.graph.rewriting.basic",
)
