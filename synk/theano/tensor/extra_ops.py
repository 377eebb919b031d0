"""`theano.tensor.extra_ops`: PyTensor's."""

from ..forwarding import forward

__getattr__, __dir__ = forward(
    __name__, "synk.theano.tensor", "pytensor.tensor.extra_ops"
)
