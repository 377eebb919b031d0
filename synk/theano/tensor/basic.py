"""`theano.tensor.basic`: PyTensor's."""

from ..forwarding import forward

__getattr__, __dir__ = forward(
    __name__, "synk.theano.tensor", "pytensor.tensor.basic", "pytensor.tensor.math"
)
