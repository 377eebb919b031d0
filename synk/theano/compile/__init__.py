"""`theano.compile`: functions, modes, shared variables."""

from pytensor.compile import (
    FunctionMaker,
    Mode,
    SharedVariable,
    SymbolicInput,
    SymbolicOutput,
    UnusedInputError,
    ViewOp,
    as_op,
    predefined_linkers,
    predefined_modes,
    predefined_optimizers,
    register_linker,
    register_mode,
    register_optimizer,
    shared_constructor,
    view_op,
)
from pytensor.compile.builders import OpFromGraph

from ..forwarding import forward
from ..functions import In, Out, Param, function, shared

__all__ = [
    "FunctionMaker",
    "In",
    "Mode",
    "OpFromGraph",
    "Out",
    "Param",
    "SharedVariable",
    "SymbolicInput",
    "SymbolicOutput",
    "UnusedInputError",
    "ViewOp",
    "as_op",
    "function",
    "predefined_linkers",
    "predefined_modes",
    "predefined_optimizers",
    "register_linker",
    "register_mode",
    "register_optimizer",
    "shared",
    "shared_constructor",
    "view_op",
]

__getattr__, __dir__ = forward(__name__, "pytensor.compile")
