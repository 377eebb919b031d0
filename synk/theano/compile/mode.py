"""`theano.compile.mode`: PyTensor's modes."""

from ..forwarding import forward

__getattr__, __dir__ = forward(__name__, "pytensor.compile.mode")
