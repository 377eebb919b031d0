"""`theano.tensor.var`: PyTensor's."""

from ..forwarding import forward

__getattr__, __dir__ = forward(
    __name__, "pytensor.tensor.variable", "pytensor.tensor.sharedvar"
)
