"""`theano.sandbox.cuda`: Theano's first GPU backend; there, and not activated.

The names of its modules can be imported, and raise when they are used.
"""

from ... import names_gpu, not_activated
from ...gpuarray import use
from . import dnn
from .dnn import dnn_available
from .dnn import version as dnn_version

__all__ = [
    "cuda_available",
    "cuda_enabled",
    "dnn",
    "dnn_available",
    "dnn_version",
    "use",
]

cuda_available = False
"""Whether CUDA could be used through this package: never."""

cuda_enabled = False
"""Whether graphs run on a GPU through this package: never."""

cuda_warning_is_displayed = False
cuda_initialization_error_message = ""

_modules = not_activated.make_modules(
    __name__, names_gpu.CUDA, RuntimeError, dnn_available.msg
)
for _name in "type", "var":
    globals().update(not_activated.names_in(_modules[_name], names_gpu.CUDA[_name]))

__getattr__, __dir__ = not_activated.give(
    __name__, "GpuOp", RuntimeError, dnn_available.msg
)
