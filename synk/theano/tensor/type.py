"""`theano.tensor.type`: PyTensor's."""

from ..forwarding import forward

__getattr__, __dir__ = forward(
    __name__, "synk.theano.tensor.types", "pytensor.tensor.type"
)
