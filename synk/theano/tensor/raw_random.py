"""`theano.tensor.raw_random`: PyTensor's."""

from ..forwarding import forward

__getattr__, __dir__ = forward(__name__, "pytensor.tensor.random")
