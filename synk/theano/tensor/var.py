"""`theano.tensor.var`: PyTensor's."""

from ..forwarding import forward

__getattr__, __dir__ = forward(
    __name__,
    "synk.theano.tensor.plain",
    "pytensor.tensor.variable",
    "pytensor.tensor.sharedvar",
)
