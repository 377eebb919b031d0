"""`theano.typed_list`: PyTensor's."""

from ..forwarding import forward

__getattr__, __dir__ = forward(__name__, "pytensor.typed_list")
