"""`theano.tensor`: PyTensor's tensors, and what Theano had beside.

Names of PyTensor are looked up when asked for (`forwarding`); here stand those that it
calls differently, and those of modules in Theano (``theano.tensor.nnet``).
"""

import pytensor.tensor as _pt
from pytensor.tensor import (
    TensorConstant,
    TensorType,
    constant,
)
from pytensor.tensor.exceptions import NotScalarConstantError
from pytensor.tensor.sharedvar import TensorSharedVariable

from ..forwarding import forward
from ..functions import shared
from ..gradient import (
    Lop,
    Rop,
    consider_constant,
    grad,
    hessian,
    jacobian,
    numeric_grad,
    verify_grad,
)
from ..names import names_of
from . import (
    basic,
    elemwise,
    extra_ops,
    nlinalg,
    nnet,
    opt,
    raw_random,
    shared_randomstreams,
    sharedvar,
    slinalg,
    subtensor,
    type,
)

# The modules that share a name with a function come before the function.
from . import sort as _sort_module
from . import var as _var_module
from .batched import batched_dot, batched_tensordot
from .plain import TensorVariable
from .renamed import (
    cast,
    choose,
    conj,
    diag,
    dot,
    get_scalar_constant_value,
    is_flat,
    mean,
    repeat,
    reshape,
    trace,
    unravel_index,
)
from .shared_randomstreams import RandomStreams
from .types import (
    col,
    matrix,
    row,
    scalar,
    tensor,
    tensor3,
    tensor4,
    tensor5,
    vector,
)
from .written import (
    Rebroadcast,
    addbroadcast,
    argtopk,
    flatten,
    patternbroadcast,
    rint,
    split,
    stack,
    tile,
    topk,
    topk_and_argtopk,
    unbroadcast,
)

abs_ = _pt.abs
inv = _pt.reciprocal
sort = _pt.sort
var = _pt.var

__all__ = names_of(__name__)

__getattr__, __dir__ = forward(
    __name__,
    "pytensor.tensor",
    "pytensor.tensor.extra_ops",
    "pytensor.tensor.basic",
    "pytensor.tensor.math",
    "pytensor.tensor.type",
    "pytensor.tensor.subtensor",
    "pytensor.tensor.elemwise",
)
