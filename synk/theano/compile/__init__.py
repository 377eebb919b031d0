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
from ..functions import In, Out, Param, shared

# The modules that share a name with a function come before the function.
from . import function as _function_module
from . import monitormode
from . import pfunc as _pfunc_module
from .monitormode import MonitorMode

function = _function_module.function
pfunc = _pfunc_module.pfunc

__all__ = [
    "FunctionMaker",
    "In",
    "Mode",
    "MonitorMode",
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
    "monitormode",
    "pfunc",
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
