"""`theano.compile.ops`: Ops of any type."""

from ..forwarding import forward

__getattr__, __dir__ = forward(
    __name__,
    "pytensor.compile.ops",
    "pytensor.raise_op",
    "pytensor.tensor.shape",
    "synk.theano.tensor.written",
)
