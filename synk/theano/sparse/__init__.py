"""`theano.sparse`: sparse matrices, PyTensor's under Theano's names."""

from typing import Any

import pytensor.sparse
import pytensor.tensor as pt
from pytensor.sparse import SparseTensorType as SparseType
from pytensor.sparse import as_sparse as constant
from pytensor.sparse import sign as sgn
from pytensor.sparse import structured_elemwise as structured_monoid
from pytensor.sparse.variable import SparseConstant, SparseVariable

from ..forwarding import forward

__all__ = [
    "SparseConstant",
    "SparseType",
    "SparseVariable",
    "constant",
    "enable_sparse",
    "sgn",
    "sparse_grad",
    "structured_monoid",
]

enable_sparse = True
"""Whether SciPy is there, which PyTensor needs."""


def sparse_grad(var: Any) -> Any:
    """Mark an indexing of a matrix's rows for a sparse gradient.

    Where PyTensor has none any more (3.3), the gradient is the same as a dense matrix.

    Parameters
    ----------
    var : TensorVariable
        The result of ``x[rows]``.
    """
    theirs = getattr(pytensor.sparse, "sparse_grad", None)
    if theirs is not None:
        return theirs(var)
    node = var.owner
    # The module `type` has the name of the builtin here.
    picks = node is not None and "Subtensor" in node.op.__class__.__name__
    if not picks or len(node.inputs) != 2 or node.inputs[1].ndim != 1:
        raise TypeError(f"sparse_grad takes a tensor's rows by numbers, not {var}")
    return pt.as_tensor_variable(var)


__getattr__, __dir__ = forward(__name__, "pytensor.sparse", "pytensor.sparse.type")
