"""`theano.tensor.sort`: PyTensor's, and the largest elements."""

from ..forwarding import forward

__getattr__, __dir__ = forward(
    __name__, "pytensor.tensor.sort", "synk.theano.tensor.written"
)
