"""Theano's names on PyTensor: ``import theano`` where Theano is not installed.

`names` has the table of all of them; `synk.finders.theano_names` makes ``theano.x`` and
`synk.theano.x` one module.
"""

from . import (
    compile,
    default_updates,
    gof,
    gradient,
    ifelse,
    printing,
    scalar,
    scan_module,
    stable,
    tensor,
    truth,
    updates,
)
from .compile import (
    FunctionMaker,
    In,
    Mode,
    OpFromGraph,
    Out,
    Param,
    SharedVariable,
    as_op,
    function,
    predefined_linkers,
    predefined_modes,
    predefined_optimizers,
    shared,
)
from .configuration import change_flags, config
from .forwarding import forward
from .functions import clone
from .gof import Apply, Constant, Op, Type, Variable, generic
from .gradient import Lop, Rop, grad, subgraph_grad
from .misc.safe_asarray import _asarray  # noqa: F401  (scripts use it)
from .printing import debugprint as dprint
from .printing import pp, pprint
from .scan_module import foldl, foldr, map, reduce, scan, scan_checkpoints
from .updates import OrderedUpdates

__version__ = "1.0.5"
"""The Theano whose names these are."""

__all__ = [
    "Apply",
    "Constant",
    "FunctionMaker",
    "In",
    "Lop",
    "Mode",
    "Op",
    "OpFromGraph",
    "OrderedUpdates",
    "Out",
    "Param",
    "Rop",
    "SharedVariable",
    "Type",
    "Variable",
    "as_op",
    "change_flags",
    "clone",
    "compile",
    "config",
    "dot",
    "dprint",
    "foldl",
    "foldr",
    "function",
    "generic",
    "gof",
    "grad",
    "gradient",
    "ifelse",
    "map",
    "pp",
    "pprint",
    "predefined_linkers",
    "predefined_modes",
    "predefined_optimizers",
    "printing",
    "reduce",
    "scalar",
    "scan",
    "scan_checkpoints",
    "scan_module",
    "shared",
    "sparse_grad",
    "subgraph_grad",
    "tensor",
    "updates",
]

default_updates.register()
stable.register()
truth.register()


def dot(l: object, r: object) -> object:  # noqa: E741  (Theano's names)
    """Return the dot product of two tensors, as ``theano.tensor.dot``."""
    return tensor.dot(l, r)


def sparse_grad(var):
    """Mark an indexing of a matrix's rows for a sparse gradient.

    Parameters
    ----------
    var : TensorVariable
        The result of ``x[rows]``.
    """
    from . import sparse

    return sparse.sparse_grad(var)


__getattr__, __dir__ = forward(__name__)
