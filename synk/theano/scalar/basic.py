"""`theano.scalar.basic`: PyTensor's."""

from ..forwarding import forward

__getattr__, __dir__ = forward(__name__, "pytensor.scalar.basic", "pytensor.scalar")
