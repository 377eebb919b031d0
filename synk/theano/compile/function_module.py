"""`theano.compile.function_module`: compiled functions."""

from ..forwarding import forward

__getattr__, __dir__ = forward(
    __name__,
    "pytensor.compile",
    "pytensor.compile.executor",
    "pytensor.compile.function.types",
)
