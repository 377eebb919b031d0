"""`theano.sparse.utils`: PyTensor's."""

from ..forwarding import forward

__getattr__, __dir__ = forward(__name__, "pytensor.sparse.utils")
